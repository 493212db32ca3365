"""Finds the requests and times of a history that a user names on the command line."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, time, timedelta

from kvtrail.tracer.detect.tracked import Key as RequestKey
from kvtrail.tracer.history.history import History
from kvtrail.tracer.model.words import count, some

MAX_NAMED = 5
"""Requests that an error message lists; the rest are counted."""
_MS = 10**6


class NotInHistory(ValueError):
    """A request or a time that cannot be found; the text says why, and what there is."""


def requests_named(history: History, text: str) -> tuple[RequestKey, ...]:
    """The requests, by engine and id, that a text names: by the engine's id, the external id, or the beginning of either.

    A complete external id may name several requests: one in each engine that it passes through.

    Raises:
        NotInHistory: there is none, or a beginning fits several.
    """
    known = {(e.engine, e.request): e.external or "" for e in history.events if e.request is not None}
    if found := [key for key in known if key[1] == text] or [key for key in known if text and known[key] == text]:
        return tuple(found)
    begun = [key for key in known if text and (key[1].startswith(text) or known[key].startswith(text))]
    names = dict.fromkeys(known[key] or key[1] for key in begun)
    if len(names) == 1:
        return tuple(begun)
    if names:
        raise NotInHistory(f"{text!r} fits {some(len(names), 'request')}: {_named(names)}")
    names = dict.fromkeys(known[key] or key[1] for key in known)
    are = "is" if len(names) == 1 else "are"
    raise NotInHistory(f"there is no request {text!r}; there {are} {some(len(names), 'request')}: {_named(names)}")


def moment(history: History, text: str) -> int:
    """The time that a text names, in Unix nanoseconds.

    It is a date and time (ISO 8601, UTC by default), a time of the day on which the history begins, or `+` and seconds from
    the beginning.

    Raises:
        NotInHistory: the text is none of these.
    """
    begin_ns = min((event.start_ns for event in history.events), default=0)
    try:
        if text.startswith("+"):
            return begin_ns + timedelta(seconds=float(text)) // timedelta(microseconds=1) * 1000
        if "-" not in text and ":" in text:
            day = datetime.fromtimestamp(begin_ns // 10**9, UTC).date()
            at = datetime.combine(day, time.fromisoformat(text))
        else:
            at = datetime.fromisoformat(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000
    except (ValueError, OverflowError) as error:
        example = datetime.fromtimestamp(begin_ns // 10**9, UTC)
        raise NotInHistory(
            f"{text!r} is no time; write {example:%Y-%m-%dT%H:%M:%S} or {example:%H:%M:%S.250} (UTC), or seconds from the"
            " beginning, such as +12.5"
        ) from error


def through(moment_ns: int) -> int:
    """The last nanosecond of a time's millisecond: times are shown in milliseconds, and a step that is shown at 01:24:36.005
    must be selected by that."""
    return moment_ns // _MS * _MS + _MS - 1


def _named(names: Collection[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(list(names)[:MAX_NAMED]) + (f" and {count(rest)} more" if rest > 0 else "")

"""The view of the lanes, as reported by their component and as in the page's URL, and the tracer's parameters for it.

The URL has `from` and `to` as on all pages, and `fold`. Users may write URLs by hand: invalid values are ignored.
`chosen` are the page's filters, and `q`, a part of a request's id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from kvtrail.dashboard.content import time_range
from kvtrail.dashboard.content.requests import filters

NAMES = ("from", "to", "fold")
"""The names of a view's parameters in the URL."""
DEFAULT_SPAN_MS = 300_000.0
FIT_MS = 900_000.0
"""The longest range of a view that fits its contents."""
CLOSEST_MS, CLOSER = 10_000.0, 3.0
"""Margins that are requested on either side of zoomed contents, as a time and as a multiple of their length, since the
picture is wider than the contents."""
LONGEST_MS = 7 * 86_400_000.0
APPLIED = ("q", "engine", "service", "model", "status", "where")
"""The filters that `/api/lanes` has."""
MAX_FOLDED = 100
AROUND = 0.5
"""This share of the span is also requested on either side, so that a small move needs no new answer."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A view. Moments are Unix milliseconds.

    Attributes:
        fit: whether the component fits the range to its contents, `FIT_MS` at most.
        span_ms: the length of the range.
        to_ms: its end; None follows the present.
        folded: the engines with their rows folded into one.
    """

    fit: bool = True
    span_ms: Annotated[float, msgspec.Meta(ge=1, le=LONGEST_MS)] = DEFAULT_SPAN_MS
    to_ms: Annotated[float, msgspec.Meta(gt=0, lt=time_range.LATEST_NS / 1e6)] | None = None
    folded: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_FOLDED)] = ()


def of_component(state: Any) -> View:
    """The view that the component reported; the default view if the report is invalid."""
    try:
        return msgspec.convert(state, View)
    except msgspec.ValidationError:
        return View()


def of_query(query: Mapping[str, str], *, folded: Sequence[str] = (), now_ms: float) -> View:
    """The view in a URL. `folded` has the values of `fold`, which may occur several times."""
    begin, end = query.get("from", ""), query.get("to", time_range.NOW)
    begin_ns, end_ns = (time_range.parsed(each, now_ns=int(now_ms * 1e6)) for each in (begin, end))
    folds = tuple(folded)[:MAX_FOLDED]
    if begin_ns is None or end_ns is None or end_ns <= begin_ns:
        return View(folded=folds)
    return _of_range(begin_ns, end_ns, follows=end == time_range.NOW, folded=folds)


def as_query(view: View) -> dict[str, str | list[str]]:
    """The URL parameters of a view; defaults are omitted."""
    query: dict[str, str | list[str]] = {}
    if not view.fit and view.to_ms is None:
        seconds = max(1, round(view.span_ms / 1000))
        query = {"from": f"now-{seconds}s" if seconds % 60 else f"now-{seconds // 60}m", "to": "now"}
    elif not view.fit and view.to_ms is not None:
        since_ns, until_ns = (round(at_ms * 1000) * 1000 for at_ms in (view.to_ms - view.span_ms, view.to_ms))
        query = dict(time_range.TimeRange(since_ns, until_ns).address)
    return query | ({"fold": list(view.folded)} if view.folded else {})


def typed_view(text: str, view: View, *, now_ms: float) -> View | None:
    """The view of a typed range, in place of `view`; None if it cannot be parsed."""
    to_ms = now_ms if view.to_ms is None else view.to_ms
    shown = time_range.TimeRange(int((to_ms - max(view.span_ms, 1000)) * 1e6), int(to_ms * 1e6))
    try:
        found = time_range.typed(text, now_ns=int(now_ms * 1e6), shown=shown)
    except ValueError:
        return None
    follows = found.relative is not None and found.relative.endswith(" to now")
    return _of_range(found.since_ns, found.until_ns, follows=follows, folded=view.folded)


def _of_range(begin_ns: int, end_ns: int, *, follows: bool, folded: tuple[str, ...]) -> View:
    span_ms = min(max(ms_of(end_ns) - ms_of(begin_ns), 1.0), LONGEST_MS)
    return View(fit=False, span_ms=span_ms, to_ms=None if follows else ms_of(end_ns), folded=folded)


def question(view: View, chosen: Mapping[str, str], *, end_ms: float) -> dict[str, int | str]:
    """The parameters of `/api/lanes` for a view. A view that fits its contents, or follows the present, ends at `end_ms`."""
    span_ms = FIT_MS if view.fit else view.span_ms
    to_ms = end_ms if view.fit or view.to_ms is None else view.to_ms
    return _parameters(chosen, to_ms - span_ms * (1 + AROUND), to_ms + span_ms * AROUND)


def closer_question(view: View, chosen: Mapping[str, str], answer: Mapping[str, Any]) -> dict[str, int | str] | None:
    """The parameters for the contents of an answer only, for a view that fits them; None if they fill it. An answer has a
    fixed resolution over its range: in half an hour, phases of less than a second would be merged."""
    if not view.fit or not answer["requests"]["begin_us"]:
        return None
    beside = [*answer["marks"]["at_us"], *((each["at_ns"] - answer["from_ns"]) / 1000 for each in answer["deaths"])]
    begin_us, end_us = (
        most([*answer["requests"][name], *beside]) for most, name in ((min, "begin_us"), (max, "end_us"))
    )
    around_ms = max(CLOSEST_MS, CLOSER * (end_us - begin_us) / 1000)
    from_ms, to_ms = (answer["from_ns"] / 1e6 + us / 1000 for us in (begin_us, end_us))
    if to_ms - from_ms + 2 * around_ms > FIT_MS:
        return None
    return _parameters(chosen, from_ms - around_ms, to_ms + around_ms)


def ms_of(at_ns: int) -> float:
    """A moment in milliseconds, to the microsecond. Unix nanoseconds exceed a float's precision: divided in one step, a whole
    millisecond may come out slightly less, and would be shown as the one before."""
    return at_ns // 1000 / 1000


def _parameters(chosen: Mapping[str, str], from_ms: float, to_ms: float) -> dict[str, int | str]:
    from_ns = int(max(0.0, from_ms) * 1e6)
    to_ns = max(int(to_ms * 1e6), from_ns + 1_000_000)
    applied = {name: value for name, value in chosen.items() if name in APPLIED}
    return {"from_ns": from_ns, "to_ns": to_ns, **filters(applied)}

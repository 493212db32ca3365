"""From a history that drifts to the smallest one that still shows the same finding, for a report that others can read.

The detector is the oracle. A smaller history counts only if it shows the finding with the same numbers and by the same
spans, nothing that the recording does not show, and if all that its events rest on is in it (`replay.grounds`): what
is wrong in it was wrong in the recording, and never a hole that the cutting made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.findings import Finding, by_weight
from kvtrail.tracer.replay.cut import Cut, Progress, request_of
from kvtrail.tracer.replay.history import History, Moment
from kvtrail.tracer.replay.judging import found_in


class NoFinding(ValueError):
    """There is nothing to keep: no finding, or none like the one that was asked for; the text says which of the two.

    Attributes:
        found: the findings of the history, worst and earliest first.
    """

    def __init__(self, text: str, found: Sequence[Finding]) -> None:
        super().__init__(text)
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimized:
    """A history cut down to one finding.

    Attributes:
        history: what is left, whole in itself: numbered anew, with resource attributes that say of what it is a part. Spans
            that no kvtrail recorder wrote are not in it.
        finding: the finding as this history shows it: the recording's, but for how often it was repeated.
        lost: findings of the recording that this history does not show, worst and earliest first.
        events_before, events: how many events the recording had, and this history has.
        requests_before, requests: the same of requests.
        tries: how many histories were judged to get there.
    """

    history: History
    finding: Finding
    lost: tuple[Finding, ...]
    events_before: int
    events: int
    requests_before: int
    requests: int
    tries: int


def minimize(
    history: History,
    *,
    finding: str | None = None,
    rule: str | None = None,
    request: str | None = None,
    on_progress: Progress | None = None,
) -> Minimized:
    """Reduce a history to the fewest requests, and these to the fewest events, that still show a finding.

    No single request or event of the result can be left out, not even with all that rests on it. To minimize the result
    again changes nothing.

    Args:
        finding: the id of the finding to keep, or its beginning; without one, the worst is kept, and of those the earliest.
        rule: keep a finding of this rule.
        request: keep a finding of this request; its id in the engine, or the caller's.
        on_progress: hears of every history that was judged.

    Raises:
        NoFinding: the history shows no finding, or none like that.
    """
    found = found_in(history.events)
    chosen = _choose(found, finding=finding, rule=rule, request=request)
    moments, shown, tries = history.moments, found, 1
    while True:
        cut = Cut(moments, shown, chosen.id, tries=tries, on_progress=on_progress)
        kept = cut.smallest()
        tries = cut.tries
        if len(kept) == len(moments):
            break
        # Once more, from what is left: it must be the smallest for whoever knows nothing else, too.
        moments = tuple(cut.moments(kept))
        shown = found_in([event for event, _ in moments])
    return Minimized(
        history=History(moments=tuple(_marked(moments, chosen.rule, history))),
        finding=shown[chosen.id],
        lost=tuple(f for f in by_weight(found.values()) if f.id not in shown),
        events_before=len(history.moments),
        events=len(moments),
        requests_before=_requests(history.moments),
        requests=_requests(moments),
        tries=tries,
    )


def _choose(found: Mapping[str, Finding], *, finding: str | None, rule: str | None, request: str | None) -> Finding:
    ordered = by_weight(found.values())
    if not ordered:
        raise NoFinding("no drift was found, so there is nothing to keep", ordered)
    asked = {"id": finding, "rule": rule, "request": request}
    for each in ordered:
        if (
            each.id.startswith(finding or "")
            and rule in (None, each.rule)
            and request in (None, each.request, each.external)
        ):
            return each
    like = ", ".join(f"{what} {name}" for what, name in asked.items() if name is not None)
    raise NoFinding(f"none of the {len(ordered)} findings has {like}", ordered)


def _marked(moments: Iterable[Moment], rule: str, recording: History) -> Iterator[Moment]:
    """The moments with resources that say that they are a part of a recording. A part of a part is a part of the whole."""
    known: dict[int, Mapping[str, Any]] = {}
    size = {
        semconv.MINIMIZED_EVENTS.key: len(recording.moments),
        semconv.MINIMIZED_REQUESTS.key: _requests(recording.moments),
    }
    for event, span in moments:
        if id(span.resource) not in known:
            known[id(span.resource)] = {**size, **span.resource, semconv.MINIMIZED_RULE.key: rule}
        yield event, replace(span, resource=known[id(span.resource)])


def _requests(moments: Iterable[Moment]) -> int:
    return len({request_of(event) for event, _ in moments if event.request is not None})

"""From a history that drifts to the smallest one that still shows the same finding, for a report that others can read.

The detector is the oracle. A smaller history counts only if it shows the finding with the same numbers and by the same
spans, nothing that the recording does not show, and if all that its events rest on is in it (`tracer.replay.grounds`): what
is wrong in it was wrong in the recording, and never a hole that the cutting made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracer import semconv
from tracer.detect import Detector
from tracer.events import Event
from tracer.findings import Finding, by_weight
from tracer.replay.grounds import grounds
from tracer.replay.history import History, Moment
from tracer.replay.numbering import Numbering, in_span
from tracer.replay.reduce import inverted, reached, reduced

Progress = Callable[[int, int], None]
"""Hears how many events are left, and how many histories have been judged."""


class NoFinding(ValueError):
    """There is nothing to keep: no finding, or none like the one that was asked for; the text says which there are.

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
    found = _shown(history.events)
    chosen = _choose(found, finding=finding, rule=rule, request=request)
    moments, shown, tries = history.moments, found, 1
    while True:
        cut = _Cut(moments, shown, chosen.id, tries=tries, on_progress=on_progress)
        kept = cut.smallest()
        tries = cut.tries
        if len(kept) == len(moments):
            break
        # Once more, from what is left: it must be the smallest for whoever knows nothing else, too.
        moments = tuple(cut.moments(kept))
        shown = _shown([event for event, _ in moments])
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


class _Cut:
    """One way down from a history to a smaller one."""

    def __init__(
        self,
        moments: Sequence[Moment],
        known: Mapping[str, Finding],
        finding: str,
        *,
        tries: int,
        on_progress: Progress | None,
    ) -> None:
        """`known` is what the history shows, by id; `finding` the id of what is to be kept."""
        self.tries = tries
        self._moments = moments
        self._on_progress = on_progress
        self._events = [event for event, _ in moments]
        self._numbering = Numbering(self._events)
        self._rests = grounds(self._events)
        self._known = known
        self._finding = known[finding]
        seen = {(w.span_id, w.kind, w.at_ns) for w in self._finding.witness}
        self._witness = [i for i, e in enumerate(self._events) if (e.span_id, e.kind, e.start_ns) in seen]
        self._needed = reached(self._witness, self._rests)

    def moments(self, kept: Sequence[int]) -> Iterator[Moment]:
        """The chosen events, numbered anew, with spans that say the same."""
        for index, event in zip(kept, self._numbering.events(kept), strict=True):
            yield event, in_span(event, self._moments[index][1])

    def smallest(self) -> Sequence[int]:
        """The fewest events: of the smallest scope that shows the finding, first whole requests go, then single events."""
        resting = inverted(self._rests)
        kept: Sequence[int] = next(
            scope for scope in self._scopes() if len(scope) == len(self._events) or self._holds(scope)
        )
        before = -1
        while len(kept) != before:
            before = len(kept)
            for units in (self._by_request(kept), [[index] for index in kept if index not in self._needed]):
                kept = reduced(kept, units, resting=resting, holds=self._holds)
        return kept

    def _holds(self, kept: Sequence[int]) -> bool:
        """Whether these events, as a history of their own, show the finding by the same spans, and nothing new."""
        self.tries += 1
        if self._on_progress is not None:
            self._on_progress(len(kept), self.tries)
        shown = _shown(self._numbering.events(kept))
        found = shown.get(self._finding.id)
        if found is None or (found.numbers, found.witness) != (self._finding.numbers, self._finding.witness):
            return False
        return all(f.id in self._known and f.count <= self._known[f.id].count for f in shown.values())

    def _scopes(self) -> Iterator[list[int]]:
        """Parts of the history in which the finding may show already, small ones first; the last is all of it."""
        events, last = self._events, max(self._witness)
        everything = range(len(events))
        own = {_request(events[index]) for index in self._witness}
        of_own = [i for i in everything if _request(events[i]) in own]
        of_none = [i for i in everything if events[i].request is None]
        clocks = {events[index].recorder: index for index in everything}
        yield self._scope(())
        yield self._scope(clocks[events[index].recorder] for index in self._witness)
        for part in (of_own, [*of_own, *of_none], [*of_own, *of_none, *self._of_kin(of_own)], everything):
            yield self._scope(index for index in part if index <= last)
            yield self._scope(part)

    def _scope(self, chosen: Iterable[int]) -> list[int]:
        return sorted(reached(self._needed.union(chosen), self._rests))

    def _of_kin(self, own: Sequence[int]) -> list[int]:
        """The events of the requests that name a block or a chunk which these events name as well."""
        named = {name for index in own for name in _names(self._events[index])}
        kin = {_request(event) for event in self._events if not named.isdisjoint(_names(event))}
        return [index for index, event in enumerate(self._events) if _request(event) in kin]

    def _by_request(self, kept: Sequence[int]) -> list[list[int]]:
        units: dict[tuple[str, str | None], list[int]] = {}
        for index in kept:
            units.setdefault(_request(self._events[index]), []).append(index)
        return [unit for (_, request), unit in units.items() if request is not None and self._needed.isdisjoint(unit)]


def _shown(events: Sequence[Event]) -> dict[str, Finding]:
    """What an audit finds in these events, by id."""
    detector = Detector()
    found = [*detector.feed(events), *detector.settle(), *detector.tick()]
    return {finding.id: finding for finding in found}


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


def _request(event: Event) -> tuple[str, str | None]:
    return event.engine, event.request


def _requests(moments: Iterable[Moment]) -> int:
    return len({_request(event) for event, _ in moments if event.request is not None})


def _names(event: Event) -> list[Any]:
    """The blocks and chunks that an event names; a block is its engine's, a chunk may be everybody's."""
    names: list[Any] = [(event.engine, block) for block in getattr(event, "blocks_ids", None) or ()]
    names += getattr(event, "chunk_keys", None) or ()
    return names

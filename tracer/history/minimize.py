"""Reduces a history with a finding to the smallest one that still shows it, for a report that others can read.

The detector is the oracle. A smaller history is accepted only if it shows the finding with the same numbers and by the same
spans, shows no finding that the recording lacks, and has the prerequisites of all its events (`history.prerequisites`). So
every error in it was in the recording, and none is an artifact of the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.history.history import History, Moment
from kvtrail.tracer.history.judging import findings_of
from kvtrail.tracer.history.numbering import Numbering, in_span
from kvtrail.tracer.history.prerequisites import prerequisites
from kvtrail.tracer.history.shrink import inverted, reachable, shrunk
from kvtrail.tracer.ledger.recorder_clocks import SILENCE_NS
from kvtrail.tracer.model.findings import Finding, by_weight

Progress = Callable[[int, int], None]
"""Called with the number of events in the next history, and the number of judged histories including this one."""


class NoFinding(ValueError):
    """The history has no finding, or none that matches the request; the text says which.

    Attributes:
        found: the findings of the history, worst and earliest first.
    """

    def __init__(self, text: str, found: Sequence[Finding]) -> None:
        super().__init__(text)
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimized:
    """A history reduced to one finding.

    Attributes:
        history: the renumbered, self-contained history. Spans that no kvtrail recorder wrote are omitted.
        finding: the finding in this history: as in the recording, except for its count.
        lost: findings of the recording that this history does not show, worst and earliest first.
        events_before, events: number of events in the recording, and in this history.
        requests_before, requests: the same for requests.
        tries: number of judged histories.
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

    No single request or event of the result can be removed, even with all its dependents. Minimizing the result again changes
    nothing.

    Args:
        finding: the id of the finding, or a prefix; by default the earliest one of the worst severity.
        rule: the finding's rule.
        request: the finding's request; its id in the engine, or the caller's.
        on_progress: called before each history is judged.

    Raises:
        NoFinding: the history shows no finding, or none like that.
    """
    found = findings_of(history.events)
    chosen = _choose(found, finding=finding, rule=rule, request=request)
    moments, shown, tries = history.moments, found, 1
    while True:
        search = _Search(moments, shown, chosen.id, tries=tries, on_progress=on_progress)
        kept = search.smallest()
        tries = search.tries
        if len(kept) == len(moments):
            break
        # Minimize the result again, so that it is also minimal as a recording of its own.
        moments = tuple(search.moments(kept))
        shown = findings_of([event for event, _ in moments])
    return Minimized(
        history=History(moments=moments),
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
        raise NoFinding("no drift was found, so there is nothing to minimize", ordered)
    for each in ordered:
        of_request = request in (None, each.request, each.external)
        if each.id.startswith(finding or "") and rule in (None, each.rule) and of_request:
            return each
    asked = {"id": finding, "rule": rule, "request": request}
    like = ", ".join(f"{what} {name}" for what, name in asked.items() if name is not None)
    raise NoFinding(f"none of the {len(ordered)} findings has {like}", ordered)


def _requests(moments: Iterable[Moment]) -> int:
    return len({_request_of(event) for event, _ in moments if event.request is not None})


def _request_of(event: Event) -> tuple[str, str | None]:
    """The request of an event; an id is unique only in its engine."""
    return event.engine, event.request


class _Search:
    """Finds the smallest choice of a history's events that still shows a finding.

    Attributes:
        tries: number of judged histories.
    """

    def __init__(
        self,
        moments: Sequence[Moment],
        known: Mapping[str, Finding],
        finding: str,
        *,
        tries: int,
        on_progress: Progress | None,
    ) -> None:
        """`known` are the history's findings, by id; `finding` is the id of the one to keep."""
        self.tries = tries
        self._moments = moments
        self._on_progress = on_progress
        self._events = [event for event, _ in moments]
        self._numbering = Numbering(self._events)
        self._prerequisites = prerequisites(self._events)
        self._known = known
        self._finding = known[finding]
        self._witness = self._witnesses()
        self._needed = reachable(self._witness, self._prerequisites)
        self._shows_once = cache(self._shows)

    def moments(self, kept: Sequence[int]) -> Iterator[Moment]:
        """The chosen events, renumbered, with matching spans."""
        for index, event in zip(kept, self._numbering.events(kept), strict=True):
            yield event, in_span(event, self._moments[index][1])

    def smallest(self) -> Sequence[int]:
        """The fewest events: start from the smallest scope that shows the finding, remove whole requests, then single
        events."""
        dependents = inverted(self._prerequisites)
        kept: Sequence[int] = next(
            scope for scope in self._scopes() if len(scope) == len(self._events) or self._holds(scope)
        )
        thinned = self._with_few_signs(kept)
        if self._holds(thinned):
            kept = thinned
        before = -1
        while len(kept) != before:
            before = len(kept)
            # Both are in order, so late events, which have fewer dependents, are tried first.
            for units in (self._by_request(kept), [[index] for index in kept if index not in self._needed]):
                kept = shrunk(kept, units, dependents=dependents, holds=self._holds)
        return kept

    def _with_few_signs(self, kept: Sequence[int]) -> Sequence[int]:
        """The events without heartbeats that are not needed to bridge the time between two events."""
        events = self._events
        by_recorder: dict[str, list[int]] = {}
        for index in kept:
            by_recorder.setdefault(events[index].recorder, []).append(index)
        spared = set()
        for own in by_recorder.values():
            before = own[0]
            for index, after in pairwise(own[1:]):
                may_go = isinstance(events[index], Heartbeat) and index not in self._needed
                if may_go and events[after].end_ns <= events[before].end_ns + SILENCE_NS:
                    spared.add(index)
                else:
                    before = index
        return [index for index in kept if index not in spared]

    def _witnesses(self) -> list[int]:
        """The events of the finding's witness."""
        named = {(w.trace_id, w.span_id, w.kind, w.at_ns): w for w in self._finding.witness}
        return [
            index
            for index, event in enumerate(self._events)
            if named.pop((event.trace_id, event.span_id, event.kind, event.start_ns), None) is not None
        ]

    def _holds(self, kept: Sequence[int]) -> bool:
        """Whether these events alone show the finding by the same spans, and no new finding. No choice is judged twice."""
        return self._shows_once(tuple(kept))

    def _shows(self, kept: tuple[int, ...]) -> bool:
        self.tries += 1
        if self._on_progress is not None:
            self._on_progress(len(kept), self.tries)
        shown = findings_of(self._numbering.events(kept))
        found = shown.get(self._finding.id)
        if found is None or (found.numbers, found.witness) != (self._finding.numbers, self._finding.witness):
            return False
        return all(f.id in self._known and f.count <= self._known[f.id].count for f in shown.values())

    def _scopes(self) -> Iterator[list[int]]:
        """Parts of the history that may show the finding, small ones first; the last is the whole history."""
        events, last = self._events, max(self._witness)
        everything = range(len(events))
        own = {_request_of(events[index]) for index in self._witness}
        of_own = [i for i in everything if _request_of(events[i]) in own]
        of_none = [i for i in everything if events[i].request is None]
        clocks = {events[index].recorder: index for index in everything}
        yield self._scope(())
        yield self._scope(clocks[events[index].recorder] for index in self._witness)
        for part in (of_own, [*of_own, *of_none], everything):
            yield self._scope(index for index in part if index <= last)
            yield self._scope(part)

    def _scope(self, chosen: Iterable[int]) -> list[int]:
        return sorted(reachable(self._needed.union(chosen), self._prerequisites))

    def _by_request(self, kept: Sequence[int]) -> list[list[int]]:
        units: dict[tuple[str, str | None], list[int]] = {}
        for index in kept:
            units.setdefault(_request_of(self._events[index]), []).append(index)
        return [unit for (_, request), unit in units.items() if request is not None and self._needed.isdisjoint(unit)]

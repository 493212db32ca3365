"""One way down from a history to a smaller one that shows the same finding: which events go, and who says that they may."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.replay.history import Moment
from kvtrail.tracer.replay.judging import found_in
from kvtrail.tracer.replay.numbering import Numbering, in_span
from kvtrail.tracer.replay.prerequisites import grounds
from kvtrail.tracer.replay.shrink import inverted, reachable, shrunk

Progress = Callable[[int, int], None]
"""Hears how many events the history has that is judged next, and how many have been judged with it."""


def request_of(event: Event) -> tuple[str, str | None]:
    """The request that an event is about; its id is only its engine's."""
    return event.engine, event.request


class Cut:
    """A history with a finding, and the choice of its events that must stay.

    Attributes:
        tries: how many histories have been judged.
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
        """`known` is what the history shows, by id; `finding` the id of what is to be kept."""
        self.tries = tries
        self._moments = moments
        self._on_progress = on_progress
        self._events = [event for event, _ in moments]
        self._numbering = Numbering(self._events)
        self._rests = grounds(self._events)
        self._known = known
        self._finding = known[finding]
        self._witness = self._witnesses()
        self._needed = reachable(self._witness, self._rests)

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
                kept = shrunk(kept, units, dependents=resting, holds=self._holds)
        return kept

    def _witnesses(self) -> list[int]:
        """The finding's witness. A span's id is its trace's: of two, that in the finding's request is meant."""
        finding = self._finding
        named: dict[tuple[str, str, int], list[int]] = {(w.span_id, w.kind, w.at_ns): [] for w in finding.witness}
        for index, event in enumerate(self._events):
            if (same := named.get((event.span_id, event.kind, event.start_ns))) is not None:
                same.append(index)

        def elsewhere(index: int) -> tuple[bool, bool]:
            event = self._events[index]
            return event.engine != finding.engine, (event.request or "") != finding.request

        return [min(same, key=elsewhere) for same in named.values()]

    def _holds(self, kept: Sequence[int]) -> bool:
        """Whether these events, as a history of their own, show the finding by the same spans, and nothing new."""
        self.tries += 1
        if self._on_progress is not None:
            self._on_progress(len(kept), self.tries)
        shown = found_in(self._numbering.events(kept))
        found = shown.get(self._finding.id)
        if found is None or (found.numbers, found.witness) != (self._finding.numbers, self._finding.witness):
            return False
        return all(f.id in self._known and f.count <= self._known[f.id].count for f in shown.values())

    def _scopes(self) -> Iterator[list[int]]:
        """Parts of the history in which the finding may show already, small ones first; the last is all of it."""
        events, last = self._events, max(self._witness)
        everything = range(len(events))
        own = {request_of(events[index]) for index in self._witness}
        of_own = [i for i in everything if request_of(events[i]) in own]
        of_none = [i for i in everything if events[i].request is None]
        clocks = {events[index].recorder: index for index in everything}
        yield self._scope(())
        yield self._scope(clocks[events[index].recorder] for index in self._witness)
        for part in (of_own, [*of_own, *of_none], [*of_own, *of_none, *self._of_kin(of_own)], everything):
            yield self._scope(index for index in part if index <= last)
            yield self._scope(part)

    def _scope(self, chosen: Iterable[int]) -> list[int]:
        return sorted(reachable(self._needed.union(chosen), self._rests))

    def _of_kin(self, own: Sequence[int]) -> list[int]:
        """The events of the requests that name a block or a chunk which these events name as well."""
        named = {name for index in own for name in _names(self._events[index])}
        kin = {request_of(event) for event in self._events if not named.isdisjoint(_names(event))}
        return [index for index, event in enumerate(self._events) if request_of(event) in kin]

    def _by_request(self, kept: Sequence[int]) -> list[list[int]]:
        units: dict[tuple[str, str | None], list[int]] = {}
        for index in kept:
            units.setdefault(request_of(self._events[index]), []).append(index)
        return [unit for (_, request), unit in units.items() if request is not None and self._needed.isdisjoint(unit)]


def _names(event: Event) -> list[Any]:
    """The blocks and chunks that an event names; a block is its engine's, a chunk may be everybody's."""
    names: list[Any] = [(event.engine, block) for block in getattr(event, "blocks_ids", None) or ()]
    names += getattr(event, "chunk_keys", None) or ()
    return names

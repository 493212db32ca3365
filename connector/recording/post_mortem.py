"""Spans that are sent on behalf of a dead engine: the roots of its open requests, and its end record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvtrail.connector.recording.contexts import MAX_REQUESTS, root_ids
from kvtrail.connector.recording.ring import EventTuple, Identity, numbers_of, sequence_of
from kvtrail.connector.settings import Heartbeats
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import FIELDS, place
from kvtrail.tracer.events.semconv import (
    CUT_OFF,
    NO_END_RECORD,
    ROOTS,
    ROW_EPOCHS,
    ROW_NUMBERS,
    ROW_REQUESTS,
    ROWS,
    Kind,
)

_HEARTBEAT, _CUT_OFF = Kind.HEARTBEAT.value, Kind.CUT_OFF.value
_BEGINNINGS = (Kind.REQUEST_START, Kind.SCHEDULE, Kind.PREEMPT)
"""Values that a replacement export process has not seen, since the open requests began before it. Only the scheduler's side
has them."""
_TOTAL = place(Kind.REQUEST_START, "total")
_CLOSED, _ENDED_BY = (place(Kind.HEARTBEAT, each) for each in ("recorder_closed", "recorder_ended_by"))
_REQUESTS, _NUMBERS, _EPOCHS = map(ROWS.index, (ROW_REQUESTS, ROW_NUMBERS, ROW_EPOCHS))


@dataclass(slots=True)
class _OpenRequest:
    """An open request: the values of its root from its first event, and its progress."""

    source: bytes
    identity: Identity
    start_ns: int
    prompt: int | None
    epoch: int = 0
    next: int = 0
    """The next number of its events."""


class PostMortem:
    """Tracks the events of one recorder, to complete them after its death."""

    def __init__(self, resource: Mapping[str, Any]) -> None:
        engine, recorder = (str(resource.get(each.key, "")) for each in (semconv.ENGINE_ID, semconv.RECORDER_ID))
        self._nobody: Identity = (root_ids(engine, recorder), b"", "", True)
        self._silent = resource.get(semconv.HEARTBEATS.key) == Heartbeats.OFF
        self._open: BoundedDict[str, _OpenRequest] = BoundedDict(MAX_REQUESTS)
        self._last: EventTuple | None = None
        self._heartbeat: EventTuple | None = None

    def follow(self, events: Iterable[EventTuple]) -> None:
        """Enter a batch; it may be repeated."""
        for event in events:
            kind, source, identity, _, number, epoch, start_ns, *_, values = self._last = event
            request = identity[2]
            if kind == semconv.STEP_SPAN:
                self._follow_step(values)
            elif kind == _HEARTBEAT:
                self._heartbeat = event
            elif kind in ROOTS:
                self._open.pop(request, None)
            elif request:
                if request not in self._open and kind in _BEGINNINGS:
                    prompt = values[_TOTAL] if kind == Kind.REQUEST_START else None
                    self._open[request] = _OpenRequest(source, identity, start_ns, prompt)
                self._reach(request, number, epoch)

    def final_events(self, at_ns: int, *, torn: bool) -> list[EventTuple]:
        """The roots and the end record, numbered as the engine's next events; if the last frame was `torn`, as those after
        one that is missing."""
        if self._last is None or (self._last is self._heartbeat and self._last[-1][_CLOSED]):
            return []
        following = sequence_of(self._last) + numbers_of(self._last) + torn
        roots = list(self._roots(following, at_ns, torn=torn))
        return roots if self._silent else [*roots, self._end_record(following + len(roots), at_ns)]

    def _follow_step(self, values: tuple[Any, ...]) -> None:
        requests, numbers = values[_REQUESTS], values[_NUMBERS]
        for request, number, epoch in zip(requests, numbers, values[_EPOCHS] or (0,) * len(requests), strict=True):
            self._reach(request, number, epoch)

    def _reach(self, request: str, number: int, epoch: int) -> None:
        if (known := self._open.get(request)) is not None:
            known.next, known.epoch = number + 1, epoch

    def _roots(self, sequence: int, at_ns: int, *, torn: bool) -> Iterator[EventTuple]:
        for number, each in enumerate(self._open.values(), sequence):
            numbers = (number, each.next + torn, each.epoch)
            yield (_CUT_OFF, each.source, each.identity, *numbers, each.start_ns, at_ns, None, (CUT_OFF, each.prompt))

    def _end_record(self, sequence: int, at_ns: int) -> EventTuple:
        """The last heartbeat, if there was one, repeated as an end record."""
        number: int = 0
        values: list[Any] = [sequence, 0, *(None,) * (len(FIELDS[Kind.HEARTBEAT]) - 2)]
        if self._heartbeat is not None:
            number, values = self._heartbeat[4] + 1, [*self._heartbeat[-1]]
        values[_CLOSED], values[_ENDED_BY] = True, NO_END_RECORD
        return (_HEARTBEAT, b"", self._nobody, sequence, number, 0, at_ns, at_ns, None, tuple(values))

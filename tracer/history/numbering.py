"""New sequence numbers for a part of a history.

Removed events must not look lost, and events that the recording lost must still look lost: the numbers of the rest become
contiguous, except that a number that is missing in the recording stays missing at its position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy

from msgspec.structs import replace

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span

_Ranks = Mapping[Hashable, Mapping[int, int]]
"""For each number of a stream, how many smaller numbers exist."""


class Numbering:
    """The numbers of a recording; renumbers any subset of its events."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._ranks = _ranks(events)

    def events(self, kept: Sequence[int]) -> list[Event]:
        """The chosen events with their new numbers; copies, if the numbers change."""
        chosen = [self._events[index] for index in kept]
        ranks = _ranks(chosen)
        return [self._numbered(event, ranks) for event in chosen]

    def _numbered(self, event: Event, ranks: _Ranks) -> Event:
        left_out = [self._ranks[stream][number] - ranks[stream][number] for stream, number in _streams(event)]
        if not any(left_out):
            return event
        event = copy(event)
        event.sequence -= left_out[0]
        event.request_sequence -= sum(left_out[1:])
        return event


def _ranks(events: Iterable[Event]) -> _Ranks:
    numbers: dict[Hashable, set[int]] = {}
    for event in events:
        for stream, number in _streams(event):
            numbers.setdefault(stream, set()).add(number)
    return {stream: {number: rank for rank, number in enumerate(sorted(held))} for stream, held in numbers.items()}


def _streams(event: Event) -> Iterable[tuple[Hashable, int]]:
    """The streams that an event is numbered in, and its number there."""
    yield event.recorder, event.sequence
    if event.request is not None:
        yield (event.engine, event.request, event.recorder), event.request_sequence


def closed_up(events: Sequence[Event]) -> list[Event]:
    """Events chosen from an unavailable recording, numbered consecutively in their recorders' streams. Events that a request
    lost are still missing in the request's own numbers."""
    next_number = Counter[str]()
    closed = list(map(copy, events))
    for event in sorted(closed, key=lambda event: event.sequence):
        event.sequence = next_number[event.recorder]
        next_number[event.recorder] += 1
    return closed


def in_span(event: Event, span: Span) -> Span:
    """The span with the event's numbers."""
    numbers = {
        semconv.SEQUENCE.key: event.sequence,
        semconv.REQUEST_SEQUENCE.key: event.request_sequence,
    }
    present = {key: number for key, number in numbers.items() if key in span.attributes}
    return replace(span, attributes={**span.attributes, **present})

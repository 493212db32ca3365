"""New sequence numbers for a part of a history.

Events that were left out must not look lost, and events that the recording lost must still look lost: the numbers of the rest
close up, but a number that is missing in the recording stays missing in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy

from msgspec.structs import replace

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span


class Numbering:
    """The numbers of a recording; renumbers any choice of its events."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        recorded: dict[Hashable, set[int]] = {}
        for event in events:
            for stream, number in streams(event):
                recorded.setdefault(stream, set()).add(number)
        self._lost: dict[Hashable, dict[int, int]] = {
            stream: {number: number - rank for rank, number in enumerate(sorted(numbers))}
            for stream, numbers in recorded.items()
        }
        """How many numbers are missing before each number, by stream."""

    def events(self, kept: Sequence[int]) -> list[Event]:
        """The chosen events with their new numbers; copies, where the numbers change."""
        chosen: dict[Hashable, set[int]] = {}
        for index in kept:
            for stream, number in streams(self._events[index]):
                chosen.setdefault(stream, set()).add(number)
        new = {
            stream: {number: self._lost[stream][number] + rank for rank, number in enumerate(sorted(numbers))}
            for stream, numbers in chosen.items()
        }
        chosen_events = (self._events[index] for index in kept)
        return [numbered(e, {stream: new[stream][number] for stream, number in streams(e)}) for e in chosen_events]


def closed_up(events: Sequence[Event]) -> list[Event]:
    """Events that were chosen from a recording that is not available, numbered one after the other in their recorders'
    streams: what a request lost is still missing among its own numbers."""
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


def streams(event: Event) -> Iterable[tuple[Hashable, int]]:
    """The streams that an event is numbered in, and its number there."""
    yield event.recorder, event.sequence
    if event.request is not None:
        yield (event.engine, event.request, event.recorder), event.request_sequence


def numbered(event: Event, numbers: Mapping[Hashable, int]) -> Event:
    """The event with its number in each of its streams; a copy, if one of them changes."""
    sequence, *of_request = (numbers[stream] for stream, _ in streams(event))
    request_sequence = of_request[0] if of_request else event.request_sequence
    if (sequence, request_sequence) == (event.sequence, event.request_sequence):
        return event
    event = copy(event)
    event.sequence, event.request_sequence = sequence, request_sequence
    return event

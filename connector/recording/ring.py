"""Events that wait to be exported, as tuples in a ring that is bounded in events and in bytes: new ones push out the oldest.

Most events are small, and cost nothing to measure: half of the bytes are for as many of these as fit. What an event has
beyond that, lists of blocks and hashes, is measured as it comes, and has three eighths; the rest is for the batch that is
being sent. While nobody takes them, lists are packed, which makes them five times as small.
"""

from __future__ import annotations

import marshal
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import compress, count
from operator import is_not, itemgetter
from sys import getsizeof
from typing import Any

from kvtrail.tracer.events.events import FIELDS, STEP_FIELDS
from kvtrail.tracer.events.semconv import STEP_SPAN

Identity = tuple[bytes, bytes, str, bool]
"""What the spans of a request share: 16 bytes of trace id and 8 of the root span's id, the id of the caller's span if there
is one, the request's id, and whether OpenTelemetry's sampler chose it."""
EventTuple = tuple[str, bytes, Identity, int, int, int, int, int, str | None, tuple[Any, ...]]
"""kind, encoded source, request, recorder's and request's sequence number, epoch, start and end in nanoseconds of the
monotonic clock, error, and the values of `events.FIELDS[kind]`, or for a step those of `STEP_FIELDS`. Only types
that `marshal` can write, since it leaves the process."""

EVERYTHING = 1 << 62
"""More than a ring holds."""
SMALL = 512
"""Bytes that an event without lists takes at most, about."""
LARGE = 256
"""Bytes of lists and texts from which on they are counted."""
BATCH_BYTES = 2 << 20
"""Bytes of lists and texts that are taken out at once, with those of one event more."""

sequence_of = itemgetter(3)
"""An event's sequence number in its recorder; of a step, that of its first row."""
MAY_BE_LARGE: dict[str, tuple[bool, ...]] = {
    str(kind): tuple(attribute.type in (tuple, bytes, str) for attribute in attributes)
    for kind, attributes in (*FIELDS.items(), (STEP_SPAN, STEP_FIELDS))
}
"""By kind, for each of the values."""
_IS_KNOWN = partial(is_not, None)
_TEXTS = (str, bytes)


def numbers_of(event: EventTuple) -> int:
    """How many sequence numbers an event has: one, and a step one for each of its rows."""
    return len(event[9][0]) if event[0] == STEP_SPAN else 1


def bytes_of(kind: str, values: Sequence[Any]) -> int:
    """About how many bytes the lists and texts of an event take; what is no list or text counts nothing."""
    size = 0
    for value in filter(_IS_KNOWN, compress(values, MAY_BE_LARGE[kind])):
        try:
            size += len(value) if type(value) in _TEXTS else len(value) * (8 + getsizeof(value[0]))
        except Exception:  # an odd object, or an empty list
            continue
    return size


class Ring:
    """Appending a small event takes no lock and computes no length: the numbers of the events taken out show how many were
    dropped.

    Attributes:
        waiting: the events. The recorder appends small ones to it directly.
        numbers: the next sequence numbers.
        crowded_out: how many of the dropped ones had to go for their bytes or those of others.
    """

    def __init__(self, limit: int, most_bytes: int = EVERYTHING) -> None:
        """`limit` is in events, `most_bytes` those of all that waits and of the batch that is being sent, about."""
        self.waiting: deque[EventTuple] = deque(maxlen=max(1, min(limit, most_bytes // 2 // SMALL)))
        self.numbers = count()
        self.crowded_out = 0
        self._lock = threading.Lock()
        self._next = self._dropped = 0
        self._large: deque[tuple[int, int, int]] = deque()
        """Of each large event that waits: its number, the bytes that it takes, and those that it takes unpacked."""
        self._large_bytes, self._most_large = 0, most_bytes * 3 // 8
        self._unpacked_bytes = 0

    def append_large(self, event: EventTuple, size: int) -> None:
        """Append an event with `size` bytes of lists and texts."""
        with self._lock:
            packed = size
            if self._large_bytes > self._most_large // 4 and event[0] != STEP_SPAN:
                event, packed = _packed(event, size)
            waiting = self.waiting
            waiting.append(event)
            self._large.append((sequence_of(event), packed, size))
            self._large_bytes += packed
            self._unpacked_bytes += size
            self._leave(sequence_of(waiting[0]) - 1)  # which small ones have pushed out
            while self._large_bytes > self._most_large and len(waiting) > 1:
                gone = waiting.popleft()
                self.crowded_out += numbers_of(gone)
                self._leave(sequence_of(gone))

    def take(self, most: int, *, least: int = 1, most_bytes: int = BATCH_BYTES) -> list[EventTuple]:
        """Remove and return the oldest events, until they have `most` numbers or `most_bytes`, or more; none if fewer than
        `least` wait, unless these have `most_bytes`."""
        with self._lock:
            waiting = len(self.waiting)
            if waiting < least and (not waiting or self._unpacked_bytes < most_bytes):
                return []
            events: list[EventTuple] = []
            numbers = size = 0
            while numbers < most and size < most_bytes and len(events) < waiting and self.waiting:
                event = self.waiting.popleft()
                size += self._leave(sequence_of(event))
                events.append(_unpacked(event))
                numbers += numbers_of(event)
            after = sequence_of(event) + numbers_of(event)
            self._dropped += after - self._next - numbers
            self._next = after
            return events

    @property
    def next(self) -> int:
        """The number after those of all events taken out so far."""
        return self._next

    @property
    def large_bytes(self) -> int:
        """Bytes of the lists and texts that wait, about."""
        return self._large_bytes

    def skip(self) -> None:
        """Leave out a sequence number, without counting it as dropped."""
        with self._lock:
            next(self.numbers)
            self._next += 1

    @property
    def is_full(self) -> bool:
        """Whether the next event drops one."""
        return len(self.waiting) == self.waiting.maxlen or self._large_bytes > self._most_large * 7 // 8

    @property
    def dropped(self) -> int:
        """How many events were pushed out."""
        with self._lock:
            return max(0, self._dropped + (sequence_of(self.waiting[0]) - self._next if self.waiting else 0))

    def _leave(self, number: int) -> int:
        """The large events up to this number are gone; returns their bytes, unpacked."""
        size = 0
        while self._large and self._large[0][0] <= number:
            _, held, unpacked = self._large.popleft()
            self._large_bytes -= held
            size += unpacked
        self._unpacked_bytes -= size
        return size


def _packed(event: EventTuple, size: int) -> tuple[EventTuple, int]:
    """The event with its values in one byte string, and the bytes that they take; as it is, if it holds what is odd."""
    try:
        values: Any = marshal.dumps(event[9])
    except ValueError:
        return event, size
    return (*event[:9], values), len(values)


def _unpacked(event: EventTuple) -> EventTuple:
    values: Any = event[9]
    return (*event[:9], marshal.loads(values)) if type(values) is bytes else event

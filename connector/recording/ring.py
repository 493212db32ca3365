"""Waiting events as tuples in a ring that is bounded in events and in bytes: when it is full, new events replace the oldest.

Most events are small, and are not measured: half of the bytes are reserved for them. Additional lists of blocks and hashes
are measured on arrival, and have three eighths of the bytes; the rest is for the batch that is being sent. While lists wait,
they are packed to a fifth of their size.
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
"""The common values of a request's spans: 16 bytes of trace id and 8 of the root span's id, the id of the caller's span if
there is one, the request's id, and whether OpenTelemetry's sampler chose it."""
EventTuple = tuple[str, bytes, Identity, int, int, int, int, int, str | None, tuple[Any, ...]]
"""kind, encoded source, request, recorder's and request's sequence number, epoch, start and end in nanoseconds of the
monotonic clock, error, and the values of `events.FIELDS[kind]`, or for a step those of `STEP_FIELDS`. Only types
that `marshal` can write, since it leaves the process."""

EVERYTHING = 1 << 62
"""More than the capacity of a ring."""
SMALL = 512
"""Approximate maximum size of an event without lists, in bytes."""
LARGE = 256
"""Size of lists and texts in bytes from which they are counted."""
BATCH_BYTES = 2 << 20
"""Bytes of lists and texts that are taken at once; the last event may exceed them."""

sequence_of = itemgetter(3)
"""An event's sequence number in its recorder; for a step, the number of its first row."""
MAY_BE_LARGE: dict[str, tuple[bool, ...]] = {
    str(kind): tuple(attribute.type in (tuple, bytes, str) for attribute in attributes)
    for kind, attributes in (*FIELDS.items(), (STEP_SPAN, STEP_FIELDS))
}
"""By kind, for each of the values."""
_IS_KNOWN = partial(is_not, None)
_TEXTS = (str, bytes)


def numbers_of(event: EventTuple) -> int:
    """The number of sequence numbers of an event: one, or one for each row of a step."""
    return len(event[9][0]) if event[0] == STEP_SPAN else 1


def bytes_of(kind: str, values: Sequence[Any]) -> int:
    """The approximate size of an event's lists and texts in bytes; other values count as 0."""
    size = 0
    for value in filter(_IS_KNOWN, compress(values, MAY_BE_LARGE[kind])):
        try:
            size += len(value) if type(value) in _TEXTS else len(value) * (8 + getsizeof(value[0]))
        except Exception:  # an odd object, or an empty list
            continue
    return size


class Ring:
    """A bounded ring of events. Appending a small event takes no lock and computes no length: the numbers of the removed
    events show how many were dropped.

    Attributes:
        waiting: the events. The recorder appends small ones to it directly.
        numbers: the next sequence numbers.
        next: the number after all events taken so far.
        large_bytes: the approximate size of waiting lists and texts in bytes.
        crowded_out: number of events dropped because of the byte limit.
    """

    def __init__(self, limit: int, most_bytes: int = EVERYTHING) -> None:
        """`limit` is in events; `most_bytes` is the approximate limit for all waiting events and the batch that is being
        sent."""
        self.waiting: deque[EventTuple] = deque(maxlen=max(1, min(limit, most_bytes // 2 // SMALL)))
        self.numbers = count()
        self.crowded_out = 0
        self._lock = threading.Lock()
        self.next = self._dropped = 0
        self._large: deque[tuple[int, int, int]] = deque()
        """For each waiting large event: its number, its size, and its unpacked size in bytes."""
        self.large_bytes, self._most_large = 0, most_bytes * 3 // 8
        self._unpacked_bytes = 0

    def append_large(self, event: EventTuple, size: int) -> None:
        """Append an event with `size` bytes of lists and texts."""
        with self._lock:
            packed = size
            if self.large_bytes > self._most_large // 4 and event[0] != STEP_SPAN:
                event, packed = _packed(event, size)
            waiting = self.waiting
            waiting.append(event)
            self._large.append((sequence_of(event), packed, size))
            self.large_bytes += packed
            self._unpacked_bytes += size
            self._leave(sequence_of(waiting[0]) - 1)  # which small ones have replaced
            while self.large_bytes > self._most_large and len(waiting) > 1:
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
            self._dropped += after - self.next - numbers
            self.next = after
            return events

    def skip(self) -> None:
        """Skip a sequence number, without counting it as dropped."""
        with self._lock:
            next(self.numbers)
            self.next += 1

    @property
    def is_full(self) -> bool:
        """Whether the next event drops one."""
        return len(self.waiting) == self.waiting.maxlen or self.large_bytes > self._most_large * 7 // 8

    @property
    def dropped(self) -> int:
        """The number of dropped events."""
        with self._lock:
            return max(0, self._dropped + (sequence_of(self.waiting[0]) - self.next if self.waiting else 0))

    def _leave(self, number: int) -> int:
        """Remove the large events up to this number; returns their unpacked size."""
        size = 0
        while self._large and self._large[0][0] <= number:
            _, held, unpacked = self._large.popleft()
            self.large_bytes -= held
            size += unpacked
        self._unpacked_bytes -= size
        return size


def _packed(event: EventTuple, size: int) -> tuple[EventTuple, int]:
    """The event with its values packed into one byte string, and its size; unchanged, if it has unexpected values."""
    try:
        values: Any = marshal.dumps(event[9])
    except ValueError:
        return event, size
    return (*event[:9], values), len(values)


def _unpacked(event: EventTuple) -> EventTuple:
    values: Any = event[9]
    return (*event[:9], marshal.loads(values)) if type(values) is bytes else event

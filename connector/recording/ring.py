"""Events that wait to be exported, as tuples in a bounded ring: a new event pushes out the oldest."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from operator import itemgetter
from typing import Any

from kvtrail.tracer.model.semconv import STEP_SPAN

Identity = tuple[bytes, bytes, str, bool]
"""What the spans of a request share: 16 bytes of trace id and 8 of the root span's id, the id of the caller's span if there
is one, the request's id, and whether OpenTelemetry's sampler chose it."""
EventTuple = tuple[str, bytes, Identity, int, int, int, int, int, str | None, tuple[Any, ...]]
"""kind, encoded source, request, recorder's and request's sequence number, epoch, start and end in nanoseconds of the
monotonic clock, error, and the values of `semconv.FIELDS[kind]`, or for a step those of `semconv.STEP_FIELDS`. Only types
that `marshal` can write, since it leaves the process."""

sequence_of = itemgetter(3)
"""An event's sequence number in its recorder; of a step, that of its first row."""


def numbers_of(event: EventTuple) -> int:
    """How many sequence numbers an event has: one, and a step one for each of its rows."""
    return len(event[9][0]) if event[0] == STEP_SPAN else 1


class Ring:
    """Appending takes no lock and computes no length: the numbers of the events taken out show how many were dropped.

    Attributes:
        waiting: the events. The recorder appends to it directly.
        numbers: the next sequence numbers.
    """

    def __init__(self, limit: int) -> None:
        self.waiting: deque[EventTuple] = deque(maxlen=limit)
        self.numbers = count()
        self._lock = threading.Lock()
        self._next = self._dropped = 0

    def take(self, most: int, *, least: int = 1) -> list[EventTuple]:
        """Remove and return the oldest events, until they have `most` numbers or more; none if fewer than `least` wait."""
        with self._lock:
            waiting = len(self.waiting)
            if waiting < least:
                return []
            events: list[EventTuple] = []
            numbers = 0
            while numbers < most and len(events) < waiting:
                event = self.waiting.popleft()
                events.append(event)
                numbers += numbers_of(event)
            after = sequence_of(event) + numbers_of(event)
            self._dropped += after - self._next - numbers
            self._next = after
            return events

    @property
    def next(self) -> int:
        """The number after those of all events taken out so far."""
        return self._next

    def skip(self) -> None:
        """Leave out a sequence number, without counting it as dropped."""
        with self._lock:
            next(self.numbers)
            self._next += 1

    @property
    def is_full(self) -> bool:
        """Whether the next event drops one."""
        return len(self.waiting) == self.waiting.maxlen

    @property
    def dropped(self) -> int:
        """How many events were pushed out."""
        with self._lock:
            return max(0, self._dropped + (sequence_of(self.waiting[0]) - self._next if self.waiting else 0))

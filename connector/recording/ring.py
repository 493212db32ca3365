"""Events that wait to be sent: a bounded ring whose oldest events make room for new ones, and that knows how many did."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count

from kvtrail.connector.recording.context import Recorded, number_of


class Ring:
    """Appending takes no lock and asks for no length: what was dropped is known from the numbers of what is taken.

    Attributes:
        waiting: the events; append to it what has been given a number.
        numbers: counts the recorder's events.
    """

    def __init__(self, limit: int) -> None:
        self.waiting: deque[Recorded] = deque(maxlen=limit)
        self.numbers = count()
        self._taking = threading.Lock()
        self._taken_up_to = self._dropped = 0

    def take(self, most: int, *, least: int = 1) -> list[Recorded]:
        """The oldest events; none where there are fewer than `least`."""
        with self._taking:
            held = len(self.waiting)
            if held < least:
                return []
            events = [self.waiting.popleft() for _ in range(min(held, most))]
            up_to = number_of(events[-1]) + 1
            self._dropped += up_to - self._taken_up_to - len(events)
            self._taken_up_to = up_to
            return events

    def skip(self) -> None:
        """Leave out a number. It is not one that was dropped."""
        with self._taking:
            next(self.numbers)
            self._taken_up_to += 1

    @property
    def is_full(self) -> bool:
        """Whether the next event drops one."""
        return len(self.waiting) == self.waiting.maxlen

    @property
    def dropped(self) -> int:
        """How many events made room for others."""
        with self._taking:
            return max(0, self._dropped + (number_of(self.waiting[0]) - self._taken_up_to if self.waiting else 0))

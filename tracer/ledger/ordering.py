"""The numbers of a recorder's events: the next event, the received numbers, and the time ranges of missing events. Pure.

A recorder numbers its events from 0, without gaps. They may arrive in any order and more than once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Event

REMEMBERED_NUMBERS = 64
"""Maximum number of spans remembered for each request and recorder, to distinguish a duplicate from a contradiction."""
MAX_GAPS = 500
"""Maximum number of gaps remembered per recorder; the oldest are forgotten first."""
MAX_EVENTS_PER_S = 1_000_000
"""Maximum number of events per second: each event costs a microsecond of the recorder's thread."""


def is_too_far(number: int, last: int, elapsed_ns: int) -> bool:
    """Whether no recorder can have advanced from the number `last` to this one in this time plus one second."""
    return number - last > MAX_EVENTS_PER_S * (1 + max(0, elapsed_ns) / 1e9)


@dataclass(slots=True)
class Stream:
    """Numbered events in order: the next number to enter, and the events that arrived early."""

    expected: int = 0
    recent: list[str | None] = field(default_factory=list)
    """The spans of the last numbers before the expected one; None for a number that never arrived."""
    early: dict[int, tuple[int, Event]] = field(default_factory=dict)
    """The arrival time, and the event."""
    skipped_to: int = -1
    """Missing events up to this number are no longer waited for."""

    @property
    def may_go_on(self) -> bool:
        """Whether waiting events can be entered, since they are next or the missing ones before them were given up."""
        return bool(self.early) and (self.expected in self.early or self.expected <= self.skipped_to)

    def known(self, number: int) -> str | None:
        """The span with a number before the expected one; None if it is not remembered."""
        back = self.expected - number
        return self.recent[-back] if back <= len(self.recent) else None

    def skip(self, number: int) -> None:
        """Stop waiting for the events before this number."""
        self.recent.extend([None] * min(number - self.expected, REMEMBERED_NUMBERS))
        del self.recent[:-REMEMBERED_NUMBERS]
        self.expected = number

    def is_overdue(self, before_ns: int | None) -> bool:
        """Whether an event waits that arrived before `before_ns`; with None, whether any event waits."""
        early = self.early
        return bool(early) and (before_ns is None or min(at_ns for at_ns, _ in early.values()) < before_ns)


class SeenNumbers:
    """The received numbers of one recorder as ranges."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = [0]
        self._ends = [0]

    @classmethod
    def from_text(cls, text: str) -> SeenNumbers:
        """The numbers that `as_text` gave."""
        seen = cls()
        ends = [tuple(map(int, part.split("-"))) for part in text.split(",")]
        seen._starts, seen._ends = [start for start, _ in ends], [end for _, end in ends]
        return seen

    def as_text(self) -> str:
        """The ranges, each with the number after its last. If there are too many gaps, the oldest are omitted, as if their
        events had arrived: they were given up."""
        starts, ends = self._starts, self._ends
        if len(starts) > MAX_GAPS:
            starts, ends = [starts[0], *starts[-MAX_GAPS + 1 :]], [ends[-MAX_GAPS], *ends[-MAX_GAPS + 1 :]]
        return ",".join(f"{start}-{end}" for start, end in zip(starts, ends, strict=True))

    def copy(self) -> SeenNumbers:
        """An independent copy."""
        copy = SeenNumbers()
        copy._starts, copy._ends = self._starts.copy(), self._ends.copy()
        return copy

    @property
    def last(self) -> int:
        """The highest number seen; -1 if there is none."""
        return self._ends[-1] - 1

    def extend(self, count: int) -> None:
        """Add the `count` numbers that follow the highest."""
        self._ends[-1] += count

    def add(self, number: int) -> bool:
        """Add a number; returns whether it is new."""
        starts, ends = self._starts, self._ends
        if number == ends[-1]:
            ends[-1] += 1
            return True
        at = bisect_right(starts, number) - 1
        if number < ends[at]:
            return False
        joins_next = at + 1 < len(starts) and starts[at + 1] == number + 1
        if number == ends[at]:
            ends[at] = number + 1
            if joins_next:
                ends[at] = ends.pop(at + 1)
                del starts[at + 1]
        elif joins_next:
            starts[at + 1] = number
        else:
            starts.insert(at + 1, number)
            ends.insert(at + 1, number + 1)
        return True


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that have not arrived.

    Attributes:
        first, last: the first and last missing number.
        from_ns, to_ns: the times of the events before and after them, Unix nanoseconds. In between, the history is
            incomplete.
    """

    first: int
    last: int
    from_ns: int
    to_ns: int

    @property
    def missing(self) -> int:
        """The number of missing events."""
        return self.last - self.first + 1


@dataclass(slots=True)
class Gaps:
    """The gaps of one recorder, by number. An event that arrives late closes its gap again."""

    _open: list[Gap] = field(default_factory=list)
    _highest: int | None = None
    _highest_ns: int = 0

    def enter(self, number: int, at_ns: int) -> None:
        """Note that event `number` arrived, and that it happened at `at_ns`."""
        if self._highest is None or number > self._highest:
            if self._highest is not None and number > self._highest + 1:
                self._open.append(Gap(self._highest + 1, number - 1, self._highest_ns, at_ns))
                del self._open[:-MAX_GAPS]
            self._highest, self._highest_ns = number, at_ns
            return
        place = bisect_right(self._open, number, key=lambda gap: gap.first) - 1
        if place < 0 or number > self._open[place].last:
            return
        gap = self._open[place]
        parts = [Gap(gap.first, number - 1, gap.from_ns, at_ns), Gap(number + 1, gap.last, at_ns, gap.to_ns)]
        self._open[place : place + 1] = [part for part in parts if part.missing > 0]

    def enter_all(self, numbers: Sequence[int], at_ns: Sequence[int]) -> None:
        """Note that these events arrived together, and when each happened."""
        if numbers[0] - 1 == self._highest and numbers == [*range(numbers[0], numbers[0] + len(numbers))]:
            self._highest, self._highest_ns = numbers[-1], at_ns[-1]  # the usual case: they continue the previous ones
            return
        for number, moment in zip(numbers, at_ns, strict=True):
            self.enter(number, moment)

    def within(self, from_ns: int, to_ns: int) -> list[Gap]:
        """The gaps that overlap the range of time."""
        return [gap for gap in list(self._open) if gap.from_ns <= to_ns and gap.to_ns >= from_ns]

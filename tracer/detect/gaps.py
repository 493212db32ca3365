"""Where the events of a recorder are missing: between which moments. Pure.

A recorder numbers its events. A number that was left out lies between the moments of its neighbours, so that is where the
history cannot be trusted. What comes late closes its gap again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

MOST_GAPS = 500
"""Gaps that are kept of one recorder; beyond it the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that have not come.

    Attributes:
        first, last: their numbers, both missing.
        from_ns, to_ns: the moments of the events before and after them, Unix nanoseconds.
    """

    first: int
    last: int
    from_ns: int
    to_ns: int

    @property
    def missing(self) -> int:
        """How many events."""
        return self.last - self.first + 1


@dataclass(slots=True)
class Gaps:
    """The gaps of one recorder, in the order of their numbers."""

    _open: list[Gap] = field(default_factory=list)
    _highest: int | None = None
    _highest_ns: int = 0

    def hear(self, number: int, at_ns: int) -> None:
        """Event `number` came, and it happened at `at_ns`."""
        if self._highest is None or number > self._highest:
            if self._highest is not None and number > self._highest + 1:
                self._open.append(Gap(self._highest + 1, number - 1, self._highest_ns, at_ns))
                del self._open[:-MOST_GAPS]
            self._highest, self._highest_ns = number, at_ns
            return
        self._close(number, at_ns)

    def within(self, from_ns: int, to_ns: int) -> list[Gap]:
        """Those that overlap the window."""
        return [gap for gap in list(self._open) if gap.from_ns <= to_ns and gap.to_ns >= from_ns]

    def _close(self, number: int, at_ns: int) -> None:
        place = bisect_right(self._open, number, key=lambda gap: gap.first) - 1
        if place < 0 or number > self._open[place].last:
            return
        gap = self._open[place]
        parts = [
            Gap(gap.first, number - 1, gap.from_ns, at_ns),
            Gap(number + 1, gap.last, at_ns, gap.to_ns),
        ]
        self._open[place : place + 1] = [part for part in parts if part.missing > 0]

"""Chrome's trace events: slices, marks, counters and arrows on the tracks of processes.

Format: the "Trace Event Format", of which https://perfetto.dev/docs/getting-started/other-formats tells. Times are
microseconds since the first event, since a double has no room for nanoseconds of the Unix clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_GRAIN_NS = 125
_GRAINS_A_MICROSECOND = 8
Data = dict[str, Any]
Place = tuple[int, int, int]
"""A process, a track, and a time in nanoseconds."""


@dataclass(slots=True)
class Slice:
    """A stretch of time on a track; where two begin together, the one with the smaller `depth` holds the other."""

    start_ns: int
    end_ns: int
    depth: int
    name: str
    args: Data


def nested(slices: Iterable[Slice]) -> list[Slice]:
    """Slices of one track, each within the one that it begins in: what would reach beyond it is cut."""
    around: list[Slice] = []
    kept = []
    for piece in sorted(slices, key=lambda s: (s.start_ns, s.depth, -s.end_ns)):
        while around and around[-1].end_ns <= piece.start_ns:
            around.pop()
        if around:
            piece.end_ns = min(piece.end_ns, around[-1].end_ns)
        around.append(piece)
        kept.append(piece)
    return kept


class Lanes:
    """Tracks of a process, numbered from `first` on, each given again when what lay on it is over.

    Attributes:
        taken: the numbers of those that were given, in order.
    """

    def __init__(self, first: int) -> None:
        self.taken: list[int] = []
        self._next = first
        self._free: list[tuple[int, int]] = []

    def take(self, start_ns: int, end_ns: int) -> int:
        """A track for what lasts from `start_ns` to `end_ns`; to be asked in the order of `start_ns`."""
        if self._free and self._free[0][0] < start_ns:
            lane = heapq.heappop(self._free)[1]
        else:
            lane = self._next
            self._next += 1
            self.taken.append(lane)
        heapq.heappush(self._free, (end_ns, lane))
        return lane

    def after(self) -> Lanes:
        """Tracks behind all of these."""
        return Lanes(self._next)


class Writer:
    """Puts what happens into the form of trace events, whose times count from `begin_ns`, in Unix nanoseconds."""

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self._processes = 0
        self._flows = 0

    def process(self) -> int:
        """The number of another process."""
        self._processes += 1
        return self._processes

    def header(self, pid: int, name: str) -> Iterator[Data]:
        """A process's name, and its place among the others: by its number."""
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}

    def track(self, pid: int, tid: int, name: str) -> Iterator[Data]:
        """A track's name, and its place in its process: by its number."""
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}

    def at(self, time_ns: int) -> float:
        """Microseconds, exact to the last bit: a reader that makes nanoseconds of them again must find each slice within the
        one that it lies in, or drops it."""
        return (time_ns - self._begin_ns) // _GRAIN_NS / _GRAINS_A_MICROSECOND

    def slice(self, pid: int, tid: int, piece: Slice, category: str) -> Data:
        """A slice on a track."""
        start, end = self.at(piece.start_ns), self.at(piece.end_ns)
        where = {"pid": pid, "tid": tid, "ts": start, "dur": end - start}
        return {"ph": "X", "name": piece.name, "cat": category, **where, "args": piece.args}

    def mark(self, pid: int, tid: int, time_ns: int, name: str, args: Data, category: str) -> Data:
        """A mark at a moment of a track."""
        where = {"pid": pid, "tid": tid, "ts": self.at(time_ns)}
        return {"ph": "i", "s": "t", "name": name, "cat": category, **where, "args": args}

    def counter(self, pid: int, time_ns: int, name: str, value: int) -> Data:
        """What a process's counter of this name stands at from then on."""
        return {"ph": "C", "pid": pid, "tid": 0, "ts": self.at(time_ns), "name": name, "args": {name: value}}

    def arrow(self, name: str, tail: Place, tip: Place) -> Iterator[Data]:
        """An arrow from one slice to another, each told by a time within it."""
        self._flows += 1
        common = {"cat": "finding", "name": name, "id": self._flows}
        for ph, (pid, tid, time_ns) in (("s", tail), ("f", tip)):
            yield {"ph": ph, **common, "pid": pid, "tid": tid, "ts": self.at(time_ns), "bp": "e"}

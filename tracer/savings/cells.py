"""Sums by the minute, and by what they belong to: what the counter adds to, and what a store keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kvtrail.tracer.events.events import Event

MINUTE_S = 60
MINUTE_NS = MINUTE_S * 10**9
HOUR_S = 3600
BY_MINUTE_UP_TO_NS = 6 * HOUR_S * 10**9
LAST_EPOCH = 3
"""Later epochs are counted with this one."""


class Cell(NamedTuple):
    """What a number is added to: the minute as Unix seconds, and what it belongs to."""

    at_s: int
    engine: str
    connector: str
    epoch: int
    measure: str


class Cells(Mapping[Cell, int]):
    """Sums by cell. The cells of a minute, an engine, a connector and an epoch lie together, since an event adds to several
    of them."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str, str, int], dict[str, int]] = {}

    def add(
        self, event: Event, measures: Mapping[str, int], *, epoch: int | None = None, stretch_s: int = MINUTE_S
    ) -> None:
        """Add to the cells of an event's minute, the first one of a longer stretch, and, if no other is given, its epoch."""
        if epoch is None:
            epoch = event.epoch if event.epoch < LAST_EPOCH else LAST_EPOCH
        where = (event.end_ns // (stretch_s * 10**9) * stretch_s, event.engine, event.connector, epoch)
        held = self._held.get(where)
        if held is None:
            held = self._held[where] = {}
        for measure, value in measures.items():
            if value:
                held[measure] = held.get(measure, 0) + value

    def clear(self) -> None:
        """Begin again."""
        self._held.clear()

    def __getitem__(self, cell: Cell) -> int:
        return self._held[cell[:4]][cell.measure]

    def __iter__(self) -> Iterator[Cell]:
        return (Cell(*where, measure) for where, held in self._held.items() for measure in held)

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))


def by_step(cells: Iterable[tuple[Cell, int]]) -> Counter[tuple[int | str, ...]]:
    """The sums of minutes, and of their hours: a range of a week reads hours. A key is the step's seconds, and a cell."""
    sums: Counter[tuple[int | str, ...]] = Counter()
    for cell, value in cells:
        for step_s in (MINUTE_S, HOUR_S):
            sums[step_s, cell.at_s // step_s * step_s, *cell[1:]] += value
    return sums


def interval_s(since_ns: int, until_ns: int) -> int:
    """Seconds of the intervals into which a range of time is split: hours if it is longer than six, else minutes."""
    return MINUTE_S if until_ns - since_ns <= BY_MINUTE_UP_TO_NS else HOUR_S

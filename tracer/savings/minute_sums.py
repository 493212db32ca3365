"""Sums by minute, engine, connector, epoch and measure. The counter adds to them, and a store keeps them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvtrail.tracer.events.events import Event

MINUTE_S = 60
MINUTE_NS = MINUTE_S * 10**9
HOUR_S = 3600
BY_MINUTE_UP_TO_NS = 6 * HOUR_S * 10**9
LAST_EPOCH = 3
"""Later epochs are counted with this one."""
StepKey = tuple[int, int, str, str, int, str]
"""The key of a sum in a store: the length of its interval in seconds, where it begins in Unix seconds, and the engine,
connector, epoch and measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsRow:
    """The sums of one interval, engine, connector and epoch.

    Attributes:
        at_s: where the interval begins, Unix seconds.
        engine, connector, epoch: the labels of the sums; the last epoch includes all later ones.
        measures: the sum of each measure; one that is absent is 0.
    """

    at_s: int
    engine: str
    connector: str
    epoch: int
    measures: Mapping[str, int]


class MinuteSums:
    """Sums by minute, engine, connector, epoch and measure. The sums of one row are stored together, since an event adds to
    several of them."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str, str, int], dict[str, int]] = {}

    def add(
        self, event: Event, measures: Mapping[str, int], *, epoch: int | None = None, stretch_s: int = MINUTE_S
    ) -> None:
        """Add to the sums of an event's minute, or of a longer interval, and of its epoch unless another one is given."""
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
        """Drop all sums."""
        self._held.clear()

    def rows(self) -> list[SavingsRow]:
        """The sums, a row for each interval, engine, connector and epoch."""
        return [
            SavingsRow(at_s=at_s, engine=engine, connector=connector, epoch=epoch, measures=measures)
            for (at_s, engine, connector, epoch), measures in self._held.items()
        ]

    def by_step(self) -> dict[StepKey, int]:
        """The sums of minutes and of hours; a range of a week reads hours."""
        by_step: Counter[StepKey] = Counter()
        for (at_s, engine, connector, epoch), measures in self._held.items():
            for step_s in (MINUTE_S, HOUR_S):
                for measure, value in measures.items():
                    by_step[step_s, at_s // step_s * step_s, engine, connector, epoch, measure] += value
        return by_step

    def __bool__(self) -> bool:
        return any(self._held.values())


def interval_s(since_ns: int, until_ns: int) -> int:
    """The length in seconds of the intervals that divide a range of time: hours for more than six hours, else minutes."""
    return MINUTE_S if until_ns - since_ns <= BY_MINUTE_UP_TO_NS else HOUR_S

"""The sums of savings in ClickHouse, as a tracer writes them.

ClickHouse has no transaction over several tables, and may be asked to write a batch again after it had written a part.
So what is written is not what a batch adds but what this tracer has counted in all, with the number of the last batch in
it. A batch that a sum includes already adds nothing to it. To read a sum is to add up those of all tracers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.savings.minute_sums import by_step
from kvtrail.tracer.store import Batch
from kvtrail.tracer.store.clickhouse.connection import Database
from kvtrail.tracer.store.clickhouse.schema import DIMENSIONS
from kvtrail.tracer.store.request_rows import LARGEST

_MAX_STRETCHES = 500
"""Intervals with sums held in memory; those of others are read when needed."""
_KEYS = ("step_s", "at_s", "engine", "connector", "epoch", "measure")
_AT, _ENGINE = _KEYS.index("at_s"), _KEYS.index("engine")
TABLE = "kvtrail_savings"
COLUMNS = (*_KEYS, "value", "number", "tracer", *DIMENSIONS)

RowKey = tuple[Any, ...]
Total = tuple[int, int]
"""The sum of a key, and the number of the last batch in it."""


class Sums:
    """The running totals of one tracer."""

    def __init__(self, database: Database, tracer: str, described: Callable[[str], tuple[str, ...]]) -> None:
        """`described` gives the dimensions of an engine."""
        self._database, self._tracer, self._described = database, tracer, described
        self._held: OrderedDict[int, dict[RowKey, Total]] = OrderedDict()
        """By stretch of time: all its totals."""

    def rows(self, batches: Sequence[tuple[int, Batch]]) -> list[tuple[Any, ...]]:
        """The rows that include what these batches add, each given with its number. What a row had already is not added
        again."""
        cells: list[tuple[int, Mapping[RowKey, int]]] = [
            (number, by_step(batch.savings.items())) for number, batch in batches
        ]
        self._recall({key[_AT] for _, added in cells for key in added})
        grown: dict[RowKey, Total] = {}
        for number, added in cells:
            for key, more in added.items():
                value, latest = grown.get(key) or self._held[key[_AT]].get(key) or (0, 0)
                if latest < number:
                    grown[key] = (min(value + more, LARGEST), number)
        return [(*key, *total, self._tracer, *self._described(key[_ENGINE])) for key, total in grown.items()]

    def written(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take the totals of these rows for those that are stored."""
        for row in rows:
            self._hold(row)
        while len(self._held) > _MAX_STRETCHES:
            self._held.popitem(last=False)

    def _recall(self, stretches: Iterable[int]) -> None:
        """Read the totals of stretches that are not held: what this tracer wrote before it was started, or long ago."""
        missing = [at_s for at_s in stretches if at_s not in self._held]
        if not missing:
            return
        rows = self._database.ask(
            f"SELECT {', '.join(_KEYS)}, value, number FROM {TABLE} FINAL"
            " WHERE at_s IN {missing:Array(Int64)} AND tracer = {tracer:String}",
            missing=missing,
            tracer=self._tracer,
        )
        self._held.update({at_s: {} for at_s in missing})
        for row in rows:
            self._hold(row)

    def _hold(self, row: Sequence[Any]) -> None:
        key, (value, number) = row[: len(_KEYS)], row[len(_KEYS) : len(_KEYS) + 2]
        self._held[key[_AT]][tuple(key)] = value, number

"""A tracer's sums of savings in ClickHouse.

ClickHouse has no transaction over several tables, and a batch may be sent again after a part of it was written.
So each row has the tracer's running total instead of the increment, and the number of the last batch in
it. A batch that a sum already includes adds nothing. A query adds up the sums of all tracers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.store import Batch
from kvtrail.tracer.store.clickhouse.connection import Database
from kvtrail.tracer.store.clickhouse.schema import DIMENSIONS
from kvtrail.tracer.store.request_rows import LARGEST

_MAX_STRETCHES = 500
"""Maximum number of intervals with sums in memory; other sums are read on demand."""
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
        """The totals, by interval."""

    def rows(self, batches: Sequence[tuple[int, Batch]]) -> list[tuple[Any, ...]]:
        """The rows with the increments of these batches, each given with its number. An increment that a row already includes
        is not added again."""
        cells: list[tuple[int, Mapping[RowKey, int]]] = [(number, batch.savings) for number, batch in batches]
        self._recall({key[_AT] for _, added in cells for key in added})
        grown: dict[RowKey, Total] = {}
        for number, added in cells:
            for key, more in added.items():
                value, latest = grown.get(key) or self._held[key[_AT]].get(key) or (0, 0)
                if latest < number:
                    grown[key] = (min(value + more, LARGEST), number)
        return [(*key, *total, self._tracer, *self._described(key[_ENGINE])) for key, total in grown.items()]

    def written(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Note that the totals of these rows are stored."""
        for row in rows:
            self._hold(row)
        while len(self._held) > _MAX_STRETCHES:
            self._held.popitem(last=False)

    def _recall(self, stretches: Iterable[int]) -> None:
        """Read the totals of intervals that are not in memory: this tracer wrote them before its start, or long ago."""
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

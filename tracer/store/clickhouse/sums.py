"""Sums in ClickHouse: of savings, and of recent activity.

ClickHouse has no transaction over several tables, and may be asked to write a batch again after it had written a part.
So what is written is not what a batch adds but what this tracer has counted in all, with the number of the last batch in
it. A batch that a sum includes already adds nothing to it. To read a sum is to add up those of all tracers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.store.clickhouse.connection import Connection
from kvtrail.tracer.store.clickhouse.schema import DIMENSIONS
from kvtrail.tracer.store.request_rows import LARGEST

_MAX_STRETCHES = 500
"""Intervals with sums held in memory; those of others are read when needed."""

RowKey = tuple[Any, ...]
Total = tuple[int, ...]
"""The sums of a key, and the number of the last batch in them."""


class Sums:
    """One table of running totals.

    Attributes:
        table: its name.
        columns: the columns of its rows.
    """

    def __init__(
        self,
        connection: Connection,
        table: str,
        *,
        keys: tuple[str, ...],
        values: tuple[str, ...],
        tracer: str,
        described: Callable[[str], tuple[str, ...]],
    ) -> None:
        """`keys` are the columns that say what is summed, `at_s` and `engine` among them, and `values` those of the sums.
        `described` gives the dimensions of an engine."""
        self.table, self.columns = table, (*keys, *values, "number", "tracer", *DIMENSIONS)
        self._connection, self._tracer, self._described = connection, tracer, described
        self._keys, self._values = keys, values
        self._at, self._engine = keys.index("at_s"), keys.index("engine")
        self._held: OrderedDict[int, dict[RowKey, Total]] = OrderedDict()
        """By stretch of time: all its totals."""

    def rows(self, batches: Sequence[tuple[int, Mapping[RowKey, tuple[int, ...]]]]) -> list[tuple[Any, ...]]:
        """The rows that include what these batches add, each given by its number and its cells. What a row had already is
        not added again."""
        self._recall({key[self._at] for _, cells in batches for key in cells})
        grown: dict[RowKey, Total] = {}
        for number, cells in batches:
            for key, added in cells.items():
                *sums, latest = grown.get(key) or self._held[key[self._at]].get(key) or (*(0 for _ in added), 0)
                if latest < number:
                    grown[key] = (*(min(have + more, LARGEST) for have, more in zip(sums, added, strict=True)), number)
        return [(*key, *total, self._tracer, *self._described(key[self._engine])) for key, total in grown.items()]

    def written(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take the totals of these rows for those that are stored."""
        for row in rows:
            key, rest = row[: len(self._keys)], row[len(self._keys) :]
            self._held[key[self._at]][key] = rest[: len(self._values) + 1]
        while len(self._held) > _MAX_STRETCHES:
            self._held.popitem(last=False)

    def _recall(self, stretches: Iterable[int]) -> None:
        """Read the totals of stretches that are not held: what this tracer wrote before it was started, or long ago."""
        missing = [at_s for at_s in stretches if at_s not in self._held]
        if not missing:
            return
        rows = self._connection.query(
            f"SELECT {', '.join((*self._keys, *self._values, 'number'))} FROM {self.table} FINAL"
            " WHERE at_s IN {missing:Array(Int64)} AND tracer = {tracer:String}",
            missing=missing,
            tracer=self._tracer,
        )
        self._held.update({at_s: {} for at_s in missing})
        for row in rows:
            key = tuple(row[: len(self._keys)])
            self._held[key[self._at]][key] = tuple(row[len(self._keys) :])

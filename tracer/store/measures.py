"""Measures of requests in both databases: durations, tokens, tenant, prefix, and ending."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.conditions import AMONG, COUNTS, ENDING, TEXTS, TIMES, Condition
from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.store import Group, Selection
from kvtrail.tracer.store.duration_bins import bin_sql
from kvtrail.tracer.store.queries import Database, all_of

WORDS = (*TEXTS, ENDING)
NUMBERS = (*(f"{name}_ns" for name in TIMES), *COUNTS)
"""Columns with NULL for unknown values."""
TOKENS = (*map(str, REUSED), "asked")
"""The held, loaded and total tokens of the prompts; tokens by cause are in `tokens`."""
COLUMNS = ("engine", "started_ns", *WORDS, *NUMBERS, *TOKENS, "tokens")
"""The columns of both databases, in the order of `request_rows.measures_row`."""


def conditions(where: Iterable[Condition], of_cause: str) -> dict[str, Any]:
    """Shared SQL for conditions on a row of measures, each with its value. `of_cause` is the SQL for the tokens of a cause,
    as a format string."""
    found: dict[str, Any] = {}
    for number, each in enumerate(where):
        if each.operator == AMONG:
            found[f"engine || ' ' || {each.name} IN {{value{number}:Array(String)}}"] = each.value
            continue
        column = f"{each.name}_ns" if each.name in TIMES else each.name
        measured = column if column in COLUMNS else of_cause.format(each.name)
        type_ = "String" if isinstance(each.value, str) else "Int64"
        found[f"{measured} {each.operator} {{value{number}:{type_}}}"] = each.value
    return found


class MeasureReader(Database):
    """The part of `Reader` for the measures of requests.

    Attributes:
        of_cause: the SQL for the tokens of a cause, as a format string.
    """

    of_cause: str

    def durations(self, which: Selection, *, of: str, step_ns: int) -> list[tuple[int, int, int]]:
        """The distribution of a time measure over time: for each interval of `step_ns`, by its number since 1970, and each
        bin of `store.duration_bins`, the number of requests that started in it; zeros are omitted."""
        selected, values = self.selected(which)
        rows = self.ask(
            f"SELECT {self.divided.format('started_ns', '{step_ns:Int64}')} AS stretch, {_bins(of)} {selected}"
            f" AND {of}_ns IS NOT NULL GROUP BY stretch, bin ORDER BY stretch, bin",
            step_ns=step_ns,
            **values,
        )
        return [tuple(row) for row in rows]

    def count(self, which: Selection) -> int:
        """The number of these requests."""
        selected, values = self.selected(which)
        return int(self.ask(f"SELECT count(*) {selected}", **values)[0][0])

    def endings(self, which: Selection) -> list[tuple[str, str, int]]:
        """The number of these requests by engine and ending (`liveness.request_outcome.ending_of`)."""
        selected, values = self.selected(which)
        return self.ask(f"SELECT engine, ending, count(*) {selected} GROUP BY engine, ending", **values)

    def groups(
        self, which: Selection, *, by: By, of: str, limit: int, names: Collection[str] | None = None
    ) -> list[Group]:
        """The largest groups of these requests with this time measure, the largest first; with `names`, only these groups."""
        selected, values = self.selected(which)
        if names is not None:
            selected += f" AND {by} IN {{wanted:Array(String)}}"
            values["wanted"] = [*names]
        sums = ", ".join(self.sum_of.format(name) for name in ("asked", *REUSED))
        rows = self.ask(
            f"SELECT {by} AS name, count(*) AS requests, {sums} {selected} GROUP BY name ORDER BY requests DESC, name"
            " LIMIT {limit:UInt32}",
            limit=limit,
            **values,
        )
        groups = {row[0]: Group(*row) for row in rows}
        counts = self.ask(
            f"SELECT {by} AS name, {_bins(of)} {selected} AND {of}_ns IS NOT NULL AND name IN {{names:Array(String)}}"
            " GROUP BY name, bin",
            names=[*groups],
            **values,
        )
        for name, number, count in counts:
            groups[name].bins[number] = count
        return list(groups.values())

    def selected(self, which: Selection, join: str = "") -> tuple[str, dict[str, Any]]:
        """The rest of a query after its columns, and the values of its parameters. `join` follows the table."""
        where, values = all_of(
            {
                "started_ns >= {since_ns:Int64}": which.since_ns,
                "started_ns < {before_ns:Int64}": which.before_ns,
                "engine IN {engines:Array(String)}": which.engines,
                **conditions(which.where, self.of_cause),
            }
        )
        return f"FROM {self.table('request_measures')} {join} {where}", values


def _bins(of: str) -> str:
    """SQL for the bin of a time measure, and the number of requests in it."""
    return f"{bin_sql(f'{of}_ns')} AS bin, count(*)"

"""What requests are measured by, in ClickHouse: durations, tokens by cause, the tenant, the prefix, and how
they ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.conditions import AMONG, COUNTS, ENDING, TEXTS, TIMES, Condition
from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.store import Group, Selection
from kvtrail.tracer.store.clickhouse.database import Database
from kvtrail.tracer.store.duration_bins import bin_sql

FIELDS = (
    "request", "started_ns", "last_ns", *TEXTS, *(f"{name}_ns" for name in TIMES), *COUNTS, "tokens", ENDING,
)  # fmt: skip
"""The columns of a row, besides those of its engine."""
_SUMS = ("arraySum(mapValues(tokens))", *(f"tokens['{cause}']" for cause in REUSED))


def chosen(where: Sequence[Condition]) -> tuple[list[str], dict[str, Any]]:
    """These conditions on the row of a request's measures, and the values by the name of their parameter."""
    values = {
        f"value{number}": [*each.value] if isinstance(each.value, tuple) else each.value
        for number, each in enumerate(where)
    }
    return [_condition(each, name) for each, name in zip(where, values, strict=True)], values


def met(where: Sequence[Condition], *others: str) -> tuple[str, dict[str, Any]]:
    """A condition on a row of a request that its measures meet these and others, and the values by their parameters."""
    conditions, values = chosen(where)
    met_by = f"SELECT engine, request FROM kvtrail_request_measures FINAL WHERE {' AND '.join([*conditions, *others])}"
    return f"(engine, request) IN ({met_by})", values


class MeasureReader(Database):
    """The part of `Reader` that is about the measures of requests."""

    def durations(self, which: Selection, *, of: str, step_ns: int) -> list[tuple[int, int, int]]:
        selected, values = _selected(which)
        value = f"{of}_ns"
        rows = self.query(
            f"SELECT intDiv(started_ns, {{step_ns:Int64}}) AS stretch, {bin_sql(value)} AS bin, count()"
            f" {selected} AND {value} IS NOT NULL GROUP BY stretch, bin ORDER BY stretch, bin",
            step_ns=step_ns,
            **values,
        )
        return [tuple(row) for row in rows]

    def durations_of(self, which: Selection, *, of: Sequence[str]) -> dict[str, dict[int, int]]:
        selected, values = _selected(which)
        return {
            name: dict(
                self.query(
                    f"SELECT {bin_sql(f'{name}_ns')} AS bin, count() {selected} AND {name}_ns IS NOT NULL GROUP BY bin",
                    **values,
                )
            )
            for name in of
        }

    def count(self, which: Selection) -> int:
        selected, values = _selected(which)
        ((count,),) = self.query(f"SELECT count() {selected}", **values)
        return int(count)

    def tokens(self, which: Selection) -> dict[str, int]:
        selected, values = _selected(which)
        ((by_cause,),) = self.query(f"SELECT sumMap(tokens) {selected}", **values)
        return dict(by_cause)

    def groups(
        self, which: Selection, *, by: By, of: str, limit: int, names: Collection[str] | None = None
    ) -> list[Group]:
        selected, values = _selected(which)
        if names is not None:
            selected += f" AND {by} IN {{wanted:Array(String)}}"
            values["wanted"] = [*names]
        sums = ", ".join(f"sum({each})" for each in _SUMS)
        rows = self.query(
            f"SELECT {by} AS name, count() AS requests, {sums} {selected} GROUP BY name ORDER BY requests DESC, name"
            " LIMIT {limit:UInt32}",
            limit=limit,
            **values,
        )
        groups = {row[0]: Group(*row) for row in rows}
        value = f"{of}_ns"
        counts = self.query(
            f"SELECT {by} AS name, {bin_sql(value)} AS bin, count() {selected} AND {value} IS NOT NULL"
            " AND name IN {names:Array(String)} GROUP BY name, bin",
            names=[*groups],
            **values,
        )
        for name, number, count in counts:
            groups[name].bins[number] = count
        return list(groups.values())


def _selected(which: Selection) -> tuple[str, dict[str, Any]]:
    """The rest of a query after what it selects, and the values of its parameters."""
    conditions, values = chosen(which.where)
    conditions += ["started_ns >= {since_ns:Int64}", "started_ns < {before_ns:Int64}"]
    values |= {"since_ns": which.since_ns, "before_ns": which.before_ns}
    if which.engines is not None:
        conditions.append("engine IN {engines:Array(String)}")
        values["engines"] = [*which.engines]
    return f"FROM kvtrail_request_measures FINAL WHERE {' AND '.join(conditions)}", values


def _condition(each: Condition, parameter: str) -> str:
    if each.operator == AMONG:
        return f"concat(engine, ' ', {each.name}) IN {{{parameter}:Array(String)}}"
    if each.name in TEXTS:
        return f"{each.name} {each.operator} {{{parameter}:String}}"
    column = f"{each.name}_ns" if each.name in TIMES else each.name if each.name in COUNTS else f"tokens['{each.name}']"
    return f"{column} {each.operator} {{{parameter}:Int64}}"

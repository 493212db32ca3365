"""What requests are measured by, in a narrow table in the order of their start: durations, tokens by cause, the tenant, the
prefix, and how they ended.

A request's row is beside its account, so a range of time is counted by any of these without reading accounts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any

from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.conditions import AMONG, COUNTS, ENDING, TEXTS, TIMES, UNKNOWN, Condition
from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.store import Group, Selection
from kvtrail.tracer.store.duration_bins import bin_sql
from kvtrail.tracer.store.request_rows import RequestRow
from kvtrail.tracer.store.sqlite.database import Database, to_text, whole_sum

_NOTED = (*COUNTS, *map(str, REUSED), "asked")
LATER = ("prefix", ENDING)
"""Columns that schema 5 added. What a store before it had is `UNKNOWN`, until it is filled in."""
_EARLIER = tuple(name for name in TEXTS if name not in LATER)
_COLUMNS = ("started_ns", "engine", *_EARLIER, *(f"{name}_ns" for name in TIMES), *_NOTED, "tokens", *LATER)
SCHEMA = (
    f"""CREATE TABLE IF NOT EXISTS request_measures (
    number INTEGER NOT NULL,  -- the request's
    started_ns INTEGER NOT NULL, engine TEXT NOT NULL, {", ".join(f"{name} TEXT NOT NULL" for name in _EARLIER)},
    {", ".join(f"{name}_ns INTEGER" for name in TIMES)},
    {", ".join(f"{name} INTEGER" for name in _NOTED)}, tokens TEXT NOT NULL,
    {", ".join(f"{name} TEXT NOT NULL DEFAULT '{UNKNOWN}'" for name in LATER)},
    PRIMARY KEY (started_ns, number)
) WITHOUT ROWID""",
    """CREATE TRIGGER IF NOT EXISTS request_measures_move AFTER UPDATE OF started_ns ON requests
WHEN new.started_ns != old.started_ns BEGIN
    DELETE FROM request_measures WHERE started_ns = old.started_ns AND number = old.number;
END""",
    """CREATE TRIGGER IF NOT EXISTS request_measures_leave AFTER DELETE ON requests BEGIN
    DELETE FROM request_measures WHERE started_ns = old.started_ns AND number = old.number;
END""",
)
_PUT = (
    f"INSERT OR REPLACE INTO request_measures (number, {', '.join(_COLUMNS)})"
    f" SELECT number, {', '.join('?' * len(_COLUMNS))} FROM requests WHERE request = ? AND engine = ?"
)
_values = itemgetter(*_COLUMNS, "request", "engine")
_TOKENS = "CASE WHEN json_valid(tokens) THEN tokens ELSE '{}' END"


def put(db: sqlite3.Connection, rows: Iterable[RequestRow]) -> None:
    """Store the measures of new and changed requests, within the open transaction; the requests are there already."""
    measured = (row.measures for row in rows if row.measures is not None)
    db.executemany(_PUT, [_values({**each, "tokens": to_text(each["tokens"])}) for each in measured])


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop the measures of requests that began since then, within the open transaction."""
    db.execute("DELETE FROM request_measures WHERE started_ns >= ?", (since_ns,))


def met(where: Iterable[Condition]) -> dict[str, int | str]:
    """Conditions on a row of this table that its request's measures meet these, each with its value."""
    of_row = "m.started_ns = requests.started_ns AND m.number = requests.number"
    return {
        f"EXISTS (SELECT 1 FROM request_measures AS m WHERE {of_row} AND {_condition(each, 'm.')})": _value(each)
        for each in where
    }


class MeasureReader(Database):
    """The part of `Reader` that is about the measures of requests."""

    def durations(self, which: Selection, *, of: str, step_ns: int) -> list[tuple[int, int, int]]:
        conditions, values = _selected(which)
        value = f"{of}_ns"
        return self.query(
            f"SELECT started_ns / ?, {bin_sql(value)}, count(*) FROM request_measures",
            [*conditions, f"{value} IS NOT NULL"],
            [step_ns, *values],
            "GROUP BY 1, 2",
        )

    def durations_of(self, which: Selection, *, of: Sequence[str]) -> dict[str, dict[int, int]]:
        conditions, values = _selected(which)
        counts: dict[str, dict[int, int]] = {}
        for name in of:
            value = f"{name}_ns"
            counts[name] = dict(
                self.query(
                    f"SELECT {bin_sql(value)}, count(*) FROM request_measures",
                    [*conditions, f"{value} IS NOT NULL"],
                    values,
                    "GROUP BY 1",
                )
            )
        return counts

    def count(self, which: Selection) -> int:
        conditions, values = _selected(which)
        ((count,),) = self.query("SELECT count(*) FROM request_measures", conditions, values)
        return int(count)

    def tokens(self, which: Selection) -> dict[str, int]:
        conditions, values = _selected(which)
        sums = self.query(
            f"SELECT t.key, {whole_sum('t.value')} FROM request_measures CROSS JOIN json_each({_TOKENS}) AS t",
            conditions,
            values,
            "GROUP BY 1",
        )
        return dict(sums)

    def groups(
        self, which: Selection, *, by: By, of: str, limit: int, names: Collection[str] | None = None
    ) -> list[Group]:
        conditions, values = _selected(which)
        if names is not None:
            conditions.append(f"{by} IN (SELECT value FROM json_each(?))")
            values.append(to_text([*names]))
        sums = ", ".join(whole_sum(each) for each in ("asked", *REUSED))
        groups = {
            row[0]: Group(*row)
            for row in self.query(
                f"SELECT {by}, count(*), {sums} FROM request_measures",
                conditions,
                values,
                f"GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {int(limit)}",
            )
        }
        value = f"{of}_ns"
        for group, number, count in self.query(
            f"SELECT {by}, {bin_sql(value)}, count(*) FROM request_measures",
            [*conditions, f"{value} IS NOT NULL", f"{by} IN (SELECT value FROM json_each(?))"],
            [*values, to_text([*groups])],
            "GROUP BY 1, 2",
        ):
            groups[group].bins[number] = count
        return list(groups.values())


def _selected(which: Selection) -> tuple[list[str], list[Any]]:
    """The conditions on a row of measures, and their values."""
    conditions = ["started_ns >= ?", "started_ns < ?"]
    values: list[Any] = [which.since_ns, which.before_ns]
    if which.engines is not None:
        conditions.append("engine IN (SELECT value FROM json_each(?))")
        values.append(to_text([*which.engines]))
    return [*conditions, *map(_condition, which.where)], [*values, *map(_value, which.where)]


def _condition(each: Condition, row: str = "") -> str:
    """A condition on a row of measures, which is named where those of another table are beside it."""
    if each.operator == AMONG:
        return f"{row}engine || ' ' || {row}{each.name} IN (SELECT value FROM json_each(?))"
    if each.name in TIMES:
        return f"{each.name}_ns {each.operator} ?"
    if each.name in _NOTED or each.name in TEXTS:
        return f"{each.name} {each.operator} ?"
    return f"coalesce({_TOKENS} ->> '{each.name}', 0) {each.operator} ?"


def _value(each: Condition) -> int | str:
    return to_text([*each.value]) if isinstance(each.value, tuple) else each.value

"""What requests are measured by, in a narrow table in the order of their start: durations, tokens by cause, and the tenant.

A request's row is beside its account, so a range of time is counted by any of these without reading accounts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.conditions import COUNTS, TEXTS, TIMES, UNKNOWN, Condition
from kvtrail.tracer.store import LARGEST, By, Group, Selection
from kvtrail.tracer.store.duration_bins import bin_sql
from kvtrail.tracer.store.sqlite.database import Database, to_text, whole_sum

_NOTED = (*COUNTS, *map(str, REUSED), "asked")
_COLUMNS = ("started_ns", "engine", *TEXTS, *(f"{name}_ns" for name in TIMES), *_NOTED, "tokens")
SCHEMA = (
    f"""CREATE TABLE IF NOT EXISTS request_measures (
    number INTEGER NOT NULL,  -- the request's
    started_ns INTEGER NOT NULL, engine TEXT NOT NULL, {", ".join(f"{name} TEXT NOT NULL" for name in TEXTS)},
    {", ".join(f"{name}_ns INTEGER" for name in TIMES)},
    {", ".join(f"{name} INTEGER" for name in _NOTED)}, tokens TEXT NOT NULL,
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
_TOKENS = "CASE WHEN json_valid(tokens) THEN tokens ELSE '{}' END"


def put(db: sqlite3.Connection, accounts: Iterable[Mapping[str, Any]]) -> None:
    """Store the measures of new and changed accounts, within the open transaction; their requests are there already."""
    db.executemany(_PUT, (_row(account) for account in accounts if "times" in account))


def forget(db: sqlite3.Connection, *, since_ns: int) -> None:
    """Drop the measures of requests that began since then, within the open transaction."""
    db.execute("DELETE FROM request_measures WHERE started_ns >= ?", (since_ns,))


def met(where: Iterable[Condition]) -> dict[str, int | str]:
    """Conditions on a row of `requests` that its measures meet these, each with its value."""
    of_row = "m.started_ns = requests.started_ns AND m.number = requests.number"
    return {
        f"EXISTS (SELECT 1 FROM request_measures AS m WHERE {of_row} AND {_condition(each)})": each.value
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

    def groups(self, which: Selection, *, by: By, of: str, limit: int) -> list[Group]:
        conditions, values = _selected(which)
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
    return [*conditions, *map(_condition, which.where)], [*values, *(each.value for each in which.where)]


def _condition(each: Condition) -> str:
    if each.name in TIMES:
        return f"{each.name}_ns {each.operator} ?"
    if each.name in _NOTED or each.name in TEXTS:
        return f"{each.name} {each.operator} ?"
    return f"coalesce({_TOKENS} ->> '{each.name}', 0) {each.operator} ?"


def _row(account: Mapping[str, Any]) -> tuple[Any, ...]:
    times, tokens = account["times"], account["tokens"]
    asked = sum(tokens.values())
    held, loaded = (tokens.get(cause, 0) for cause in REUSED)
    computed = asked - held - loaded if tokens else None
    counts = (account["prompt"], computed, account["recomputed"], account["epoch"])
    sums = (None if count is None else min(count, LARGEST) for count in (*counts, held, loaded, asked))
    texts = (account["identity"] or UNKNOWN, account["connector"] or UNKNOWN)
    spent = (times.get(name) for name in TIMES)
    return (
        account["started_ns"],
        account["engine"],
        *texts,
        *spent,
        *sums,
        to_text(tokens),
        account["request"],
        account["engine"],
    )

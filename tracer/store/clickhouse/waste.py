"""What admissions computed again although a cache had held it, in ClickHouse, over all tracers."""

from __future__ import annotations

from collections.abc import Sequence

from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.savings.waste import WasteFilter, WasteSum
from kvtrail.tracer.store.clickhouse.database import Database, all_of


class WasteReader(Database):
    """The part of `Reader` that is about wasted tokens."""

    def wasted(self, by: Sequence[By], which: WasteFilter, *, limit: int) -> list[WasteSum]:
        columns = ", ".join(by)
        conditions, values = all_of(
            {
                "at_ns >= {since_ns:Int64}": which.since_ns,
                "at_ns < {until_ns:Int64}": which.until_ns,
                "engine = {engine:String}": which.engine,
                "tenant = {tenant:String}": which.tenant,
                "cause = {cause:String}": which.cause,
                "engine IN {engines:Array(String)}": None if which.engines is None else [*which.engines],
                "prefix IN {prefixes:Array(String)}": None if which.prefixes is None else [*which.prefixes],
            }
        )
        rows = self.query(
            f"SELECT {columns}, sum(tokens) AS summed, toInt64(sum(admissions)), min(start), max(at_ns)"
            f" FROM kvtrail_waste FINAL {conditions} GROUP BY {columns} ORDER BY summed DESC, {columns}"
            " LIMIT {limit:UInt32}",
            limit=limit,
            **values,
        )
        return [WasteSum(tuple(row[: len(by)]), *row[len(by) :]) for row in rows]

    def wasted_from(self, which: WasteFilter, *, limit: int) -> int:
        rows = self.query(
            "SELECT at_ns FROM kvtrail_waste FINAL WHERE at_ns >= {since_ns:Int64} AND at_ns < {until_ns:Int64}"
            " ORDER BY at_ns DESC LIMIT 1 OFFSET {limit:UInt64}",
            since_ns=which.since_ns,
            until_ns=which.until_ns,
            limit=limit,
        )
        return rows[0][0] + 1 if rows else which.since_ns

"""The sums of what the offload saved, and of recent activity, in ClickHouse, over all tracers."""

from __future__ import annotations

from kvtrail.tracer.savings.minute_sums import SavingsRow, interval_s
from kvtrail.tracer.store import ACTIVITY_S, Amounts
from kvtrail.tracer.store.clickhouse.database import Database


class SavingsReader(Database):
    """The part of `Reader` that is about sums."""

    def savings(self, *, since_ns: int, until_ns: int, stretch_s: int = 1) -> list[SavingsRow]:
        step_s = interval_s(since_ns, until_ns)
        rows = self.query(
            """SELECT begin_s, engine, connector, epoch, groupArray((measure, total)) FROM (
                SELECT intDiv(at_s, {stretch_s:Int64}) * {stretch_s:Int64} AS begin_s, engine, connector, epoch, measure,
                       sum(value) AS total
                FROM kvtrail_savings FINAL
                WHERE step_s = {step_s:UInt32} AND at_s >= {since_s:Int64} AND at_s < {until_s:Int64}
                GROUP BY begin_s, engine, connector, epoch, measure
            )
            GROUP BY begin_s, engine, connector, epoch ORDER BY begin_s, engine, connector, epoch""",
            step_s=step_s,
            stretch_s=max(step_s, stretch_s),
            since_s=since_ns // 10**9 // step_s * step_s,
            until_s=-(-until_ns // 10**9),
        )
        return [
            SavingsRow(at_s=at_s, engine=engine, connector=connector, epoch=epoch, measures=dict(measures))
            for at_s, engine, connector, epoch, measures in rows
        ]

    def activity(self, *, since_ns: int) -> dict[str, dict[str, int]]:
        rows = self.query(
            f"SELECT kind, {', '.join(f'sum({name})' for name in Amounts._fields)} FROM kvtrail_activity FINAL"
            " WHERE at_s >= {since_s:Int64} GROUP BY kind",
            since_s=since_ns // 10**9 // ACTIVITY_S * ACTIVITY_S,
        )
        return {kind: dict(zip(("count", *Amounts._fields[1:]), sums, strict=True)) for kind, *sums in rows}

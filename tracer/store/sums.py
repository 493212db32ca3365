"""The sums of savings and of wasted tokens: queries for both databases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.savings.minute_sums import SavingsRow, interval_s
from kvtrail.tracer.savings.waste import WasteFilter, WasteSum
from kvtrail.tracer.store.queries import Database, all_of


class SumReader(Database):
    """The part of `Reader` for savings and wasted tokens.

    Attributes:
        pairs: the SQL for all measures of a group with their totals.
    """

    pairs: str

    @abstractmethod
    def measures_of(self, pairs: Any) -> dict[str, int]:
        """The value of `pairs` as data."""

    def savings(
        self, *, since_ns: int, until_ns: int, stretch_s: int = 1, engines: Sequence[str] | None = None
    ) -> list[SavingsRow]:
        """The sums of a time range by interval, engine, connector and epoch; of any engine, or of these.

        An interval is a minute, or an hour in ranges longer than six hours, and the first one is always complete.
        `stretch_s` requests longer ones, which are multiples of these.
        """
        step_s = interval_s(since_ns, until_ns)
        conditions, values = all_of(
            {
                "step_s = {step_s:UInt32}": step_s,
                "at_s >= {since_s:Int64}": since_ns // 10**9 // step_s * step_s,
                "at_s < {until_s:Int64}": -(-until_ns // 10**9),
                "engine IN {engines:Array(String)}": engines,
            }
        )
        begin = f"{self.divided.format('at_s', '{stretch_s:Int64}')} * {{stretch_s:Int64}}"
        # Sum up before measures are combined: a range of hours has many more minutes than intervals.
        sums = (
            f"SELECT {begin} AS begin_s, engine, connector, epoch, measure, {self.sum_of.format('value')} AS total"
            f" FROM {self.table('savings')} {conditions} GROUP BY begin_s, engine, connector, epoch, measure"
        )
        rows = self.ask(
            f"SELECT begin_s, engine, connector, epoch, {self.pairs} FROM ({sums})"
            " GROUP BY begin_s, engine, connector, epoch ORDER BY begin_s, engine, connector, epoch",
            stretch_s=max(step_s, stretch_s),
            **values,
        )
        return [
            SavingsRow(at_s=at_s, engine=engine, connector=connector, epoch=epoch, measures=self.measures_of(pairs))
            for at_s, engine, connector, epoch, pairs in rows
        ]

    def wasted(self, by: Sequence[By], which: WasteFilter, *, limit: int) -> list[WasteSum]:
        """Tokens that admissions recomputed, summed up by one or more labels, the most tokens first."""
        columns = ", ".join(by)
        conditions, values = all_of(
            {
                "at_ns >= {since_ns:Int64}": which.since_ns,
                "at_ns < {until_ns:Int64}": which.until_ns,
                "tenant = {tenant:String}": which.tenant,
                "cause = {cause:String}": which.cause,
                "engine IN {engines:Array(String)}": which.engines,
                "prefix IN {prefixes:Array(String)}": which.prefixes,
            }
        )
        tokens, admissions = (self.sum_of.format(name) for name in ("tokens", "admissions"))
        rows = self.ask(
            f"SELECT {columns}, {tokens} AS summed, {admissions}, min(start), max(at_ns)"
            f" FROM {self.table('waste')} {conditions} GROUP BY {columns} ORDER BY summed DESC, {columns}"
            " LIMIT {limit:UInt32}",
            limit=limit,
            **values,
        )
        return [WasteSum(tuple(row[: len(by)]), *row[len(by) :]) for row in rows]

    def wasted_from(self, which: WasteFilter, *, limit: int) -> int:
        """The admission time of the first among the latest `limit` rows of `wasted` in the filter's time range; its
        `since_ns` if there are no more rows."""
        rows = self.ask(
            f"SELECT at_ns FROM {self.table('waste')} WHERE at_ns >= {{since_ns:Int64}} AND at_ns < {{until_ns:Int64}}"
            " ORDER BY at_ns DESC LIMIT 1 OFFSET {limit:UInt64}",
            since_ns=which.since_ns,
            until_ns=which.until_ns,
            limit=limit,
        )
        return rows[0][0] + 1 if rows else which.since_ns

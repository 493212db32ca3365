"""Requests in ClickHouse: counted, and found by their ids, status and verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.store import Sort
from kvtrail.tracer.store.clickhouse import measures
from kvtrail.tracer.store.clickhouse.connection import ASKED_TOGETHER, Database
from kvtrail.tracer.store.queries import all_of
from kvtrail.tracer.store.request_rows import StoredRequest

_COUNTED = {
    "requests": "count()",
    "running": "countIf(ended_ns IS NULL)",
    "lookups": "sum(lookups)",
    "matched": "sum(longest_match)",
    "loaded": "sum(loaded)",
    "stored": "sum(stored)",
    "preemptions": "sum(epoch)",
    "drifting": "countIf(findings > 0)",
    "findings": "(SELECT count() FROM kvtrail_findings FINAL)",
}
_FIRST = {
    Sort.WAITING: "waited_ns DESC,",
    Sort.RECOMPUTED: "recomputed DESC,",
    Sort.LOADS: "loads DESC,",
    Sort.FINDINGS: "findings DESC,",
    Sort.DURATION: "last_ns - started_ns DESC,",
}
"""What requests are sorted by before their start."""
_BY_ID = (
    "(request = {id:String} OR external = {id:String})",
    "(trace_id = {id:String} AND trace_id != '')",
    # An OpenAI API's caller saw `cmpl-1`, while vLLM's external ids of the prompts are `cmpl-1-0`, `cmpl-1-1`, and so on.
    "startsWith(external, concat({id:String}, '-'))",
)
"""What a request may be asked for by, the nearest first."""
_STORED = "engine, status, outcome, account"
_NAMED = (
    "request IN {requests:Array(String)}"
    " AND (request, engine) IN arrayZip({requests:Array(String)}, {engines:Array(String)})"
)


def _stored(row: Sequence[Any]) -> StoredRequest:
    """The request in a row of `_STORED`."""
    engine, status, outcome, account = row
    return StoredRequest(engine, status, outcome, account.encode())


class RequestReader(Database):
    """The part of `Reader` that is about requests."""

    def totals(self) -> dict[str, int]:
        (row,) = self.ask(f"SELECT {', '.join(_COUNTED.values())} FROM kvtrail_requests FINAL")
        return dict(zip(_COUNTED, row, strict=True))

    def requests(
        self,
        *,
        search: str = "",
        status: str = "",
        verdict: str = "",
        engines: Sequence[str] | None = None,
        limit: int = 100,
        since_ns: int | None = None,
        before_ns: int | None = None,
        where: Sequence[Condition] = (),
        sort: Sort = Sort.LATEST,
    ) -> list[StoredRequest]:
        conditions, values = all_of(
            {
                "started_ns >= {since_ns:Int64}": since_ns,
                "started_ns < {before_ns:Int64}": before_ns,
                "engine IN {engines:Array(String)}": engines,
                "status = {status:String}": status,
                "verdict = {verdict:String}": verdict,
                "(position(request, {search:String}) > 0 OR position(external, {search:String}) > 0"
                " OR trace_id = {search:String})": search,
            }
        )
        if where:
            condition, compared = measures.met(where)
            values |= compared
            conditions += f" AND {condition}"
        order = f"ORDER BY {_FIRST.get(sort, '')} started_ns DESC, request LIMIT {{limit:UInt32}}"
        # First who it is, from narrow columns; then the accounts of these few.
        rows = self.ask(
            f"""SELECT {_STORED} FROM kvtrail_requests FINAL
            WHERE (engine, request) IN (SELECT engine, request FROM kvtrail_requests FINAL {conditions} {order})
            {order}""",
            limit=limit,
            **values,
        )
        return list(map(_stored, rows))

    def outcomes(self, of: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str | None]]:
        found: dict[tuple[str, str], tuple[str, str | None]] = {}
        wanted = iter(of)
        while some := [*islice(wanted, ASKED_TOGETHER)]:
            engines, requests = zip(*some, strict=True)
            select = f"SELECT engine, request, status, outcome FROM kvtrail_requests FINAL WHERE {_NAMED}"
            for engine, request, *about in self.ask(select, engines=[*engines], requests=[*requests]):
                found[engine, request] = tuple(about)
        return found

    def outcome_counts(
        self, *, since_ns: int, before_ns: int, engines: Sequence[str] | None = None
    ) -> list[tuple[str, str, str | None, int]]:
        conditions, values = all_of(
            {
                "started_ns >= {since_ns:Int64}": since_ns,
                "started_ns < {before_ns:Int64}": before_ns,
                "engine IN {engines:Array(String)}": engines,
            }
        )
        return self.ask(
            "SELECT if(status = 'finished', '', engine) AS of, status, outcome, count()"
            f" FROM kvtrail_requests FINAL {conditions} GROUP BY of, status, outcome",
            **values,
        )

    def request(self, request: str, *, engine: str = "") -> StoredRequest | None:
        for condition in _BY_ID:
            conditions, values = all_of({condition: request, "engine = {engine:String}": engine})
            rows = self.ask(
                f"SELECT {_STORED} FROM kvtrail_requests FINAL {conditions} ORDER BY started_ns DESC LIMIT 1", **values
            )
            if rows:
                return _stored(rows[0])
        return None

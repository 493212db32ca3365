"""Requests in ClickHouse: counted, and found by their ids, status and verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.store import Sort
from kvtrail.tracer.store.clickhouse import measures
from kvtrail.tracer.store.clickhouse.database import ASKED_TOGETHER, NAMED, Database, all_of
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
    Sort.WAITING: "JSONExtractInt(account, 'waited_ns') DESC,",
    Sort.RECOMPUTED: "JSONExtractInt(account, 'recomputed') DESC,",
    Sort.LOADS: "JSONExtractInt(account, 'loads') DESC,",
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

_STORED = "engine, status, JSONExtractString(account, 'reason'), account"


def _stored(row: Sequence[Any]) -> StoredRequest:
    """The request in a row of `_STORED`."""
    engine, status, outcome, account = row
    return StoredRequest(engine, status, outcome or None, account.encode())


class RequestReader(Database):
    """The part of `Reader` that is about requests."""

    def totals(self) -> dict[str, int]:
        (row,) = self.query(f"SELECT {', '.join(_COUNTED.values())} FROM kvtrail_requests FINAL")
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
                "engine IN {engines:Array(String)}": None if engines is None else [*engines],
                "status = {status:String}": status,
                "verdict = {verdict:String}": verdict,
                "(position(request, {search:String}) > 0 OR position(external, {search:String}) > 0"
                " OR trace_id = {search:String})": search,
            }
        )
        if where:
            begun = [] if since_ns is None else ["started_ns >= {since_ns:Int64}"]
            condition, compared = measures.met(where, *begun)
            values |= compared
            conditions += f" AND {condition}"
        order = f"ORDER BY {_FIRST.get(sort, '')} started_ns DESC, request LIMIT {{limit:UInt32}}"
        # First who it is, from narrow columns; then the accounts of these few.
        rows = self.query(
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
            rows = self.query(
                f"SELECT engine, request, status, JSONExtractString(account, 'reason') FROM kvtrail_requests FINAL"
                f" WHERE {NAMED}",
                engines=[*engines],
                requests=[*requests],
            )
            found |= {(engine, request): (status, outcome or None) for engine, request, status, outcome in rows}
        return found

    def outcome_counts(
        self, *, since_ns: int, before_ns: int, engines: Sequence[str] | None = None
    ) -> list[tuple[str, str, str | None, int]]:
        conditions, values = all_of(
            {
                "started_ns >= {since_ns:Int64}": since_ns,
                "started_ns < {before_ns:Int64}": before_ns,
                "engine IN {engines:Array(String)}": None if engines is None else [*engines],
            }
        )
        rows = self.query(
            "SELECT if(status = 'finished', '', engine) AS of, status, JSONExtractString(account, 'reason') AS reason,"
            " count()"
            f" FROM kvtrail_requests FINAL {conditions} GROUP BY of, status, reason",
            **values,
        )
        return [(engine, status, reason or None, count) for engine, status, reason, count in rows]

    def request(self, request: str, *, engine: str = "") -> StoredRequest | None:
        for condition in _BY_ID:
            conditions, values = all_of({condition: request, "engine = {engine:String}": engine})
            rows = self.query(
                f"SELECT {_STORED} FROM kvtrail_requests FINAL {conditions} ORDER BY started_ns DESC LIMIT 1", **values
            )
            if rows:
                return _stored(rows[0])
        return None

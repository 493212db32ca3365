"""Requests: queries for both databases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.store import Sort, StoreError
from kvtrail.tracer.store.damage import readable
from kvtrail.tracer.store.queries import Database, all_of
from kvtrail.tracer.store.request_rows import StoredRequest

_FIRST = {
    Sort.WAITING: "waited_ns DESC,",
    Sort.RECOMPUTED: "recomputed DESC,",
    Sort.LOADS: "loads DESC,",
    Sort.FINDINGS: "findings DESC,",
    Sort.DURATION: "last_ns - started_ns DESC,",
}
"""Sort expressions that precede the start time."""


class RequestReader(Database):
    """The part of `Reader` for requests.

    Attributes:
        find: the SQL function that finds a text in another.
        stored: the columns of `StoredRequest`.
    """

    find: str
    stored: str

    @abstractmethod
    def unpacked(self, body: Any) -> bytes:
        """The JSON of an account. Raises ValueError if it is damaged."""

    @abstractmethod
    def met(self, where: Sequence[Condition]) -> tuple[str, dict[str, Any]]:
        """The SQL condition that a request's measures meet these conditions, and the values of its parameters."""

    @abstractmethod
    def of_trace(self, trace_id: str) -> dict[str, Any]:
        """The SQL conditions that a request belongs to this trace, with their values."""

    def meeting(
        self,
        *,
        search: str = "",
        status: str = "",
        verdict: str = "",
        engines: Sequence[str] | None = None,
        since_ns: int | None = None,
        before_ns: int | None = None,
        where: Sequence[Condition] = (),
    ) -> tuple[str, dict[str, Any]]:
        """A WHERE clause with the conditions of `Reader.requests`, and the values of its parameters."""
        conditions, values = all_of(
            {
                "started_ns >= {since_ns:Int64}": since_ns,
                "started_ns < {before_ns:Int64}": before_ns,
                "engine IN {engines:Array(String)}": engines,
                "status = {status:String}": status,
                "verdict = {verdict:String}": verdict,
                f"({self.find}(request, {{search:String}}) > 0 OR {self.find}(external, {{search:String}}) > 0"
                " OR trace_id = {search:String})": search,
            }
        )
        if where:
            condition, compared = self.met(where)
            return f"{conditions} AND {condition}", values | compared
        return conditions, values

    def totals(self) -> dict[str, int]:
        """Over all requests: `requests`, `running`, `lookups`, `matched`, `loaded`, `stored`, `preemptions`, `drifting`
        and `findings`."""
        counted = {
            "requests": "count(*)",
            "running": "count(*) - count(ended_ns)",
            "lookups": self.sum_of.format("lookups"),
            "matched": self.sum_of.format("longest_match"),
            "loaded": self.sum_of.format("loaded"),
            "stored": self.sum_of.format("stored"),
            "preemptions": self.sum_of.format("epoch"),
            "drifting": self.sum_of.format("findings > 0"),
            "findings": f"(SELECT count(*) FROM {self.table('findings')})",
        }
        (row,) = self.ask(f"SELECT {', '.join(counted.values())} FROM {self.table('requests')}")
        return dict(zip(counted, row, strict=True))

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
        """Requests that started at or after `since_ns` and before `before_ns`; `search` is a part of either id, or a whole
        trace id, `engines` selects engines (None means any), and all conditions of `where` are met."""
        conditions, values = self.meeting(
            search=search,
            status=status,
            verdict=verdict,
            engines=engines,
            since_ns=since_ns,
            before_ns=before_ns,
            where=where,
        )
        table = self.table("requests")
        order = f"ORDER BY {_FIRST.get(sort, '')} started_ns DESC, request LIMIT {{limit:UInt32}}"
        # First the ids from narrow columns; then the accounts of these few requests.
        chosen = f"SELECT engine, request FROM {table} {conditions} {order}"
        select = f"SELECT {self.stored} FROM {table} WHERE (engine, request) IN ({chosen}) {order}"
        return readable(self.ask(select, limit=limit, **values), self.stored_request, of="requests")

    def outcomes(self, of: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str | None]]:
        """The `status` and `outcome` of the accounts of known requests among these, by engine and id."""
        rows = self.ask_in_parts(
            f"SELECT engine, request, status, outcome FROM {self.table('requests')} WHERE request IN {{names:Array(String)}}",
            {request for _, request in of},
        )
        return {(engine, request): (status, how) for engine, request, status, how in rows if (engine, request) in of}

    def request(self, request: str, *, engine: str = "") -> StoredRequest | None:
        """One request by its engine's or external id; the latest one if an external id was used twice."""
        for conditions in (
            {"(request = {id:String} OR external = {id:String})": request},
            self.of_trace(request),
            # The caller of an OpenAI API saw `cmpl-1`, while vLLM's external ids of the prompts are `cmpl-1-0`, `cmpl-1-1`,
            # and so on. A dot sorts right after a dash.
            {"external >= {id:String} || '-' AND external < {id:String} || '.'": request},
        ):
            where, values = all_of({**conditions, "engine = {engine:String}": engine})
            rows = self.ask(
                f"SELECT {self.stored} FROM {self.table('requests')} {where} ORDER BY started_ns DESC LIMIT 1", **values
            )
            if rows and not (found := readable(rows, self.stored_request, of="requests")):
                raise StoreError(f"the row of {request!r} is damaged; `kvtrail store rebuild` restores it")
            if rows:
                return found[0]
        return None

    def stored_request(self, row: Sequence[Any]) -> StoredRequest:
        """The request in a row of `stored`. Raises ValueError if it is damaged."""
        engine, status, outcome, body = row
        return StoredRequest(engine, status, outcome, self.unpacked(body))

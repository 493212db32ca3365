"""callers-gave-up: waiting for the connector ends only when the callers give up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvtrail.tracer.events.events import Alloc, Event, Heartbeat, Lookup, Received, RequestEnd
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule, KnownBy
from kvtrail.tracer.rules.loads.stuck_load import within_s

LEAST = 3
"""Requests in a row: one or two callers may have left for reasons of their own."""
ABORTED = "aborted"
"""The outcome of a request that its caller ended."""
ASKED_AGAIN_NS = 5 * 10**9
"""A request was still being deferred if it was asked again so soon before its end."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Consecutive requests that were given up while they waited for one connector, which has ended nobody's waiting since.

    Attributes:
        first: when the first of them began to wait.
        last: the end of the latest.
        count: how many there are.
        waited_ns: how long the connector is known to have done nothing since the first began to wait.
        counted_ns: how much of it counts.
    """

    first: Event
    last: RequestEnd
    count: int
    waited_ns: int = 0
    counted_ns: int = 0


@dataclass(slots=True)
class GivenUps:
    """Who waits for each connector of an engine, and who gave up.

    Attributes:
        rows: by connector.
    """

    rows: dict[str, GivenUp] = field(default_factory=dict)
    _deferred: dict[str, tuple[Lookup, Lookup]] = field(default_factory=dict)
    """By request, the first and the last of the current run of answers 'ask me later'."""

    def after(self, event: RequestEnd | Heartbeat, engine: Engine) -> list[GivenUp]:
        """The rows that an event changes: by the end of one more request, or by time that has passed. A load that was given
        up can still be received, a question not be answered."""
        if type(event) is RequestEnd:
            since = self._waited_since(event, engine)
            before = None if since is None else self.rows.get(since.connector_id)
            rows = [] if since is None else [GivenUp(since, event, 1)]
            if before is not None:
                rows = [replace(before, last=event, count=before.count + 1)]
        else:
            rows = [row for row in self.rows.values() if type(row.first) is Alloc]
        if not rows:
            return rows
        until_ns, stepping = engine.time.of(event), engine.clocks.stepping
        begun_ns = [engine.time.of(row.first) for row in rows]
        return [
            replace(row, waited_ns=until_ns - from_ns, counted_ns=stepping.between(from_ns, until_ns))
            for row, from_ns in zip(rows, begun_ns, strict=True)
        ]

    def _waited_since(self, event: RequestEnd, engine: Engine) -> Event | None:
        """Since when a request has waited for a connector until its caller ended it; None if it did not wait, or the
        scheduler could not ask the connector again."""
        if event.outcome != ABORTED:
            return None
        if (load := engine.loads.get(event.request or "")) is not None:
            return load
        first, last = self._deferred.get(event.request or "", (None, None))
        if last is not None:
            asked_ns, until_ns = engine.time.of(last), engine.time.of(event)
            passed_ns = until_ns - asked_ns
            if passed_ns > ASKED_AGAIN_NS and 2 * engine.clocks.spare.between(asked_ns, until_ns) < passed_ns:
                return None
        return first

    def _enter_lookup(self, event: Lookup, engine: Engine) -> None:
        request = event.request or ""
        if event.returned is None and event.error is None:
            first, _ = self._deferred.get(request, (event, event))
            self._deferred[request] = (first, event)
        elif self._deferred.pop(request, None) is not None:
            self.rows.pop(event.connector_id, None)

    def _enter_received(self, event: Received, engine: Engine) -> None:
        self.rows.clear()  # a MultiConnector reports the end of a load to all its children

    def _enter_request(self, event: RequestEnd, engine: Engine) -> None:
        self._enter_heartbeat(event, engine)
        self._deferred.pop(event.request or "", None)

    def _enter_heartbeat(self, event: RequestEnd | Heartbeat, engine: Engine) -> None:
        for row in self.after(event, engine):
            self.rows[row.first.connector_id] = row


class CallersGaveUp(EngineRule[RequestEnd | Heartbeat]):
    """Callers end their requests one after the other while these wait for the connector.

    Invariant: of three requests or more that their callers end in a row while their asynchronous load is open, or while the
    connector answers 'ask me later', the first began to wait less than 120 seconds before, or a load was received or a
    question answered in between. A large load, and a connector that declares that it waits for longer, has the time that
    `stuck-load` gives it.

    Clients give up after 30 to 60 seconds, so no request waits for long enough to be found by itself. Of a slow but working
    connector the loads of requests that have ended are received nevertheless. Source: vLLM, `Scheduler.finish_requests` keeps
    the blocks of a request that is aborted while its load is open until the load is received; the incidents are those of
    `stuck-load` and `endless-deferral`, such as SGLang #28651
    (https://github.com/sgl-project/sglang/pull/28651). Needs every event of the engine while these requests wait.
    """

    id = "callers-gave-up"
    severity = Severity.HANG
    known_by = KnownBy.DEADLINE
    classes = ("C12", "N6")
    hint = (
        "The other side is gone, or a thread of the connector has ended: none of its loads ends, and no question is answered."
        " Look for an exception in the log just before the first of these requests."
    )
    explanation = (
        "At {0} a request began to wait for the connector. Its caller gave up, and so did those of the following ones, the"
        " last at {1}: {requests} in a row. In the {counted_s} seconds that count, no load was received and no question"
        " answered."
    )

    State = GivenUps

    def judge(self, event: RequestEnd | Heartbeat, engine: Engine) -> Judgement:
        given_up = engine.states[GivenUps]
        rows = given_up.after(event, engine)
        late = [row for row in rows if _is_late(row, engine)]
        found = [row for row in late if not _is_late(given_up.rows.get(row.first.connector_id), engine)]
        if not found:  # of several of a row, one is a finding
            return OK if rows else None
        return tuple(Drift(_numbers(row), [row.first, row.last]) for row in found)


def _numbers(row: GivenUp) -> dict[str, float]:
    return {
        "waited_s": round(row.waited_ns / 1e9, 1),
        "counted_s": round(row.counted_ns / 1e9, 1),
        "requests": row.count,
    }


def _is_late(row: GivenUp | None, engine: Engine) -> bool:
    if row is None or row.count < LEAST:
        return False
    tokens = row.first.allocated if isinstance(row.first, Alloc) else 0
    return row.counted_ns / 1e9 >= within_s(row.first, tokens, engine)

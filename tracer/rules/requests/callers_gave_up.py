"""callers-gave-up: nobody's waiting for a connector ends but by the caller's patience."""

from __future__ import annotations

from kvtrail.tracer.events.events import Alloc, Heartbeat, RequestEnd
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.given_up import GivenUp
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule, KnownBy
from kvtrail.tracer.rules.loads.stuck_load import within_s

LEAST = 3
"""Requests in a row: one or two callers may have left for reasons of their own."""


class CallersGaveUp(EngineRule[RequestEnd | Heartbeat]):
    """Callers end their requests one after the other while these wait for the connector.

    Invariant: of three requests or more that their callers end in a row while their asynchronous load is open, or while the
    connector answers 'ask me later', the first began to wait less than 120 seconds before, or a load was received or a
    question answered in between. A large load, and a connector that declares that it waits for longer, has the time that
    `stuck-load` gives it.

    Clients give up after 30 to 60 seconds, so no request waits for long enough to be found by itself. Of a slow but working
    connector the loads of requests that have ended are received all the same. Source: vLLM, `Scheduler.finish_requests` keeps
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

    def judge(self, event: RequestEnd | Heartbeat, engine: Engine) -> Judgement:
        rows = engine.rows_given_up(event)
        late = [row for row in rows if _is_late(row, engine)]
        found = [row for row in late if not _is_late(engine.given_up.rows.get(row.first.connector_id), engine)]
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

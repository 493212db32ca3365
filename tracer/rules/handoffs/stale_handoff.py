"""stale-handoff: a request has received blocks that the engine that prefilled had given back."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Read, Received
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class StaleHandoff(EngineRule[Read | Received]):
    """A request has received KV from blocks that the other engine had given back before.

    Invariant: if a request receives a hand-off, the report of its reader reaches the engine that prefilled before that one
    gives the blocks back.

    Order is known by messages alone: the release and the reader's report are recorded by one recorder, and the load is that
    of the same hand-off. Source: vLLM, a read of blocks that were released succeeds and no counter of the reading engine
    moves; the incidents are vLLM #21570 (https://github.com/vllm-project/vllm/issues/21570) and aws-do-eks #84
    (https://github.com/aws-samples/aws-do-eks/pull/84). Needs the spans of both engines, and a probe that sees readers'
    reports on the one that prefills (NIXL's pull).
    """

    id = "stale-handoff"
    severity = Severity.WRONG_OUTPUT
    classes = ("C16",)
    needs_history = False
    hint = (
        "The lease of the prefill engine (`kv_lease_duration`) ran out while the request waited in the other engine's queue,"
        " or its heartbeats did not arrive. Make the lease longer than the queue, and compute such a request again."
    )
    explanation = (
        "Engine {giver} gave the blocks of request {other} back at {0}: {why}. At {1} a reader reported that it had read"
        " them. This request received them ({2}): they may have been another request's by then."
    )

    def judge(self, event: Read | Received, engine: Engine) -> Judgement:
        pair = engine.handoffs.given_by(event) if isinstance(event, Read) else engine.handoffs.taken_by(event)
        if pair is None or pair.released is None:
            return None
        late, received = pair.late, [taker.received for taker in pair.received]
        if isinstance(event, Read):
            if late is not None:
                return None  # a second late report adds nothing
            if pair.released.recorder != event.recorder:
                return Unknown.ORDER
            late = event
        elif engine.handoffs.receives(event):
            received = [event]
        else:
            return None
        if late is None or not received:
            return None
        # Without the lease's end somebody has read in time, though that report may be lost.
        if pair.expired is None or (pair.reads and len(pair.takers) > 1):
            return Unknown.ORDER  # the late report is another's, or has come twice
        numbers = {
            "giver": late.engine,
            "other": late.request,
            "expired": pair.expired is not None,
            "late_s": round((late.start_ns - pair.released.end_ns) / 1e9, 3),
        }
        return tuple(Drift(numbers, [pair.released, late, each]) for each in received)

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"why": "the lease had run out" if finding.numbers["expired"] else "they had been read"}

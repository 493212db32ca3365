"""stale-handoff: a request has read blocks that the engine that prefilled had given back."""

from __future__ import annotations

from kvtrail.tracer.events.events import Event, Handoff, Read, Received, Side
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.handoffs import Pair
from kvtrail.tracer.model.findings import Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class StaleHandoff(EngineRule[Handoff | Read | Received]):
    """A request has received KV from blocks that the other engine had given back before.

    Invariant: if a request receives a hand-off, the report of its reader reaches the engine that prefilled before that one
    gives the blocks back.

    Order is known by messages alone: the release and the reader's report are recorded by one recorder, and the load is that of
    the same hand-off. Source: vLLM, a read of blocks that were released succeeds and no counter of the reading engine moves:
    the incident is vLLM #52234 (https://github.com/vllm-project/vllm/issues/52234), and aws-do-eks #84
    (https://github.com/aws-samples/aws-do-eks/pull/84). Needs the spans of both engines, and a probe that sees readers'
    reports on the one that prefilled (NIXL's pull).
    """

    id = "stale-handoff"
    severity = Severity.WRONG_OUTPUT
    classes = ("C16",)
    needs_history = False
    hint = (
        "The lease of the prefill engine (`kv_lease_duration`) ran out while the request waited in the other engine's queue, or"
        " its heartbeats did not arrive. Make the lease longer than the queue, and compute such a request again."
    )
    explanation = (
        "Engine {giver} gave the blocks of request {other} back at {0}: {why}. At {1} a reader reported that it had"
        " read them. This request received them ({2}): they may have been another request's by then."
    )

    def judge(self, event: Handoff | Read | Received, engine: Engine) -> Judgement:
        pair = _pair(event, engine)
        if pair is None:
            return None
        late, received = pair.late, [taker.received for taker in pair.received if taker.received is not None]
        if isinstance(event, Read):
            if late is not None or pair.released is None:
                return None  # a second late report adds nothing
            if pair.released.recorder != event.recorder:
                return Unknown.ORDER
            late = event
        elif isinstance(event, Received):
            if event.failed or event.error is not None:
                return None
            known = pair.takers[event.engine, event.request or ""].received
            if known is not None:
                return None
            received = [event]
        if late is None or pair.released is None or not received:
            return None
        if pair.reads and (pair.expired is None or len(pair.takers) > 1):
            return Unknown.ORDER  # one of them has read in time; the late report is another's, or has come twice
        given = pair.given
        numbers = {
            "giver": late.engine,
            "other": late.request,
            "expired": pair.expired is not None,
            "late_s": round((late.start_ns - pair.released.end_ns) / 1e9, 3),
        }
        if given is None:
            return None
        return tuple(Drift(numbers, [pair.released, late, each]) for each in received)

    def values(self, finding):  # type: ignore[no-untyped-def]
        return {"why": "the lease had run out" if finding.numbers["expired"] else "they had been read"}


def _pair(event: Event, engine: Engine) -> Pair | None:
    if isinstance(event, Handoff):
        return engine.handoffs.given_by(event) if event.handoff_side == Side.GIVES else None
    return engine.handoffs.given_by(event) if isinstance(event, Read) else engine.handoffs.taken_by(event)

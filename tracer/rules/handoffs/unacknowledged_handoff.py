"""unacknowledged-handoff: a request was served, and the engine that prefilled never heard of it."""

from __future__ import annotations

from kvtrail.tracer.events.events import Heartbeat, Received
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.handoffs import Pair, is_known_since
from kvtrail.tracer.model.findings import Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class UnacknowledgedHandoff(EngineRule[Heartbeat | Received]):
    """A hand-off was received, and its blocks were kept until the lease ran out.

    Invariant: if a request receives a hand-off, its reader reports so to the engine that prefilled, no later than ten seconds
    after the lease's end.

    Each side by itself is legal: a load that went well here, a lease that ran out there. Together they say that the report was
    lost, and that the blocks were kept for nobody. Source: vLLM, `NixlPullConnectorWorker._read_blocks` sends the report with
    the read, and only a metric counts one that fails; the incident is vLLM #38027
    (https://github.com/vllm-project/vllm/pull/38027). Needs the spans of both engines, and a probe that sees readers' reports
    and the ends of leases on the one that prefilled (NIXL's pull).
    """

    id = "unacknowledged-handoff"
    severity = Severity.LEAK
    classes = ("C13",)
    needs_history = False
    hint = (
        "The reader's report did not arrive: look for `notification_failed` in the log of the engine that decodes, and at the"
        " network between the two. The prefill engine's pool is held for as long as its lease."
    )
    explanation = (
        "Engine {giver} kept the blocks of request {other} for another engine until the lease ran out at {0}, and nobody had"
        " reported to have read them, ten seconds later neither. This request had received them at {1}."
    )

    def judge(self, event: Heartbeat | Received, engine: Engine) -> Judgement:
        if isinstance(event, Received):
            pair = engine.handoffs.taken_by(event)
            if pair is None or not pair.unread or event.failed or event.error is not None:
                return None
            own = pair.takers[event.engine, event.request or ""]
            return None if own.received is not None else _drift(pair, event)
        pairs = [pair for pair in engine.handoffs.unread(event) if any(pair.received)]
        if not pairs:
            return None
        if any(pair.given is None or not is_known_since(pair.given, event, engine.lost_number) for pair in pairs):
            return Unknown.LOST
        return tuple(
            _drift(pair, taker.received)
            for pair in pairs
            for taker in pair.received
            if taker.received is not None
        )


def _drift(pair: Pair, received: Received) -> Drift:
    released = pair.released
    assert released is not None
    return Drift(
        {"giver": released.engine, "other": released.request}, [released, received]
    )

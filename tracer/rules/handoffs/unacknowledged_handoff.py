"""unacknowledged-handoff: a request was served, and the engine that prefilled never heard of it."""

from __future__ import annotations

from kvtrail.tracer.events.events import Heartbeat, Received
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.handoffs import ON_ITS_WAY_NS, Pair, is_known_since
from kvtrail.tracer.model.findings import Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class UnacknowledgedHandoff(EngineRule[Heartbeat]):
    """A hand-off was received, and its blocks were kept until the lease ran out.

    Invariant: if a request receives a hand-off, its reader reports so to the engine that prefilled, no later than ten seconds
    after both the load and the lease's end are known.

    Each side by itself is legal: a load that went well here, a lease that ran out there. Together they say that the report
    was lost, and that the blocks were kept for nobody. Source: vLLM, `NixlPullConnectorWorker._read_blocks` sends the report
    with the read, and only a metric counts one that fails; the incident is vLLM #43541
    (https://github.com/vllm-project/vllm/pull/43541). Needs the spans of both engines, and a probe that sees readers' reports
    and the ends of leases on the one that prefills (NIXL's pull).
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
        "Engine {giver} kept the blocks of request {other} for another engine until the lease ran out at {0}. This request"
        " has received them ({1}), and {quiet_s} seconds after that was known nobody had reported to have read them."
    )

    def judge(self, event: Heartbeat, engine: Engine) -> Judgement:
        pairs = engine.handoffs.unacknowledged(event)
        if not pairs:
            return None
        known = [pair for pair in pairs if is_known_since(pair, event, engine.lost_number)]
        found = tuple(_drift(pair, taker.received) for pair in known for taker in pair.received)
        return found or Unknown.LOST


def _drift(pair: Pair, received: Received) -> Drift:
    assert pair.released is not None
    numbers = {"giver": pair.released.engine, "other": pair.released.request, "quiet_s": ON_ITS_WAY_NS // 10**9}
    return Drift(numbers, [pair.released, received])

"""unacknowledged-handoff: a hand-off is needed no more, and the engine that prefilled never heard of it."""

from __future__ import annotations

from kvtrail.tracer.events.events import Heartbeat, Received, RequestEnd
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.handoffs import ON_ITS_WAY_NS, Pair, is_known_since
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class UnacknowledgedHandoff(EngineRule[Heartbeat]):
    """A hand-off was needed no more, and its blocks were kept until the lease ran out.

    Invariant: if a request receives a hand-off, or ends without having tried to, its reader reports so to the engine that
    prefilled, no later than ten seconds after both that and the lease's end are known.

    Each side by itself is legal: a load that went well here, or a request that its caller ended or that found all of its
    prompt in its own cache; a lease that ran out there. Together they say that the report was lost or never sent, and that
    the blocks were kept for nobody. After a load that failed, no report need follow. Source: vLLM,
    `NixlPullConnectorWorker._read_blocks` sends the report with the read, `NixlPullConnectorScheduler.request_finished` has
    it sent for a request that ends before it was scheduled, and only a metric counts one that fails; the incidents are vLLM
    #43541 (https://github.com/vllm-project/vllm/pull/43541) and #18590 (https://github.com/vllm-project/vllm/pull/18590).
    Needs the spans of both engines, and a probe that sees the ends of leases on the one that prefills (NIXL).
    """

    id = "unacknowledged-handoff"
    severity = Severity.LEAK
    classes = ("C13",)
    needs_history = False
    hint = (
        "The reader's report did not arrive, or none is sent for a request that needs nothing: look for"
        " `notification_failed` in the log of the engine that decodes, and at the network between the two. The prefill"
        " engine's pool is held for as long as its lease."
    )

    def judge(self, event: Heartbeat, engine: Engine) -> Judgement:
        pairs = engine.handoffs.unacknowledged(event)
        if not pairs:
            return None
        known = [pair for pair in pairs if is_known_since(pair, event, engine.lost_number)]
        found = tuple(_drift(pair, done) for pair in known for done in pair.done)
        return found or Unknown.LOST

    def template(self, finding: Finding) -> str:
        text = "Engine {giver} kept the blocks of request {other} for another engine until the lease ran out at {0}. "
        if finding.numbers["received"]:
            text += "This request has received them ({1}),"
        else:
            text += "This request, which was to read them, ended without that ({1}, {outcome}),"
        return text + " and {quiet_s} seconds after that was known nobody had reported to need them no more."


def _drift(pair: Pair, done: Received | RequestEnd) -> Drift:
    assert pair.released is not None
    numbers = {
        "giver": pair.released.engine,
        "other": pair.released.request,
        "received": isinstance(done, Received),
        "quiet_s": ON_ITS_WAY_NS // 10**9,
    }
    if isinstance(done, RequestEnd):
        numbers["outcome"] = done.outcome
    return Drift(numbers, [pair.released, done])

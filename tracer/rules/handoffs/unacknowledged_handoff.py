"""unacknowledged-handoff: a hand-off is needed no more, and the engine that prefilled never heard of it."""

from __future__ import annotations

from kvtrail.tracer.events.events import Free, Heartbeat, Read, Received, RequestEnd, Xfer
from kvtrail.tracer.ledger.account import SCHEDULER
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.handoffs import ON_ITS_WAY_NS, Pair, is_known_since
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule

KEPT_S = 1.0
"""A scheduler that ends a lease sooner than that after a worker's last report may not have heard of it. A worker has looked
at all reports before it ends one."""


class UnacknowledgedHandoff(EngineRule[Heartbeat | Free]):
    """A hand-off was needed no more, and its blocks were kept until the lease ran out.

    Invariant: if a request receives a hand-off, or ends without having tried to, its reader reports so to the engine that
    prefilled, no later than ten seconds after both that and the lease's end are known.

    Each side by itself is legal: a load that went well here, or a request that its caller ended or that found all of its
    prompt in its own cache; a lease that ran out there. Together they say that the report was lost or never sent, and that
    the blocks were kept for nobody. Where several ranks read from one, it waits for the report of each
    (`notifications_expected`). After a load that failed, no report need follow.

    And a rank gives its blocks back once as many of its readers have reported as there are, or once the writes by which it
    hands them over have all ended well: a lease that ends at a later look at them, or a second later where the scheduler
    ends it, was needed no more. The engine that prefills knows that alone.

    Source: vLLM,
    `NixlPullConnectorWorker._read_blocks` sends the report with the read, `NixlPullConnectorScheduler.request_finished` has
    it sent for a request that ends before it was scheduled, and only a metric counts one that fails; the incidents are vLLM
    #43541 (https://github.com/vllm-project/vllm/pull/43541), #18590 (https://github.com/vllm-project/vllm/pull/18590) and
    #43509 (https://github.com/vllm-project/vllm/pull/43509), where a report that comes before the worker knows the request
    is dropped. Needs a probe that sees the ends of leases on the engine that prefills (NIXL, Mooncake, MoRIIO), and the
    spans of the other one or the reports of its readers.
    """

    id = "unacknowledged-handoff"
    severity = Severity.LEAK
    classes = ("C13",)
    needs_history = False
    hint = (
        "The reader's report did not arrive, or none is sent for a request that needs nothing: look for"
        " `notification_failed` in the log of the engine that decodes, and at the network between the two. The prefill"
        " engine's pool is held for as long as its lease. If all reports did arrive, it did not heed them: look for"
        " `unrecognized request` in its log."
    )

    def judge(self, event: Heartbeat | Free, engine: Engine) -> Judgement:
        if isinstance(event, Free):
            return _judge_free(event, engine)
        pairs = engine.handoffs.unacknowledged(event)
        if not pairs:
            return None
        known = [pair for pair in pairs if pair.given and is_known_since(pair, event, engine.lost_number)]
        found = tuple(_drift(pair, done) for pair in known for done in pair.done)
        return found or Unknown.LOST

    def template(self, finding: Finding) -> str:
        if "kept_s" in finding.numbers:
            last = "the last of its {reports} readers reported"
            if finding.numbers["written"]:
                last = "the last write by which the request was handed over ended"
            return (
                f"At {{0}} {last}, and its blocks were kept until the lease ran out at {{1}}, {{kept_s}} seconds later."
            )
        text = "Engine {giver} kept the blocks of request {other} for another engine until the lease ran out at {0}. "
        if finding.numbers["received"]:
            text += "This request has received them ({1}),"
        else:
            text += "This request, which was to read them, ended without that ({1}, {outcome}),"
        text += " and {quiet_s} seconds after that was known "
        if "reports" in finding.numbers:
            return text + "{reports} of its {expected} readers had reported to need them no more."
        return text + "nobody had reported to need them no more."


def _judge_free(event: Free, engine: Engine) -> Judgement:
    """Whether a lease that ends has outlived its readers' reports, or the engine's own writes."""
    pair = engine.handoffs.given_by(event)
    if not event.lease_expired or pair is None or (last := pair.settled_by(event)) is None:
        return None
    if not is_known_since(pair, event, engine.lost_number):
        return Unknown.LOST
    kept_s = (event.end_ns - last.end_ns) / 1e9
    if kept_s <= (KEPT_S if event.role == SCHEDULER else 0.0):
        return None
    numbers: dict[str, object] = {"written": isinstance(last, Xfer), "kept_s": round(kept_s, 3)}
    if isinstance(last, Read):
        numbers["reports"] = last.notifications_expected
    return Drift(numbers, [last, event])


def _drift(pair: Pair, done: Received | RequestEnd) -> Drift:
    assert pair.released is not None
    numbers = {
        "giver": pair.released.engine,
        "other": pair.released.request,
        "received": isinstance(done, Received),
        "quiet_s": ON_ITS_WAY_NS // 10**9,
    }
    reports, expected = pair.missing or (0, 1)
    if expected > 1:
        numbers |= {"reports": reports, "expected": expected}
    if isinstance(done, RequestEnd):
        numbers["outcome"] = done.outcome
    return Drift(numbers, [pair.released, done])

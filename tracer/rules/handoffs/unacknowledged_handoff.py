from __future__ import annotations

from kvtrail.tracer.events.events import Free, Heartbeat, Read, Received, RequestEnd, Xfer
from kvtrail.tracer.ledger.account import SCHEDULER
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.handoffs import ON_ITS_WAY_NS, Pair, is_known_since
from kvtrail.tracer.model.findings import Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import PairRule

KEPT_S = 1.0
"""Seconds after a worker's last report. A scheduler that ends a lease earlier may not have received this report. A worker
processes all reports before it ends a lease."""


class UnacknowledgedHandoff(PairRule[Heartbeat | Free]):
    needs_history = False

    def judge(self, event: Heartbeat | Free, engine: Engine) -> Judgement:
        if isinstance(event, Free):
            return _judge_free(event, engine)
        pairs = engine.handoffs.unacknowledged(event)
        if not pairs:
            return None
        known = [pair for pair in pairs if pair.given and is_known_since(pair, event, engine.lost_number)]
        found = tuple(_drift(pair, done) for pair in known for done in pair.done)
        return found or Unknown.LOST


def _judge_free(event: Free, engine: Engine) -> Judgement:
    """Whether a lease expires although its readers reported before, or the engine's own writes ended before."""
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

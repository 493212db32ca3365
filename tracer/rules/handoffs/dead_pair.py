from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Received
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement
from kvtrail.tracer.rules.rule import PairRule

LEAST = 8
"""Failed loads in a row: where a network loses one in five, eight in a row have a chance of three in a million."""


class DeadPair(PairRule[Received]):
    id = "dead-pair"

    def judge(self, event: Received, engine: Engine) -> Judgement:
        load = engine.load_from_peer(event)
        if load is None:
            return None
        alloc, taken = load
        assert taken.handoff_peer is not None
        row = engine.failing_peers.after(event, alloc, taken.handoff_peer)
        if row is None:
            return OK
        if row.failures != LEAST or row.last is not event:
            return None
        numbers = {"peer": taken.handoff_peer, "failed": row.failures, "gone": engine.handoffs.is_gone(event)}
        return Drift(numbers, [row.first, event])

    def template(self, finding: Finding) -> str:
        text = (
            "The load of this request from engine {peer} has failed at {1}, and so have those before it, the first at {0}:"
            " {failed} in a row, and each began after the last had failed."
        )
        return text + (" That engine {gone} since." if finding.numbers["gone"] else "")

    def values(self, finding: Finding) -> dict[str, Any]:
        return {
            "gone": {"restarted": "was started again", "shut down": "has shut down"}.get(finding.numbers["gone"], "")
        }

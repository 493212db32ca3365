"""dead-pair: no load from another engine goes well any more."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Received
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import EngineRule

LEAST = 8
"""Failed loads in a row: where a network loses one in five, eight in a row have a chance of three in a million."""


class DeadPair(EngineRule[Received]):
    """Every load from one other engine fails.

    Invariant: of eight loads from one engine, each begun after the one before it had failed, one is received.

    Loads that are under way at the same time count once: whatever ends them may be over. It is found once for a row, with the
    engine that gives, and not for each request. Source: vLLM, `NixlPullConnectorWorker` keeps what it knows of another engine
    until it shakes hands with a new one, so that a connection that is lost, or an engine that was started again under another
    id, fails each request by itself: it is computed again, or ends with an error, by `kv_load_failure_policy`; the incident
    is vLLM #27083 (https://github.com/vllm-project/vllm/issues/27083). Needs the engine that decodes, with all of its
    requests recorded, and parameters that name the other one (`remote_engine_id`: NIXL).
    """

    id = "dead-pair"
    severity = Severity.WASTED_WORK
    classes = ("N7",)
    hint = (
        "The engine that prefills is gone or was started again, or its address is wrong (`VLLM_NIXL_SIDE_CHANNEL_HOST`), or"
        " the connection is lost and nobody makes a new one. Let the router leave the pair out, and restart the engine that"
        " decodes."
    )

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

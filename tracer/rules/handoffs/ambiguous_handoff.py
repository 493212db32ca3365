"""ambiguous-handoff: two hand-offs are kept under one name."""

from __future__ import annotations

from kvtrail.tracer.events.events import Handoff, Side
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class AmbiguousHandoff(EngineRule[Handoff]):
    """Two hand-offs are kept at the same time under one name.

    Invariant: while an engine keeps a request for another engine, no other request is kept under the same `transfer_id`,
    `kv_request_id` or `remote_request_id`, nor, by a connector that pushes, with the same id of the client's.

    A name may be used again once the blocks were given back. Source: vLLM, the connectors hold what they keep by such a name
    (`MooncakeConnectorWorker.reqs_need_send`, MoRIIO's `transfer_id` of a request), and `NixlPushConnectorWorker` looks for
    the request of the other engine by its id without the engine's suffix; the incidents are vLLM #49796
    (https://github.com/vllm-project/vllm/pull/49796) and #56468 (https://github.com/vllm-project/vllm/pull/56468). Needs the
    spans of the engine that prefills.
    """

    id = "ambiguous-handoff"
    severity = Severity.WRONG_OUTPUT
    classes = ("N11", "C13")
    needs_history = False
    hint = (
        "The router, or a client that may choose it, gave two requests one `transfer_id`; with a connector that pushes, two"
        " requests have one `X-Request-Id`. Make the ids in the router, at random."
    )
    explanation = (
        "At {0} request {other} ended, and its blocks are kept for another engine as {name}. At {1} this request has ended,"
        " and its blocks are kept under the same name: whoever asks for it may get either, and the other one may be kept for"
        " ever."
    )

    def judge(self, event: Handoff, engine: Engine) -> Judgement:
        if event.handoff_side != Side.GIVES:
            return None
        known = engine.handoffs.namesake(event)
        if known is None:
            return OK
        name, other = known
        if other.launch != event.launch and other.engine == event.engine:
            return None  # what the engine kept before it was started again is gone
        if other.recorder != event.recorder:
            return Unknown.ORDER
        if engine.lost_number > other.sequence:
            return Unknown.LOST
        return Drift({"name": name, "other": other.request}, [other, event])

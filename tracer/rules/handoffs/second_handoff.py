"""second-handoff: two requests receive one hand-off."""

from __future__ import annotations

from kvtrail.tracer.events.events import Received
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule


class SecondHandoff(EngineRule[Received]):
    """What was handed over once is received by two requests.

    Invariant: of the requests that take a hand-off, one receives it.

    Whoever tries again after its load failed, or after an abort before it, is no second one. Source: vLLM, the engine that
    prefills gives the blocks back once the readers of one request are done (`NixlPullConnectorWorker._get_new_notifs` counts
    one engine's ranks): who reads later reads what the blocks hold by then; the incidents are vLLM #38900
    (https://github.com/vllm-project/vllm/pull/38900), where several sequences of one prompt share the parameters, and #52234
    (https://github.com/vllm-project/vllm/issues/52234). Needs the spans of the engines that decode.
    """

    id = "second-handoff"
    severity = Severity.WRONG_OUTPUT
    classes = ("N11",)
    needs_history = False
    hint = (
        "The router used the `kv_transfer_params` twice: for a retry, for several sequences of one prompt, or for the next"
        " turn. Ask the prefill engine again."
    )
    explanation = (
        "Request {other} of engine {taker} received the hand-off {key} at {0}. At {1} this request has received it, too: the"
        " engine that prefilled keeps the blocks for one reader, and they may have been another request's by then."
    )

    def judge(self, event: Received, engine: Engine) -> Judgement:
        pair = engine.handoffs.taken_by(event)
        if pair is None or not engine.handoffs.receives(event):
            return None
        before = next(pair.received, None)
        if before is None:
            return OK
        first, second = engine.handoffs.in_order(before.received, event)
        numbers = {"key": before.event.handoff_keys[0], "other": first.request, "taker": first.engine}
        return Drift(numbers, [first, second])

"""failed-load-hit: what was computed from a failed load is found in the store."""

from __future__ import annotations

from kvtrail.tracer.events.events import LoadPlan, Lookup
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule, Groups


class FailedLoadHit(EngineRule[Lookup | LoadPlan]):
    """A chunk that was computed from a failed load is found in the store.

    Invariant: a chunk that a step stored for a request, at or behind a block that failed to load in this step, is neither
    found nor loaded before it is stored again.

    A load within a step fails while the step runs: it computes the tokens behind the load from what was left in the blocks,
    and a connector stores them under their right keys. vLLM has them computed again, or with `kv_load_failure_policy=fail`
    ends the request; neither takes back what was stored. The connector may skip the store, or forget the chunks when the
    error is reported.

    Source: vLLM, `Scheduler._handle_invalid_blocks` is called with the step's output, when its stores have been made; the
    incident is vllm-ascend #16875 (https://github.com/vllm-project/vllm-ascend/pull/16875). Needs a connector that names its
    keys and is the only one that writes to its store. What is known of a chunk is as for phantom-hit. A store with a transfer
    number may copy later, when the blocks have been computed again: it is not judged.
    """

    id = "failed-load-hit"
    only_with = "chunk_keys"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C8", "C22")
    hint = (
        "The step that ran on the failed load has stored what it computed. Skip the stores of a request with a load that"
        " failed in the step, or forget these chunks when `update_connector_output` names the blocks."
    )
    explanation = (
        "At {0} the connector stored the chunk with key {key} for request {other}, and at {1} the load that the same step ran"
        " on was reported as failed: what the step computed is wrong. At {2} the connector names {found} chunks for this"
        " request, and {wrong} of them were stored so."
    )

    def judge(self, event: Lookup | LoadPlan, engine: Engine) -> Judgement:
        if not event.chunk_keys:
            return None
        known = engine.wrong_chunks.of
        wrong = [key for key in event.chunk_keys if (event.connector_id, key) in known] if known else []
        if not wrong:
            return engine.keys(event.connector_id).unsure(event.chunk_keys) or OK
        first = known[event.connector_id, wrong[0]]
        numbers = {
            "key": wrong[0],
            "other": first.store.request,
            "wrong": len(wrong),
            "found": len(event.chunk_keys),
        }
        return Drift(numbers, [first.store, first.error, event])

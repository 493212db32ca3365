"""key-collision: one key stands for the KV of two identities."""

from __future__ import annotations

from kvtrail.tracer.detect.engine_state import Engine
from kvtrail.tracer.detect.rules import EngineRule
from kvtrail.tracer.model.events import LoadPlan, Lookup, StorePlan
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity


class KeyCollision(EngineRule[Lookup | LoadPlan | StorePlan]):
    """Requests with different adapters or salts use a chunk under the same key.

    Invariant: a request finds, loads and stores a chunk only under keys that no request with another identity has stored,
    where the identity is the adapter and the cache salt.

    The same tokens under another adapter have other KV, and a salt keeps callers apart. Source: vLLM mixes both into its
    block hashes (`generate_block_hash_extra_keys`); the incident is vLLM #44250
    (https://github.com/vllm-project/vllm/issues/44250). Needs a connector that names its keys, and every event of the
    engine since the store.
    """

    id = "key-collision"
    severity = Severity.WRONG_OUTPUT
    classes = ("N1",)
    hint = "The key is made of the tokens alone: mix in adapter and salt, or take vLLM's own block hashes."
    explanation = (
        "At {0} the chunk with key {key} was stored by request {other}, whose adapter and salt are {other_identity}. At {1}"
        " this request, with {identity}, uses the same key: what the one computed is read by the other."
    )

    def judge(self, event: Lookup | LoadPlan | StorePlan, engine: Engine) -> Judgement:
        identity = engine.identities.get(event.request or "")
        if identity is None or not event.chunk_keys:
            return None
        is_known = False
        for key in event.chunk_keys:
            stored = engine.writers.get((event.connector_id, key))
            if stored is None:
                continue
            is_known, (other_identity, store) = True, stored
            if other_identity != identity:
                numbers = {
                    "key": key,
                    "identity": identity,
                    "other_identity": other_identity,
                    "other": store.request,
                }
                return Drift(numbers, [store, event])
        return OK if is_known else None

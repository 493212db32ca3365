"""key-collision: one key stands for the KV of two identities."""

from __future__ import annotations

from kvtrail.tracer.events.events import LoadPlan, Lookup, StorePlan
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class KeyCollision(EngineRule[Lookup | LoadPlan | StorePlan]):
    """Requests with different adapters or salts use a chunk under the same key.

    Invariant: a request finds, loads and stores a chunk only under keys that no request with another identity has stored,
    where the identity is the adapter and the cache salt; and it finds and loads no chunk that was stored with another version
    of its adapter's weights.

    The same tokens under another adapter have other KV, and a salt keeps callers apart. An adapter that is loaded again
    under its name, from another path or in place, may have other weights: then what was stored before has to be forgotten,
    or the key has to say the version. A copy of the same weights is the same version, and a chunk that is copied again has
    the version of that request. A request that is under way when its adapter is replaced may run with either weights: so
    what was stored counts as of its version if a request with that version began afterwards, and is unknown otherwise.
    Source: vLLM mixes name, path and salt into its block hashes (`generate_block_hash_extra_keys`), and before 0.32 the
    name alone; the incidents are vLLM #44250 (https://github.com/vllm-project/vllm/issues/44250) and #42125
    (https://github.com/vllm-project/vllm/issues/42125). Needs a connector that names its keys, and every event of the
    engine since the store.
    """

    id = "key-collision"
    only_with = "chunk_keys"
    severity = Severity.WRONG_OUTPUT
    classes = ("N1",)
    hint = (
        "The key is made of the tokens alone: mix in adapter and salt, or take vLLM's own block hashes. Reset the connector's"
        " cache when an adapter is replaced under its name."
    )

    def judge(self, event: Lookup | LoadPlan | StorePlan, engine: Engine) -> Judgement:
        identity, version = engine.met.get(event.request or "", (None, None))
        if identity is None or not event.chunk_keys:
            return None
        is_known = False
        for key in event.chunk_keys:
            writer = engine.writers.of.get((event.connector_id, key))
            if writer is None:
                continue
            is_known = True
            numbers = {
                "key": key,
                "identity": identity,
                "other_identity": writer.identity,
                "other": writer.store.request,
            }
            if writer.identity != identity:
                return Drift(numbers, [writer.store, event])
            if version is None or writer.version is None or type(event) is StorePlan:
                continue  # what it copies again is its own
            if writer.version != version:
                if engine.writers.versions.get((identity, writer.version), -1) < writer.store.sequence:
                    return Unknown.UNSEEN  # it may have run when the adapter had been replaced already
                numbers |= {"version": version, "other_version": writer.version}
                return Drift(numbers, [writer.store, event])
        return OK if is_known else None

    def template(self, finding: Finding) -> str:
        if "version" in finding.numbers:
            return (
                "At {0} the chunk with key {key} was stored by request {other}, with version {other_version} of its"
                " adapter's weights. The adapter was replaced under its name: at {1} this request, with version {version},"
                " uses the same chunk."
            )
        return (
            "At {0} the chunk with key {key} was stored by request {other}, with {other_identity}. At"
            " {1} this request, with {identity}, uses the same key: what the one computed is read by the other."
        )

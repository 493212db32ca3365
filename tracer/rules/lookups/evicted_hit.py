from __future__ import annotations

from kvtrail.tracer.events.events import Alloc, Event, Evict, LoadPlan, Lookup
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import EngineRule


class EvictedHit(EngineRule[Alloc | LoadPlan | Evict]):
    """A chunk that the lookup found was evicted before it was loaded.

    Invariant: the keys of a load are in the store when the load is planned, and those that the lookup claimed for it when
    blocks are allocated; none of them is evicted before a load with a number has ended.

    Source: lookup and load are two moments, and nothing may be evicted between them, nor while it is read; the incidents
    are vLLM #42289 (https://github.com/vllm-project/vllm/pull/42289) and LMCache #1101
    (https://github.com/LMCache/LMCache/pull/1101).
    Needs a connector that names its keys and is the only one that writes to its store (OffloadConnector). The keys that
    a lookup claims are recorded at level `detailed`, those of loads and stores at any. What is known of a chunk is as for
    phantom-hit.
    """

    id = "evicted-hit"
    severity = Severity.WRONG_OUTPUT
    classes = ("C7",)
    hint = "Pin at the lookup what the load will need, or look again when blocks have been allocated."

    def judge(self, event: Alloc | LoadPlan | Evict, engine: Engine) -> Judgement:
        if type(event) is Evict:
            return _evicted(event, engine)
        witness: list[Event] = [event]
        if type(event) is LoadPlan:
            keys, count = event.chunk_keys, event.count
        else:
            lookup, count = engine.last_lookup(event), event.allocated
            keys = None if lookup is None else _loaded(lookup, event)
            witness = [event] if lookup is None else [lookup, event]
            if lookup is None and event.allocated and event.request not in engine.met:
                return engine.missing
        if not keys:
            return None
        known = engine.keys(event.connector_id)
        missing = known.missing(keys)
        if not missing:
            return known.unsure(keys) or OK
        return Drift({"key": missing[0], "missing": len(missing), "count": count}, witness)

    def template(self, finding: Finding) -> str:
        if "transfer" in finding.numbers:
            return (
                "At {0} load {transfer} of {count} tokens began. At {1}, before it has ended, the chunk with key {key}, which"
                " it reads, is evicted."
            )
        if len(finding.witness) > 1:
            return (
                "At {0} the connector found the request's chunks. At {1} blocks were allocated to load {count} tokens of"
                " them, and the store does not hold {missing} of the chunks any more, the first with key {key}."
            )
        return (
            "At {0} the connector plans to load {count} tokens from a store that does not hold {missing} of the chunks"
            " any more, the first with key {key}."
        )


def _evicted(event: Evict, engine: Engine) -> Judgement:
    """A chunk leaves the store: no open load may read it."""
    loads = [job for job in engine.jobs.values() if type(job) is LoadPlan and job.connector_id == event.connector_id]
    for load in loads:
        if event.chunk_key in (load.chunk_keys or ()):
            numbers = {"key": event.chunk_key, "transfer": load.transfer_id, "count": load.count}
            return Drift(numbers, [load, event])
    return OK if loads else None


def _loaded(lookup: Lookup, alloc: Alloc) -> tuple[str, ...]:
    """The claimed keys that an allocation will certainly load: the chunks before them may be computed already."""
    if not lookup.chunk_keys or not alloc.allocated:
        return ()
    if not alloc.chunk_size:
        return lookup.chunk_keys if lookup.computed == 0 else ()
    chunks = (alloc.allocated + alloc.chunk_size - 1) // alloc.chunk_size
    return lookup.chunk_keys[-chunks:]

"""evicted-store: a chunk leaves the store while it is still being written."""

from __future__ import annotations

from kvtrail.tracer.events.events import Evict
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule


class EvictedStore(EngineRule[Evict]):
    """A chunk was evicted while its store was still open.

    Invariant: no chunk with an open store leaves the store.

    Its memory would be given to another chunk while the copy still writes into it, or it is lost before it has reached the
    next tier. A store of an aborted request, or that began before a reset, is not judged, and what a failed store
    leaves is evicted after its end. Source: vLLM, `CPUOffloadingManager` evicts only chunks that are ready and that nobody
    reads; the incident is LMCache #5263 (https://github.com/LMCache/LMCache/issues/5263). Needs a connector that names its
    keys and numbers its stores, and every event of the engine since the store began.
    """

    id = "evicted-store"
    severity = Severity.WRONG_OUTPUT
    classes = ("C7", "C16")
    hint = "The lock of a chunk that is being written has expired or was never taken: hold it until the copy has ended."
    explanation = (
        "At {0} store {transfer} of {count} tokens began. At {1}, before it has ended, the chunk with key {key}, which it"
        " writes, is evicted: its memory may be given away while the copy goes on."
    )

    def judge(self, event: Evict, engine: Engine) -> Judgement:
        ends = engine.transfer_ends.get((event.connector_id, "store"))
        if ends is None or not ends.writes:
            return None
        store = ends.writes.get(event.chunk_key or "")
        if store is None:
            return OK
        return Drift({"key": event.chunk_key, "transfer": store.transfer_id, "count": store.count}, [store, event])

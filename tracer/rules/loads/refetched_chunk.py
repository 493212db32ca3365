"""refetched-chunk: a chunk is fetched for a request, evicted, and fetched again."""

from __future__ import annotations

from kvtrail.tracer.events.events import Prefetch
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule


class RefetchedChunk(EngineRule[Prefetch]):
    """A chunk that was fetched for a waiting request was evicted before its load, and fetched again.

    Invariant: a chunk that was fetched into a nearer tier for a request stays there until the request is given blocks to load
    into, or ends.

    A fetch that failed may be repeated, and what a request has loaded may be evicted. Source: a fetch moves what a lookup
    found to where it can be loaded; the incident is vLLM #49902 (https://github.com/vllm-project/vllm/issues/49902). Needs
    fetches and evictions that name their chunks' keys, and every event of the engine since the first fetch.
    """

    id = "refetched-chunk"
    only_with = "chunk_keys"
    severity = Severity.WASTED_WORK
    classes = ("C10",)
    hint = (
        "Fetches for requests that wait push each other out of the nearer tier: pin what was fetched until it is loaded, or"
        " fetch only for requests that are about to be admitted."
    )
    explanation = (
        "At {0} the chunk with key {key} was fetched for this request. At {1}, before it was loaded, it was evicted, and at"
        " {2} it is fetched again, as {again} of the {fetched} chunks of this fetch are."
    )

    def judge(self, event: Prefetch, engine: Engine) -> Judgement:
        if not event.chunk_keys:
            return None
        known = engine.fetched.get(event.request or "", {})
        before = [known.get((event.connector_id, key), (None, None)) for key in event.chunk_keys]
        again = [(fetch, evicted) for fetch, evicted in before if fetch is not None and evicted is not None]
        if not again:
            return OK
        fetch, evicted = again[0]
        numbers = {"key": evicted.chunk_key, "again": len(again), "fetched": len(event.chunk_keys)}
        return Drift(numbers, [fetch, evicted, event])

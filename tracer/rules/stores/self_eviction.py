from __future__ import annotations

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import StorePlan
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule


class SelfEviction(EngineRule[StorePlan]):
    """A store pushes out a chunk that comes before it in the same prompt.

    Invariant: when chunk k of a request is stored, no chunk j < k is absent that the request's own stores have pushed out of
    a store that held no other request's chunks.

    Lookups find only prefixes, so a chunk behind a hole is never found. Where the store holds the chunks of several requests,
    which of them goes is a matter of its policy; a chunk that only leaves one tier for another is not lost.

    Source: prefix lookup, as all connectors of vLLM have it; the incident is pegaflow #396
    (https://github.com/novitalabs/pegaflow/issues/396). Needs a connector that names its keys and who pushed a chunk out,
    and is the only one that writes to its store (OffloadConnector), and every event of the engine since the request began. A
    connector that declares that its store evicts any chunk (`evicts_any`: vLLM's OffloadingConnector) is not judged: there it
    is a matter of the store's size.
    """

    id = "self-eviction"
    only_with = "chunk_keys"
    severity = Severity.WASTED_WORK
    classes = ("C21",)
    hint = (
        "The prompt is longer than the store has room, and its first chunks count as used longest ago: keep a prefix while"
        " its request stores, and store no more than there is room for."
    )
    explanation = (
        "At {0} the chunk with key {key}, which begins at token {position} of the request, left the store, which held no"
        " other request's chunks, to make room for another one of the same request. At {1} the request's chunk at token"
        " {start} is stored behind the hole: no lookup finds it until the other is stored again."
    )

    def judge(self, event: StorePlan, engine: Engine) -> Judgement:
        if event.chunk_present or not event.count or not event.chunk_keys or event.start is None:
            return None
        if event.has(Capability.EVICTS_ANY):
            return None
        if event.request not in engine.met:
            return engine.missing
        known = engine.keys(event.connector_id)
        for key, out in engine.own_chunks.pushed_out.get(event.request, {}).items():
            ours = out.event.connector_id == event.connector_id and key not in event.chunk_keys
            if ours and out.start < event.start and known.holds(key) is False:
                return Drift({"key": key, "position": out.start, "start": event.start}, [out.event, event])
        return OK

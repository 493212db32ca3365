from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import EngineRule


class PhantomHit(EngineRule[Lookup]):
    """A lookup claims chunks that were never stored, or were evicted.

    Invariant: the keys that a lookup claims are among those that were stored and not evicted since.

    Source: the meaning of a hit; the incidents are vLLM #53314 (https://github.com/vllm-project/vllm/pull/53314) and
    LMCache #1922 (https://github.com/LMCache/LMCache/pull/1922). Needs a connector that names its keys and is the
    only one that writes to its store (OffloadConnector), at level `detailed`. Of every chunk it is known whether it is held,
    until events are lost; after that of each that was stored, evicted or claimed since, and of all of them after a reset or a
    whole list (`kv.holdings`).
    """

    id = "phantom-hit"
    only_with = "chunk_keys"
    severity = Severity.WRONG_OUTPUT
    level = Level.DETAILED
    classes = ("C3",)
    hint = "The index is ahead of the store: an entry made before the copy has ended, or left after an eviction."
    explanation = (
        "At {0} the connector claimed {claimed} chunks{tokens}. Its store does not hold {missing} of them, the first with key"
        " {key}: never stored, or evicted since."
    )

    def judge(self, event: Lookup, engine: Engine) -> Judgement:
        if not event.chunk_keys:
            return None
        known = engine.keys(event.connector_id)
        missing = known.missing(event.chunk_keys)
        if not missing:
            return known.unsure(event.chunk_keys) or OK
        numbers = {
            "claimed": len(event.chunk_keys),
            "missing": len(missing),
            "key": missing[0],
            "matched": event.matched,
        }
        return Drift(numbers, [event])

    def values(self, finding: Finding) -> dict[str, Any]:
        matched = finding.numbers["matched"]
        return {"tokens": "" if matched is None else f" ({matched} tokens)"}

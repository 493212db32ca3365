from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Key
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule


class KeyMismatch(EngineRule[Key]):
    id = "key-mismatch"
    needs_history = False

    def judge(self, event: Key, engine: Engine) -> Judgement:
        if event.chunk_content is None:
            return Unknown.PROBE
        known = engine.contents.get((event.chunk_parent, event.chunk_content))
        if known is None:
            return None
        if known.chunk_key == event.chunk_key:
            return OK
        first, second = sorted((known, event), key=lambda key: key.start_ns)  # from two recorders, in either order
        return Drift({"key": second.chunk_key, "other": first.chunk_key, "parent": event.chunk_parent}, [first, second])

    def values(self, finding: Finding) -> dict[str, Any]:
        return {"before": finding.numbers["parent"] or "the beginning"}

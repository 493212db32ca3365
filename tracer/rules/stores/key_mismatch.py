from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Key
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class KeyMismatch(EngineRule[Key]):
    """The same chunk has two keys.

    Invariant: the key of a chunk is a function of the chunk before it, its tokens, salt and adapter, the same in every
    process.

    Another salt, adapter, data type or model is another chunk. Source: a store is shared by its keys; the incidents are
    LMCache #2511 (https://github.com/LMCache/LMCache/issues/2511) and #2979
    (https://github.com/LMCache/LMCache/issues/2979). Needs keys that are reported with their contents.
    """

    id = "key-mismatch"
    severity = Severity.WASTED_WORK
    classes = ("C23",)
    hint = "Python's hash differs between processes without PYTHONHASHSEED, and between versions with it: use a stable hash."
    needs_history = False
    explanation = (
        "At {0} the chunk after {before} got the key {other}. At {1} the same tokens after the same chunk got {key}."
    )

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

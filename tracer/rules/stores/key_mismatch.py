from __future__ import annotations

from kvtrail.tracer.events.events import Key
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule

MAX_KEYS = 100_000
"""Maximum number of remembered chunks."""


class Contents:
    """The first key of each chunk, by the key of the chunk before it and its content."""

    def __init__(self) -> None:
        self.of: dict[tuple[str | None, str], Key] = {}

    def _enter_key(self, event: Key, engine: Engine) -> None:
        if event.chunk_content is None or len(self.of) >= MAX_KEYS:
            return
        known = self.of.setdefault((event.chunk_parent, event.chunk_content), event)
        if event.start_ns < known.start_ns:
            self.of[event.chunk_parent, event.chunk_content] = event


class KeyMismatch(EngineRule[Key]):
    State, shares_state = Contents, True  # engines that share a store must agree on keys
    needs_history = False

    def judge(self, event: Key, engine: Engine) -> Judgement:
        if event.chunk_content is None:
            return Unknown.PROBE
        known = engine.states[Contents].of.get((event.chunk_parent, event.chunk_content))
        if known is None:
            return None
        if known.chunk_key == event.chunk_key:
            return OK
        first, second = sorted((known, event), key=lambda key: key.start_ns)  # from two recorders, in either order
        return Drift({"key": second.chunk_key, "other": first.chunk_key, "parent": event.chunk_parent}, [first, second])

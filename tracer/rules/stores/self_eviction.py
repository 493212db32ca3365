from __future__ import annotations

from collections.abc import Sequence

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Evict, Plan, RequestEnd, StorePlan
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.rule import EngineRule


class OwnChunks:
    """The chunks of one engine's open requests.

    Attributes:
        pushed_out: by request and key, the request's own chunks that its stores evicted from a store that has no tiers
            and holds only that request's chunks: the eviction, and the chunk's first token in the request.
    """

    def __init__(self) -> None:
        self.pushed_out: dict[str, dict[str, tuple[Evict, int]]] = {}
        self._placed: dict[str, list[tuple[str, int, int, Sequence[str]]]] = {}
        """By request, runs of consecutive chunks: their connector, their first token in the request, the tokens of each chunk
        (1 if unknown), and their keys."""

    def _enter_load_plan(self, event: Plan, engine: Engine) -> None:
        if event.chunk_keys and event.start is not None and event.request in engine.met:
            placed = event.connector_id, event.start, event.chunk_size or 1, event.chunk_keys
            self._placed.setdefault(event.request, []).append(placed)

    _enter_store_plan = _enter_load_plan

    def _enter_evict(self, event: Evict, engine: Engine) -> None:
        """Enter an eviction that a request's store may have caused. A store that also holds other requests' chunks may keep
        those instead without fault."""
        request, key = event.pushed_by, event.chunk_key
        if request not in self._placed or event.pool_tier is not None or key is None:
            return
        placed = [each for each in self._placed[request] if each[0] == event.connector_id]
        place = next((each for each in placed if key in each[3]), None)
        if place is None or not engine.keys(event.connector_id).holds_nothing_but(
            {k for each in placed for k in each[3]}
        ):
            return
        _, start, size, keys = place
        self.pushed_out.setdefault(request, {})[key] = (event, start + keys.index(key) * size)

    def _enter_request(self, event: RequestEnd, engine: Engine) -> None:
        self._placed.pop(event.request or "", None)
        self.pushed_out.pop(event.request or "", None)


class SelfEviction(EngineRule[StorePlan]):
    State = OwnChunks

    def judge(self, event: StorePlan, engine: Engine) -> Judgement:
        if event.chunk_present or not event.count or not event.chunk_keys or event.start is None:
            return None
        if event.has(Capability.EVICTS_ANY):
            return None
        if event.request not in engine.met:
            return engine.missing
        pushed_out = engine.states[OwnChunks].pushed_out.get(event.request)
        if not pushed_out:
            return OK
        known = engine.keys(event.connector_id)
        for key, (evicted, start) in pushed_out.items():
            ours = evicted.connector_id == event.connector_id and key not in event.chunk_keys
            if ours and start < event.start and known.holds(key) is False:
                return Drift({"key": key, "position": start, "start": event.start}, [evicted, event])
        return OK

from __future__ import annotations

from kvtrail.tracer.events.events import Alloc, Event, Evict, LoadPlan, Lookup, Prefetch, RequestEnd, Reset
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, combined
from kvtrail.tracer.rules.rule import EngineRule

MAX_FETCHES = 10_000
"""Maximum number of requests whose fetched chunks are remembered."""


class Fetches:
    """The chunks that were fetched for a request which has not been given blocks since, by request, connector and key: the
    fetch, and the eviction of the chunk since."""

    def __init__(self) -> None:
        self.of: dict[str, dict[tuple[str, str], tuple[Prefetch, Evict | None]]] = {}

    def _enter_prefetch(self, event: Prefetch, engine: Engine) -> None:
        if event.chunk_keys and len(self.of) < MAX_FETCHES:
            known = self.of.setdefault(event.request or "", {})
            known.update({(event.connector_id, key): (event, None) for key in event.chunk_keys})

    def _enter_evict(self, event: Evict, engine: Engine) -> None:
        chunk = (event.connector_id, event.chunk_key or "")
        for known in self.of.values():
            if chunk in known:
                known[chunk] = (known[chunk][0], event)

    def _enter_alloc(self, event: Alloc | RequestEnd, engine: Engine) -> None:
        self.of.pop(event.request or "", None)

    _enter_request = _enter_alloc

    def _enter_reset(self, event: Reset, engine: Engine) -> None:
        if event.succeeded is not False:
            self.of.clear()


class EvictedInUse(EngineRule[Alloc | LoadPlan | Evict | Prefetch]):
    State = Fetches

    def judge(self, event: Alloc | LoadPlan | Evict | Prefetch, engine: Engine) -> Judgement:
        if type(event) is Evict:
            return combined(_judge_open_loads(event, engine), _judge_open_store(event, engine))
        return _judge_fetch(event, engine) if type(event) is Prefetch else _judge_found(event, engine)


def _judge_found(event: Alloc | LoadPlan, engine: Engine) -> Judgement:
    """Whether the store still holds the chunks that a lookup found or that a load will read."""
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
    return Drift({"where": "found", "key": missing[0], "missing": len(missing), "count": count}, witness)


def _loaded(lookup: Lookup, alloc: Alloc) -> tuple[str, ...]:
    """The claimed keys that an allocation will certainly load: the chunks before them may be computed already."""
    if not lookup.chunk_keys or not alloc.allocated:
        return ()
    if not alloc.chunk_size:
        return lookup.chunk_keys if lookup.computed == 0 else ()
    chunks = (alloc.allocated + alloc.chunk_size - 1) // alloc.chunk_size
    return lookup.chunk_keys[-chunks:]


def _judge_open_loads(event: Evict, engine: Engine) -> Judgement:
    """Whether an open load reads the chunk that leaves the store."""
    loads = [job for job in engine.jobs.values() if type(job) is LoadPlan and job.connector_id == event.connector_id]
    for load in loads:
        if event.chunk_key in (load.chunk_keys or ()):
            numbers = {
                "where": "being read",
                "key": event.chunk_key,
                "transfer": load.transfer_id,
                "count": load.count,
            }
            return Drift(numbers, [load, event])
    return OK if loads else None


def _judge_open_store(event: Evict, engine: Engine) -> Judgement:
    """Whether an open store writes the chunk that leaves the store."""
    ends = engine.transfer_ends.get((event.connector_id, "store"))
    if ends is None or not ends.writes:
        return None
    store = ends.writes.get(event.chunk_key or "")
    if store is None:
        return OK
    numbers = {
        "where": "being written",
        "key": event.chunk_key,
        "transfer": store.transfer_id,
        "count": store.count,
    }
    return Drift(numbers, [store, event])


def _judge_fetch(event: Prefetch, engine: Engine) -> Judgement:
    """Whether chunks are fetched again that were evicted before the request loaded them."""
    if not event.chunk_keys:
        return None
    known = engine.states[Fetches].of.get(event.request or "", {})
    before = [known.get((event.connector_id, key), (None, None)) for key in event.chunk_keys]
    again = [(fetch, evicted) for fetch, evicted in before if fetch is not None and evicted is not None]
    if not again:
        return OK
    fetch, evicted = again[0]
    numbers = {
        "where": "fetched",
        "key": evicted.chunk_key,
        "again": len(again),
        "fetched": len(event.chunk_keys),
    }
    return Drift(numbers, [fetch, evicted, event], severity=Severity.WASTED_WORK)

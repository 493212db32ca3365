from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtrail.tracer.events.events import (
    Alloc,
    Evict,
    LoadError,
    LoadPlan,
    Lookup,
    RequestEnd,
    Reset,
    Schedule,
    StorePlan,
)
from kvtrail.tracer.ledger.block_table import BlockTable
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule

MOST_STORES = 1000
"""Maximum number of remembered stores of an engine: those of one step, or of two if it is scheduled ahead."""
MOST_ENDED = 64
"""Maximum number of remembered requests with an error: `kv_load_failure_policy=fail` ends a request before its failed blocks
are reported."""
MOST_CHUNKS = 10_000
"""Maximum number of remembered wrong chunks."""
ERROR = "error"
"""The outcome of a request that vLLM ended because its load failed."""


class WrongChunk(NamedTuple):
    """The store of a chunk, and the error that came after it."""

    store: StorePlan
    error: LoadError


@dataclass(slots=True)
class WrongChunks:
    """Chunks of an engine's stores that a step computed from a failed load.

    After a step, vLLM reports the failed blocks of loads within it. If a request has such a block, the chunks that the step
    stored of it are wrong from that block on, although their keys are right.

    Attributes:
        of: the wrong chunks, by connector and key.
    """

    of: dict[tuple[str, str], WrongChunk] = field(default_factory=dict)
    _loading: dict[int, int] = field(default_factory=dict)
    """By block, the sequence number of the allocation for the latest load that writes it within a step."""
    _stores: deque[StorePlan] = field(default_factory=lambda: deque(maxlen=MOST_STORES))
    _ended: dict[str, BlockTable] = field(default_factory=dict)

    def _enter_alloc(self, event: Alloc, engine: Engine) -> None:
        """Enter an allocation of blocks into which the lookup's hit is loaded."""
        lookup = engine.last_lookup(event)
        if not event.allocated or event.error is not None or event.blocks_ids is None or lookup is None:
            return
        end = lookup.computed + event.allocated
        for size, ids in BlockTable(event).sized():
            for block in ids[lookup.computed // size : -(-end // size)]:
                if lookup.is_async:
                    self._loading.pop(block, None)
                else:
                    self._loading[block] = event.sequence

    def _enter_store_plan(self, event: StorePlan, engine: Engine) -> None:
        """Enter a store of chunks. A numbered store may copy later, when the blocks have been computed again."""
        if event.chunk_present:
            return
        if self.of:
            self.forget(event.connector_id, *(event.chunk_keys or ()))
        if self._loading and event.transfer_id is None and event.start is not None and event.chunk_size:
            self._stores.append(event)

    def _enter_request(self, event: RequestEnd, engine: Engine) -> None:
        table = engine.tables.get(event.request or "")
        if event.outcome == ERROR and table is not None and not event.free_delayed:
            if len(self._ended) >= MOST_ENDED:
                self._ended.pop(next(iter(self._ended)))
            self._ended[event.request or ""] = table

    def _enter_load_error(self, event: LoadError, engine: Engine) -> None:
        """Enter failed loads. If a request has such a block, its chunks stored since the load began are wrong from it on."""
        failed = {block: self._loading.pop(block) for block in event.blocks_ids if block in self._loading}
        for store in self._stores if failed else ():
            table = engine.tables.get(store.request or "") or self._ended.get(store.request or "")
            from_token = None if table is None else _first_wrong(table, failed, store)
            if from_token is None or len(self.of) >= MOST_CHUNKS:
                continue
            for number, key in enumerate(store.chunk_keys or (), start=1):
                if (store.start or 0) + min(number * (store.chunk_size or 0), store.count) > from_token:
                    self.of[store.connector_id, key] = WrongChunk(store, event)

    def forget(self, connector_id: str, *keys: str) -> None:
        """Forget chunks that are stored again, or have left the store."""
        for key in keys:
            self.of.pop((connector_id, key), None)

    def _enter_evict(self, event: Evict, engine: Engine) -> None:
        if event.chunk_key is not None:
            self.forget(event.connector_id, event.chunk_key)

    def _enter_reset(self, event: Reset, engine: Engine) -> None:
        if event.succeeded is not False:
            self.of = {chunk: why for chunk, why in self.of.items() if chunk[0] != event.connector_id}


class FailedLoadUsed(EngineRule[Schedule | StorePlan | Lookup | LoadPlan]):
    State = WrongChunks

    def judge(self, event: Schedule | StorePlan | Lookup | LoadPlan, engine: Engine) -> Judgement:
        if type(event) is Schedule:
            return _judge_step(event, engine)
        return _judge_store(event, engine) if type(event) is StorePlan else _judge_hit(event, engine)


def _judge_step(event: Schedule, engine: Engine) -> Judgement:
    if not engine.invalid:
        return None
    table = engine.tables.get(event.request or "")
    if table is None or not event.block_size:
        return engine.missing or Unknown.LEVEL
    for number, (size, ids) in enumerate(table.sized()):
        needed = table.needed_from(number, event.computed)
        for position, block in enumerate(ids[needed : -(-event.computed // size)], needed):
            if block not in engine.invalid or event.request in engine.recomputing.get(block, ()):
                continue
            if not _may_be_computed_beside(event, block, position * size, engine):
                numbers = {
                    "where": "run on",
                    "block": block,
                    "first_invalid": position * size,
                    "begins": event.computed,
                }
                return Drift(numbers, [engine.invalid[block], event])
    return OK


def _may_be_computed_beside(event: Schedule, block: int, start: int, engine: Engine) -> bool:
    """Whether another request may compute the block to its end in this step. It may be the request that failed to load it, if
    it has not run since, or, for a new request, not up to the block's first token `start`. Or it may be one that has begun
    the block. A step's new requests are recorded before running ones. The next step of this request shows the result."""
    step = event.scheduler_step
    if step is None:
        return False
    owner = engine.invalid[block].request or ""
    ran = engine.ran_since.get(owner)
    comes_to = owner != event.request and (
        ran is None
        or (event.request in engine.admitted and ran.scheduler_step != step and ran.computed + ran.scheduled <= start)
    )
    if comes_to and owner in engine.tables:
        return True
    begun = (each for each in engine.recomputing.get(block, ()) if each in engine.tables)
    return any((ran := engine.ran_since.get(each)) is None or ran.scheduler_step != step for each in begun)


def _judge_store(event: StorePlan, engine: Engine) -> Judgement:
    if not engine.invalid or not event.blocks_ids or event.chunk_present:
        return None
    begun = engine.recomputing
    failed = [b for b in event.blocks_ids if b in engine.invalid and event.request not in begun.get(b, ())]
    if not failed:
        return OK
    numbers = {"where": "stored", "block": failed[0], "failed": len(failed), "count": event.count}
    return Drift(numbers, [engine.invalid[failed[0]], event])


def _judge_hit(event: Lookup | LoadPlan, engine: Engine) -> Judgement:
    """Whether a lookup or a load names chunks that were stored by a step which ran on a failed load."""
    if not event.chunk_keys:
        return None
    known = engine.states[WrongChunks].of
    wrong = [key for key in event.chunk_keys if (event.connector_id, key) in known] if known else []
    if not wrong:
        return engine.keys(event.connector_id).unsure(event.chunk_keys) or OK
    first = known[event.connector_id, wrong[0]]
    numbers = {
        "where": "found",
        "key": wrong[0],
        "other": first.store.request,
        "wrong": len(wrong),
        "found": len(event.chunk_keys),
    }
    return Drift(numbers, [first.store, first.error, event])


def _first_wrong(table: BlockTable, failed: Mapping[int, int], store: StorePlan) -> int | None:
    """The first token of a request in a block whose failed load was allocated before the store; None if there is none."""
    places = (
        number * size
        for size, ids in table.sized()
        for number, block in enumerate(ids)
        if failed.get(block, store.sequence) < store.sequence
    )
    return min(places, default=None)

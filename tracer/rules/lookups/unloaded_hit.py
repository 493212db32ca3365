"""unloaded-hit: a prefix cache hit on blocks that are still being loaded."""

from __future__ import annotations

from kvtrail.tracer.events.events import Alloc
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.block_table import loaded_into
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule, Groups


class UnloadedHit(EngineRule[Alloc]):
    """A request hits blocks that another request is still loading.

    Invariant: a block into which an asynchronous load of a request is under way is in no other request's table; it enters the
    prefix cache when the load has been received without an error.

    What the loading request had of the prefix cache itself may be shared, and so may blocks that are being stored. A block
    that the loading request has given up is judged by `block-reuse`, a request that runs on after a failed load by
    `failed-load-resume`. Source: vLLM, `KVCacheManager.allocate_slots` with `delay_cache_blocks`, and
    `Scheduler._update_waiting_for_remote_kv`, which caches the blocks; the incident is bytedance-iaas/sglang #768
    (https://github.com/bytedance-iaas/sglang/pull/768). Needs block ids (level `detailed`), and every event of the
    engine while the load is open.
    """

    id = "unloaded-hit"
    only_with = "blocks_ids"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C16",)
    hint = (
        "The blocks were entered into the prefix cache when they were allocated: enter them when the load has been received,"
        " and only those that were loaded."
    )
    explanation = (
        "At {0} request {owner} began to load {loading} tokens asynchronously. At {1}, before that load has ended, this"
        " request is given {shared} of the blocks that it loads into as computed ones, the first is block {block}:"
        " whatever they hold now is read as KV."
    )

    def judge(self, event: Alloc, engine: Engine) -> Judgement:
        if event.blocks_ids is None or event.error is not None or not engine.loads:
            return None
        shared: dict[str, list[int]] = {}
        for block in event.blocks_ids:
            for owner in engine.transfers.get(block, ()):
                table = engine.tables.get(owner)
                if owner != event.request and table is not None and table.holds(block):
                    shared.setdefault(owner, []).append(block)
        for owner, blocks in shared.items():
            load = engine.loads.get(owner)
            if load is None:
                continue  # they are stored, or loaded within a step
            if not load.block_size or load.total is None:
                return Unknown.UNSEEN
            into = frozenset(loaded_into(load))
            hit = [block for block in blocks if block in into]
            if hit:
                numbers = {"owner": owner, "loading": load.allocated, "shared": len(hit), "block": hit[0]}
                return Drift(numbers, [load, event])
        return OK

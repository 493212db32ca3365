"""For each requirement a connector that breaks it, a workload that shows that, and the judge that sees it; or why not.

A fault of `tests/faults` in the OffloadConnector shows what only a probe shows. A bug planted in a small host cache without a
probe shows what bytes, lookups, calls and what is left in the end show.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "check"))  # where vLLM imports `planted` from


class Breaker(NamedTuple):
    """A connector, what it is driven with, and who sees what it breaks."""

    connector: str
    profile: str
    judge: str
    seed: int = 0
    config: dict[str, Any] | None = None


TINY = {"chunk_blocks": 2, "ram_chunks": 4, "disk_chunks": 32}
WITHIN, BETWEEN = {"chunk_size": 64, "load_async": False}, {"chunk_size": 64, "load_async": True}


def fault(name: str, profile: str, judge: str = "", config: dict[str, Any] | None = None) -> Breaker:
    return Breaker(f"Faulty:{name}:OffloadConnector", profile, judge or name, 0, config or WITHIN)


def planted(name: str, profile: str, judge: str, seed: int = 0, config: dict[str, Any] | None = None) -> Breaker:
    return Breaker(f"planted.{name}", profile, judge, seed, config)


BREAKERS: dict[str, Breaker] = {
    "core.lookup.beyond-computed": planted("store_bugs:ComputedNotSubtracted", "chunked-prefill", "over-report"),
    "core.lookup.leaves-a-token": fault("full-hit", "chunked-prefill"),
    "core.lookup.only-stored": Breaker("silent:FindsEverything", "chunked-prefill", "hits"),
    "core.lookup.free-of-side-effects": fault("stale-lookup", "retry"),
    "core.lookup.after-preemption": fault("stale-lookup", "preemption-storm"),
    "core.lookup.identity": fault("key-collision", "identity"),
    "core.lookup.after-eviction": fault("evicted-hit", "full-store", "phantom-hit"),
    "core.allocation.as-offered": fault("alloc-mismatch", "chunked-prefill"),
    "core.allocation.nothing-to-load": fault("unselected-load", "multi", "load-range/nothing allocated", BETWEEN),
    "core.allocation.after-retries": fault("load-range", "chunked-prefill", "load-range/beyond the allocation"),
    "core.load.contents": fault("layer-left-out", "chunked-prefill", "bytes"),
    "core.load.whole": fault("load-range", "chunked-prefill", "load-range/beyond the allocation"),
    "core.load.own-blocks": fault("plan-blocks", "preemption-storm", "plan-blocks/table"),
    "core.load.in-time": fault("late-load", "chunked-prefill", "bytes"),
    "core.load.kept-until-read": fault("evicted-hit", "full-store", "evicted-in-use/found"),
    "core.load.goes-on-behind": fault("resume-point", "chunked-prefill"),
    "core.store.computed": fault("store-uncomputed", "preemption-storm"),
    "core.store.no-gap": fault("store-gap", "chunked-prefill"),
    "core.store.keys": fault("key-mismatch", "chunked-prefill"),
    "core.store.room": fault("self-eviction", "full-store"),
    "core.store.as-large": planted("store_bugs:SlotLostByTwins", "room", "rest/room"),
    "core.store.read-before-reuse": planted(
        "shelf_bugs:NoFenceOnPreemption", "combined", "bytes", 1, {"slots": 300, "between": False, "delay": 2}
    ),
    "core.store.same-prefix-at-once": planted("store_bugs:SlotLostByTwins", "room", "rest/room"),
    "core.preemption.begins-again": fault("plan-blocks", "preemption-storm", "plan-blocks/table"),
    "core.reset.forgets": fault("reset-hit", "reset"),
    "core.reset.stores-again": planted("store_bugs:LookupMovesMark", "preemption-storm", "rest/reset"),
    "core.reset.while-running": fault("reset-hit", "reset"),
    "core.end.blocks": planted("bugs:BlocksKeptForEver", "async", "late-free"),
    "core.end.memory": planted("bugs:PinForEachRetry", "retry", "rest/memory"),
    "core.end.many": planted("bugs:StateOfAnOldRequest", "crowd", "rest/memory"),
    "core.end.same-id": planted("bugs:StateOfAnOldRequest", "same-id", "bytes"),
    "core.end.kept-blocks": planted("store_bugs:FreedWhileStored", "chunked-prefill", "stray-completion"),
    "core.engine.lives": fault("failed-call", "chunked-prefill"),
    "core.engine.serves": fault("idle-preemption", "preemption-storm", "never-scheduled/after its lookup"),
    "core.engine.statistics": fault("statistics", "chunked-prefill"),
    "core.engine.steps": fault("unreported-blocks", "chunked-prefill"),
    "extended.async-loads.declared": planted("bugs:AsyncConstant", "async", "async-declaration"),
    "extended.async-loads.received-once": planted("store_bugs:SaidTwice", "preemption-storm", "stray-completion"),
    "extended.async-loads.in-place": planted("store_bugs:SaidTooEarly", "async", "bytes"),
    "extended.async-loads.ends": planted("store_bugs:NeverSaid", "preemption-storm", "stuck-load"),
    "extended.async-loads.blocks-of-its-own": planted("store_bugs:SaidTooEarly", "async", "bytes"),
    "extended.async-lookups.answered": Breaker("silent:SaysLater", "chunked-prefill", "endless-deferral"),
    "extended.async-lookups.aborted": planted(
        "tiered_bugs:AbortedPrefetchKeepsItsPins", "abort", "rest/memory", 1, {**TINY, "prefetch_chunks": 3}
    ),
    "extended.failures.computed-again": fault("failed-load-resume", "load-failure", "failed-load-used/run on"),
    "extended.failures.not-stored": planted(
        "shelf_bugs:StoreOfASharerKept", "load-failure", "bytes", 1, {"slots": 300, "between": False, "delay": 0}
    ),
    "extended.failures.not-offered": planted("bugs:StoresOfFailedLoadKept", "load-failure", "hits", 3),
    "extended.failures.all-of-core": planted("shelf_bugs:LeaseOfAFailedLoadKept", "load-failure", "rest/room"),
    "extended.groups.joint-boundary": fault("joint-boundary", "groups", "partial-hit/groups", BETWEEN),
    "extended.ranks.shortest": fault("rank-disagreement", "ranks", "partial-hit/ranks"),
    "extended.ranks.own-part": planted("store_bugs:OneMemoryForAllRanks", "ranks", "bytes"),
    "extended.pull.contents": planted("hand_offs:ReadsFromTheHead", "handoffs", "bytes"),
    "extended.events.stored": planted("reporting:ReportedTooEarly", "kv-events", "kv-events"),
    "extended.events.removed": planted("reporting:MoreRemoved", "kv-events", "kv-events"),
    "extended.probe.agrees": fault("double-free", "chunked-prefill"),
}
"""By requirement. The judge is one of those that it names, and the one that has found the failure."""

NOT_SHOWN: dict[str, str] = {
    "core.abort.waiting": "test_planted.py plays a lease that is kept, with an abort of each request that waits with a hit",
    "core.abort.running": "its judges are shown for `core.end.memory` and `core.store.as-large`",
    "core.abort.preempted": "its judges are shown for `core.end.memory` and `core.store.as-large`",
    "extended.groups.states": "tests/connector/faults/test_faults.py plays the fault of its rule",
    "extended.layers.saved": "bytes, its judge, is shown for `core.load.contents`",
    "core.store.not-under-load": "it needs a probe; tests/connector/faults/test_faults.py plays the fault of its rule",
    "core.preemption.frees": "tests/connector/faults/test_faults.py plays the fault of its rule",
    "core.store.drafts": "`store-uncomputed`, its judge, is shown for `core.store.computed`; it needs a probe",
    "extended.async-loads.aborted": "its judges are shown for `core.end.blocks` and `core.end.kept-blocks`",
    "extended.async-loads.reset": "its judges are shown for `core.reset.forgets` and `core.end.blocks`",
    "extended.async-lookups.true-when-answered": "its judges are shown for `core.lookup.beyond-computed`",
    "extended.failures.received-too": "the simulator makes loads fail and reports them; a connector cannot leave that out",
    "extended.groups.blocks": "its judges are shown for `core.load.own-blocks`; without a probe, bytes alone",
    "extended.groups.all-of-core": "what fails in core fails here: any breaker of core that claims several groups",
    "extended.ranks.all-of-core": "what fails in core fails here: any breaker of core, with two ranks",
    "extended.layers.loaded": "bytes, its judge, is shown for `core.load.in-time`",
    "extended.pull.kept": "tests/connector/simulate/test_pairs.py plays its judges' faults",
    "extended.pull.one-name": "tests/connector/simulate/test_pairs.py plays its judges' faults",
    "extended.pull.lease": "tests/connector/simulate/test_pairs.py plays its judges' faults",
    "extended.pull.acknowledged": "tests/connector/simulate/test_pairs.py plays its judges' faults",
    "extended.pull.failure": "tests/connector/simulate/test_pairs.py plays its judges' faults",
    "extended.pull.all-of-core": "what fails in core fails here",
    "extended.push.contents": "tests/connector/simulate/test_pairs.py plays its judges' faults",
    "extended.push.kept": "tests/connector/simulate/test_pairs.py plays its judges' faults",
    "extended.push.all-of-core": "what fails in core fails here",
    "extended.events.all-of-core": "what fails in core fails here: any breaker of core that reports events",
}
"""Requirements that no connector here breaks, and why."""

"""For each requirement a connector that breaks it, a workload that shows that, and exactly what fails.

A fault of `tests/faults` in the OffloadConnector shows what only a probe shows. A bug planted in a small host cache without a
probe shows what bytes, lookups, calls and what is left in the end show.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "check"))  # where vLLM imports `planted` from


class Breaker(NamedTuple):
    """A connector, and what one run with it fails.

    Attributes:
        judge: one of the requirement's judges, which sees what the connector does wrong.
        then: the other judges that see what follows from that, as wrong bytes behind a wrong plan.
        also: the other requirements that fail. Each names one of these judges, and what the judge compares is wrong
            whichever of its requirements was broken: wrong KV is seen where it is read, and not why it is wrong. In the world
            of a feature “all of core holds” fails too, and is not named.
    """

    connector: str
    profile: str
    judge: str
    seed: int = 0
    config: dict[str, Any] | None = None
    then: str = ""
    also: str = ""


TINY = {"chunk_blocks": 2, "ram_chunks": 4, "disk_chunks": 32, "prefetch_chunks": 3}
SHELF, LARGE_SHELF = {"slots": 40, "between": True, "delay": 2}, {"slots": 300, "between": False, "delay": 2}
BY_LAYER = {"capacity": 400, "load_async": False}
WITHIN, BETWEEN = {"chunk_size": 64, "load_async": False}, {"chunk_size": 64, "load_async": True}
WRONG_KV = (
    "core.load.contents core.load.in-time core.load.own-blocks core.load.whole core.store.computed core.store.keys "
)
"""At risk in every run that loads, with `bytes` as a judge."""


def fault(name: str, profile: str, judge: str = "", *, of: str = "OffloadConnector", **more: Any) -> Breaker:
    """One of the OffloadConnector that loads within a step, unless it says otherwise."""
    config = WITHIN if of == "OffloadConnector" else None
    return Breaker(f"Faulty:{name}:{of}", profile, judge or name, **{"config": config} | more)


NATIVE = "OffloadingConnector"

# fmt: off
BREAKERS: dict[str, Breaker] = {
    "core.lookup.beyond-computed": Breaker("planted.store_bugs:ComputedNotSubtracted", "chunked-prefill", "over-report"),
    "core.lookup.leaves-a-token": fault("no-token-left", "chunked-prefill"),
    "core.lookup.only-stored": Breaker("silent:FindsEverything", "chunked-prefill", "hits",
        also="core.lookup.free-of-side-effects"),
    "core.lookup.free-of-side-effects": fault("stale-lookup", "retry",
        also="core.lookup.after-preemption core.lookup.beyond-computed"),
    "core.lookup.after-preemption": fault("stale-lookup", "preemption-storm", also="core.lookup.beyond-computed"),
    "core.lookup.identity": fault("key-collision", "identity", then="bytes hits",
        also=WRONG_KV + "core.lookup.only-stored core.reset.forgets"),
    "core.lookup.after-eviction": fault("evicted-hit", "retry", "phantom-hit", then="evicted-in-use",
        also="core.load.kept-until-read core.lookup.only-stored extended.probe.agrees"),
    "core.allocation.as-offered": fault("alloc-mismatch", "chunked-prefill", then="wrong-resume-offset",
        also="core.load.goes-on-behind"),
    "core.allocation.nothing-to-load": fault("unselected-load", "multi", "load-range/nothing allocated", then="failed-call",
        also="core.engine.lives"),
    "core.allocation.after-retries": fault("load-range", "retry", "load-range/beyond the allocation",
        also="core.load.whole extended.probe.agrees"),
    "core.load.contents": fault("layer-left-out", "chunked-prefill", "bytes",
        also=WRONG_KV + "core.allocation.after-retries"),
    "core.load.whole": fault("short-load", "chunked-prefill", "incomplete-load/short"),
    "core.load.own-blocks": fault("block-shortage", "chunked-prefill"),
    "core.load.in-time": fault("late-load", "chunked-prefill", "bytes", also=WRONG_KV + "core.allocation.after-retries"),
    "core.load.kept-until-read": fault("evicted-hit", "retry", "evicted-in-use/found", then="phantom-hit",
        also="core.lookup.after-eviction core.lookup.only-stored extended.probe.agrees"),
    "core.load.goes-on-behind": fault("wrong-resume-offset", "chunked-prefill", then="unreported-blocks",
        also="core.engine.steps"),
    "core.store.computed": fault("store-uncomputed", "preemption-storm", then="block-shortage", also="core.load.own-blocks"),
    "core.store.drafts": fault("store-uncomputed", "spec-decode", then="bytes", also=WRONG_KV),
    "core.store.no-gap": fault("store-short", "chunked-prefill", "store-gap", then="bytes evicted-in-use phantom-hit",
        also=WRONG_KV
        + "core.allocation.after-retries core.load.kept-until-read core.lookup.only-stored extended.probe.agrees"),
    "core.store.keys": fault("key-mismatch", "chunked-prefill", also="extended.probe.agrees"),
    "core.store.room": fault("self-eviction", "full-store", then="evicted-in-use phantom-hit",
        also="core.load.kept-until-read core.lookup.after-eviction core.lookup.only-stored extended.probe.agrees"),
    "core.store.as-large": Breaker("planted.store_bugs:SlotLostByTwins", "room", "rest/room",
        also="core.abort.waiting core.store.same-prefix-at-once"),
    "core.store.not-under-load": fault("store-under-load", "async", "read-before-loaded/stored", of=NATIVE,
        then="failed-call", also="core.engine.lives"),
    "core.store.read-before-reuse": Breaker("planted.shelf_bugs:NoFenceOnPreemption", "combined", "bytes", 1, LARGE_SHELF,
        also=WRONG_KV + (
            "core.abort.running core.allocation.after-retries core.end.same-id core.preemption.begins-again "
            "core.reset.while-running"
        )),
    "core.store.same-prefix-at-once": Breaker("planted.store_bugs:SlotLostByTwins", "room", "rest/room",
        also="core.abort.waiting core.store.as-large"),
    "core.preemption.begins-again": fault("plan-blocks", "preemption-storm", "plan-blocks/table", then="bytes",
        also=WRONG_KV + "core.allocation.after-retries extended.probe.agrees"),
    "core.preemption.frees": fault("idle-preemption", "preemption-storm", seed=2, then="never-scheduled",
        also="core.engine.serves"),
    "core.abort.waiting": Breaker("breaking:RemembersTheWaiting", "abort", "rest/memory", 2, also="core.end.memory"),
    "core.abort.running": Breaker("breaking:RemembersTheRunning", "mixed", "rest/memory", also="core.end.memory"),
    "core.abort.preempted": Breaker("breaking:RemembersThePreempted", "abort", "rest/memory", 5, SHELF,
        also="core.abort.running core.abort.waiting core.end.memory"),
    "core.reset.forgets": fault("reset-hit", "reset", then="evicted-in-use hits phantom-hit",
        also=(
            "core.load.kept-until-read core.lookup.free-of-side-effects core.lookup.only-stored core.reset.while-running "
            "extended.probe.agrees"
        )),
    "core.reset.stores-again": Breaker("planted.store_bugs:LookupMovesMark", "preemption-storm", "rest/reset"),
    "core.reset.while-running": fault("reset-hit", "reset", then="evicted-in-use hits phantom-hit",
        also=(
            "core.load.kept-until-read core.lookup.free-of-side-effects core.lookup.only-stored core.reset.forgets "
            "extended.probe.agrees"
        )),
    "core.end.blocks": Breaker("breaking:TouchesABlock", "retry", "rest/blocks"),
    "core.end.memory": Breaker("planted.bugs:PinForEachRetry", "retry", "rest/memory"),
    "core.end.many": Breaker("planted.bugs:StateOfAnOldRequest", "crowd", "rest/memory",
        also="core.abort.waiting core.end.memory core.store.same-prefix-at-once"),
    "core.end.same-id": Breaker("planted.bugs:StateOfAnOldRequest", "same-id", "bytes", also=WRONG_KV + "core.abort.running"),
    "core.end.kept-blocks": Breaker("planted.store_bugs:FreedWhileStored", "chunked-prefill", "stray-completion"),
    "core.engine.lives": fault("failed-call", "chunked-prefill"),
    "core.engine.serves": fault("idle-preemption", "preemption-storm", "never-scheduled/after its lookup"),
    "core.engine.statistics": fault("stats-mismatch", "chunked-prefill"),
    "core.engine.steps": fault("unreported-blocks", "chunked-prefill", then="plan-blocks",
        also="core.load.own-blocks extended.probe.agrees"),
    "extended.async-loads.declared": Breaker("planted.bugs:AsyncConstant", "async", "async-declaration"),
    "extended.async-loads.received-once": Breaker("planted.store_bugs:SaidTwice", "preemption-storm", "stray-completion"),
    "extended.async-loads.in-place": Breaker("planted.store_bugs:SaidTooEarly", "async", "bytes",
        also=WRONG_KV + (
            "core.allocation.after-retries core.preemption.begins-again core.store.read-before-reuse "
            "extended.async-loads.blocks-of-its-own"
        )),
    "extended.async-loads.ends": Breaker("planted.store_bugs:NeverSaid", "preemption-storm", "stuck-load"),
    "extended.async-loads.blocks-of-its-own": fault("unloaded-hit", "async", "read-before-loaded/hit", of=NATIVE,
        then="bytes",
        also=WRONG_KV + (
            "core.allocation.after-retries core.preemption.begins-again core.store.read-before-reuse "
            "extended.async-loads.in-place"
        )),
    "extended.async-loads.aborted": Breaker("breaking:LoadOfTheAbortedNotSaid", "room", "late-free", 0, SHELF,
        also="core.end.kept-blocks"),
    "extended.async-loads.reset": Breaker("breaking:ResetDuringALoad", "reset", "bytes", 3, SHELF | {"slots": 12, "delay": 4},
        also=WRONG_KV + (
            "core.reset.while-running core.store.read-before-reuse extended.async-loads.blocks-of-its-own "
            "extended.async-loads.in-place"
        )),
    "extended.async-lookups.answered": Breaker("silent:SaysLater", "chunked-prefill", "endless-deferral"),
    "extended.async-lookups.true-when-answered": Breaker("breaking:AnswersLater", "combined", "stale-lookup", 0, SHELF,
        also="core.lookup.after-preemption core.lookup.beyond-computed"),
    "extended.async-lookups.aborted": Breaker("planted.tiered_bugs:AbortedPrefetchKeepsItsPins", "abort", "rest/memory", 1,
        TINY, also="core.abort.preempted core.end.memory"),
    "extended.failures.computed-again": fault("failed-load-resume", "load-failure", "failed-load-used/run on"),
    "extended.failures.not-stored": Breaker("planted.shelf_bugs:StoreOfASharerKept", "load-failure", "bytes", 1,
        LARGE_SHELF | {"delay": 0}, also="extended.failures.computed-again"),
    "extended.failures.not-offered": Breaker("planted.bugs:StoresOfFailedLoadKept", "load-failure", "hits", 3, then="bytes",
        also="extended.failures.computed-again extended.failures.not-stored"),
    "extended.failures.received-too": Breaker("breaking:FailedAndNotSaid", "load-failure", "stuck-load", 0, SHELF),
    "extended.failures.all-of-core": Breaker("planted.shelf_bugs:LeaseOfAFailedLoadKept", "load-failure", "rest/room", 1,
        SHELF | {"slots": 12}),
    "extended.groups.joint-boundary": fault("joint-boundary", "groups", "partial-hit/groups", config=BETWEEN),
    "extended.groups.blocks": fault("plan-blocks", "groups", "plan-blocks/table", config=BETWEEN, then="bytes",
        also="extended.groups.joint-boundary"),
    "extended.groups.states": fault("state-boundary", "states", of=NATIVE, seed=1),
    "extended.groups.all-of-core": fault("failed-call", "groups", config=BETWEEN),
    "extended.ranks.shortest": fault("rank-disagreement", "ranks", "partial-hit/ranks"),
    "extended.ranks.own-part": Breaker("planted.store_bugs:OneMemoryForAllRanks", "ranks", "bytes",
        also="extended.ranks.shortest"),
    "extended.ranks.all-of-core": fault("failed-call", "ranks", config=BETWEEN),
    "extended.layers.loaded": Breaker("breaking:LayerLoadedTooLate", "chunked-prefill", "bytes", 0, BY_LAYER,
        also=WRONG_KV + "core.allocation.after-retries extended.layers.saved"),
    "extended.layers.saved": Breaker("breaking:LayerSavedTwice", "chunked-prefill", "bytes", 0,
        BY_LAYER | {"load_async": True},
        also=WRONG_KV + "core.allocation.after-retries extended.async-loads.blocks-of-its-own extended.async-loads.in-place"),
    "extended.pull.kept": fault("refused-handoff", "handoff"),
    "extended.pull.one-name": Breaker("breaking:NamesAll", "handoffs", "ambiguous-handoff"),
    "extended.pull.contents": Breaker("planted.hand_offs:ReadsFromTheHead", "handoffs", "bytes",
        also="extended.pull.failure"),
    "extended.pull.lease": Breaker("breaking:LeasesEndAtOnce", "handoffs", "stale-handoff/given", then="bytes",
        also="extended.pull.contents extended.pull.failure"),
    "extended.pull.acknowledged": Breaker("planted.hand_offs:ReadsWithoutAReport", "handoffs", "unacknowledged-handoff"),
    "extended.pull.failure": Breaker("breaking:FailsOnceAndForAll", "handoffs", "bytes", then="unacknowledged-handoff",
        also="extended.pull.acknowledged extended.pull.contents"),
    "extended.pull.all-of-core": Breaker("planted.hand_offs:BeatsForEver", "handoffs", "rest/memory", then="late-free",
        also="extended.pull.acknowledged"),
    "extended.push.contents": Breaker("breaking:PushesBackwards", "handoffs", "bytes", 3),
    "extended.push.kept": Breaker("breaking:PushesWhatItFreed", "handoffs", "refused-handoff", 3,
        then="bytes stray-completion", also="extended.push.contents"),
    "extended.push.all-of-core": Breaker("breaking:PushBeatsForEver", "handoffs", "rest/memory", 3),
    "extended.events.stored": Breaker("planted.reporting:ReportedTooEarly", "kv-events", "kv-events",
        also="extended.events.removed"),
    "extended.events.removed": Breaker("planted.reporting:MoreRemoved", "kv-events", "kv-events",
        also="extended.events.stored"),
    "extended.events.all-of-core": Breaker("breaking:ReportsAndLosesSlots", "kv-events", "rest/room"),
    "extended.probe.agrees": fault("double-free", "chunked-prefill"),
}
"""By requirement."""
# fmt: on

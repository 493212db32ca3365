"""Known bugs, injectable into a connector: each rule is proven by the bug that it finds. For tests and demos only.

A fault is asked for by name, `Faulty:<fault>:<connector>`, so that no setting can switch one on by accident. Most of them
know the OffloadConnector or vLLM's OffloadingConnector from inside; `FAULTS` says which rule each is for.
"""

from __future__ import annotations

from kvtrail.connector.faults import lookups, plans, told, transfers

FAULTS: dict[str, type] = {
    "stale-lookup": lookups.StaleLookup,
    "over-report": lookups.OverReport,
    "full-hit": lookups.FullHit,
    "alloc-mismatch": lookups.AllocMismatch,
    "async-declaration": lookups.AsyncDeclaration,
    "phantom-hit": lookups.PhantomHit,
    "reset-hit": lookups.ResetHit,
    "resume-point": plans.ResumePoint,
    "plan-blocks": plans.PlanBlocks,
    "load-range": plans.LoadRange,
    "unselected-load": plans.UnselectedLoad,
    "store-gap": plans.StoreGap,
    "store-short": plans.StoreShort,
    "untold-blocks": plans.UntoldBlocks,
    "retried-lookup": plans.RetriedLookup,
    "store-uncomputed": plans.StoreUncomputed,
    "evicted-hit": plans.EvictedHit,
    "block-reuse": transfers.BlockReuse,
    "load-store-overlap": transfers.LoadStoreOverlap,
    "stray-completion": transfers.StrayCompletion,
    "stuck-load": transfers.StuckLoad,
    "stuck-promotion": transfers.StuckPromotion,
    "late-free": transfers.LateFree,
    "failed-load-resume": transfers.FailedLoadResume,
    "idle-preemption": transfers.IdlePreemption,
    "short-load": told.ShortLoad,
    "block-shortage": told.BlockShortage,
    "rank-disagreement": told.RankDisagreement,
    "wasted-prefetch": told.WastedPrefetch,
    "lock-leak": told.LockLeak,
    "double-free": told.DoubleFree,
    "statistics": told.Statistics,
    "key-mismatch": told.KeyMismatch,
    "index-drift": told.IndexDrift,
    "late-read": told.LateRead,
}
"""The faults by name; the name is that of the rule which finds it."""


def inject(fault: type, cls: type) -> type:
    """A subclass of a connector class with the fault in front of it."""
    return type(cls.__name__, (fault, cls), {"__module__": "kvtrail.connector", "__doc__": fault.__doc__})

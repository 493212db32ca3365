"""Known bugs, to be injected into a connector: each rule is proven by the bug that it finds. For tests and demos only.

In comes a connector class and a fault by name, `Faulty:<fault>:<connector>`, so that no setting can switch one on by
accident; out comes the class with the fault in front of it. Most are for the OffloadConnector, some for vLLM's
OffloadingConnector.
"""

from __future__ import annotations

from kvtrail.connector.faults import lookups, plans, reports, transfers

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
    "short-load": reports.ShortLoad,
    "block-shortage": reports.BlockShortage,
    "rank-disagreement": reports.RankDisagreement,
    "wasted-prefetch": reports.WastedPrefetch,
    "lock-leak": reports.LockLeak,
    "double-free": reports.DoubleFree,
    "statistics": reports.Statistics,
    "key-mismatch": reports.KeyMismatch,
    "index-drift": reports.IndexDrift,
    "late-read": reports.LateRead,
}
"""The faults by name; the name is that of the rule which finds it."""


def inject(fault: type, cls: type) -> type:
    """A subclass of a connector class with the fault in front of it."""
    return type(cls.__name__, (fault, cls), {"__module__": "kvtrail.connector", "__doc__": fault.__doc__})

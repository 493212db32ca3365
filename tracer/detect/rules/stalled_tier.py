"""stalled-tier: a full tier of the store evicts nothing and refuses what comes."""

from __future__ import annotations

from kvtrail.tracer.detect.engine_state import Engine, is_full
from kvtrail.tracer.detect.rules import EngineRule
from kvtrail.tracer.model.events import Pool
from kvtrail.tracer.model.findings import Drift, Judgement, Severity, Verdict

STALLED_S = 60.0
REFUSED = 3
"""Stores that a full tier may refuse without evicting anything."""


class StalledTier(EngineRule[Pool]):
    """A full tier of the store evicts nothing, and refuses stores.

    Invariant: a tier of which nine tenths are in use for 60 seconds evicts a chunk before it has refused three stores, unless
    chunks are locked.

    A full tier is normal, and so is a single refused store. Source: a cache makes room for what is new; the incident is
    LMCache #4817 (https://github.com/LMCache/LMCache/issues/4817). Needs a connector that reports the state of its tiers, its
    evictions and the ends of its stores, and every event of the engine.
    """

    id = "stalled-tier"
    severity = Severity.WASTED_WORK
    classes = ("N8",)
    hint = "The thread that evicts has died: look for its exception in the log of the store's server, and restart it."
    explanation = (
        "At {0} {was_used} of the {total} units of tier {tier} were in use. At {1}, {full_s} seconds later, {used} are:"
        " nothing was evicted in between and no chunk is locked, but {refused} stores failed."
    )

    def judge(self, event: Pool, engine: Engine) -> Judgement:
        stall = engine.full_tiers.get((event.connector_id, event.pool_tier))
        if stall is None or not is_full(event):
            return None
        full_s = (engine.time.now_ns - engine.time.of(stall.since)) / 1e9
        if full_s < STALLED_S or stall.refused < REFUSED:
            return Verdict.OK
        if engine.locked is None:
            return engine.missing
        if engine.locked > 0:
            return Verdict.OK
        numbers = {
            "tier": event.pool_tier or "store",
            "was_used": stall.since.pool_used,
            "used": event.pool_used,
            "total": event.pool_total,
            "full_s": round(full_s, 1),
            "refused": stall.refused,
        }
        return Drift(numbers, [stall.since, event])

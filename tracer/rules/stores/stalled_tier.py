"""stalled-tier: a full tier of the store evicts nothing and refuses what comes."""

from __future__ import annotations

from kvtrail.tracer.events.events import Heartbeat, Pool
from kvtrail.tracer.ledger.engine_state import Engine, is_full
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import EngineRule, KnownBy

STALLED_S = 60.0
REFUSED = 3
"""Stores that a full tier may refuse without evicting anything."""


class StalledTier(EngineRule[Pool | Heartbeat]):
    """A full tier of the store evicts nothing, and refuses stores.

    Invariant: a tier of which nine tenths are in use for 60 seconds evicts a chunk before it has refused three stores, unless
    chunks are locked.

    A full tier is normal, and so is a single refused store. Source: a cache makes room for what is new; the incident is
    LMCache #4817 (https://github.com/LMCache/LMCache/issues/4817). Needs a connector that reports the state of its tiers, its
    evictions and the ends of its stores, and every event of the engine.
    """

    id = "stalled-tier"
    severity = Severity.WASTED_WORK
    known_by = KnownBy.DEADLINE
    classes = ("N8",)
    hint = "The thread that evicts has died: look for its exception in the log of the store's server, and restart it."
    explanation = (
        "At {0} {was_used} of the {total} units of tier {tier} were in use. At {1}, {full_s} seconds later, {used} are:"
        " nothing was evicted in between and no chunk is locked, but {refused} stores failed."
    )

    def judge(self, event: Pool | Heartbeat, engine: Engine) -> Judgement:
        if isinstance(event, Pool) and not is_full(event):
            return None
        # A tier may be told of only when it changes, and one that is stalled does not.
        stalls = [
            (stall, full_s)
            for stall in engine.full_tiers.values()
            if (full_s := (engine.time.now_ns - engine.time.of(stall.since)) / 1e9) >= STALLED_S
            and stall.refused >= REFUSED
        ]
        if not stalls:
            return OK if engine.full_tiers else None
        if engine.locked is None:
            return engine.missing
        if engine.locked > 0:
            return OK
        stall, full_s = stalls[0]
        numbers = {
            "tier": stall.last.pool_tier or "store",
            "was_used": stall.since.pool_used,
            "used": stall.last.pool_used,
            "total": stall.last.pool_total,
            "full_s": round(full_s, 1),
            "refused": stall.refused,
        }
        return Drift(numbers, [stall.since, event])

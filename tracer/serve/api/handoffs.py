"""What the api says of hand-offs between engines: their sums by pair, and what each engine keeps for others now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kvtrail.tracer.detect.retained_blocks import KeptHandOff
from kvtrail.tracer.serve.api.process_state import Live

MAX_ROWS = 500
"""How many of the pairs, and of what is kept, are named."""


def handed_over(
    process: Live, names: Mapping[str, str], chosen: Collection[str] | None
) -> dict[str, list[dict[str, Any]]]:
    """The `pairs` and what is `kept` of the chosen engines, the most first; None if all are chosen."""

    def named(engine: str) -> str | None:
        return names.get(engine, engine) or None

    pairs: list[dict[str, Any]] = [
        {
            "giver": giver or None,
            "giver_name": named(giver),
            "taker": taker or None,
            "taker_name": named(taker),
            **flow.as_dict(),
        }
        for (giver, taker), flow in process.handoffs.flows.known()
        if flow.handoffs and (chosen is None or giver in chosen or taker in chosen)
    ]
    pools = {recorder.engine: recorder.pool_blocks for recorder in process.recorders.values() if recorder.pool_blocks}
    by_pair: dict[tuple[str, str, str], list[KeptHandOff]] = {}
    for each in process.kept:
        if chosen is None or each.engine in chosen:
            by_pair.setdefault((each.engine, each.taker, each.state), []).append(each)
    kept: list[dict[str, Any]] = [
        {
            "engine": engine,
            "engine_name": named(engine),
            "taker": taker or None,
            "taker_name": named(taker),
            "state": state,
            "handoffs": len(held),
            "tokens": sum(each.tokens for each in held),
            "blocks": sum(each.blocks for each in held),
            "pool_blocks": pools.get(engine),
            "oldest_ns": (oldest := max(held, key=lambda each: each.age_ns)).age_ns,
            "request": oldest.request,
        }
        for (engine, taker, state), held in by_pair.items()
    ]
    pairs.sort(key=lambda row: -row["handoffs"])
    kept.sort(key=lambda row: -row["blocks"])
    return {"pairs": pairs[:MAX_ROWS], "kept": kept[:MAX_ROWS]}

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Alloc, Heartbeat, RequestEnd
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.given_up import GivenUp
from kvtrail.tracer.ledger.transfer_ends import SEVERAL
from kvtrail.tracer.model.findings import OK, Drift, Judgement
from kvtrail.tracer.rules.loads.stuck_load import within_s
from kvtrail.tracer.rules.rule import EngineRule

MISSED_S = 300.0
"""How long no transfer may end, at least, while several are open: vLLM #46019 takes a job for stalled after as long."""
LONGEST = 10
"""The deadline is this many times the longest transfer so far, if that is more: a slow store is not a dead one."""
LEAST_CALLERS = 3
"""Requests in a row: one or two callers may have left for reasons of their own."""


class StalledConnector(EngineRule[Heartbeat | RequestEnd]):
    id = "stalled-connector"

    def judge(self, event: Heartbeat | RequestEnd, engine: Engine) -> Judgement:
        callers, transfers = _judge_callers(event, engine), None
        if isinstance(event, Heartbeat):
            transfers = _judge_transfers(event, engine)
        drifts = [each for found in (callers, transfers) if isinstance(found, tuple) for each in found]
        return tuple(drifts) or callers or transfers


def _judge_transfers(event: Heartbeat, engine: Engine) -> Judgement:
    """Whether no transfer has ended for long though several are open."""
    if event.scheduler_step is None:
        return None
    drifts, is_known = [], False
    for (connector_id, direction), ends in engine.transfer_ends.items():
        if ends.last is None or ends.ended < SEVERAL or not ends.open:
            continue
        stores = connector_id in engine.storing or (connector_id, "save") in engine.transfer_ends
        if direction == "load" and not stores:
            continue
        is_known = True
        if ends.missed_ns < max(MISSED_S * 1e9, LONGEST * ends.longest_ns):
            continue
        numbers: dict[str, Any] = {
            "where": "open transfers",
            "direction": direction,
            "ended": ends.ended,
            "open": len(ends.open),
            "missed_s": round(ends.missed_ns / 1e9, 1),
            "steps": ends.steps,
            "longest_s": round(ends.longest_ns / 1e9, 1),
        }
        witness = [ends.last, next(iter(ends.open.values())), event]
        drifts.append(Drift(numbers, witness, connector=ends.last.connector))
    return tuple(drifts) or (OK if is_known else None)


def _judge_callers(event: RequestEnd | Heartbeat, engine: Engine) -> Judgement:
    """Whether several callers in a row have given up while their requests waited for the connector."""
    rows = engine.rows_given_up(event)
    late = [row for row in rows if _is_late(row, engine)]
    found = [row for row in late if not _is_late(engine.given_up.rows.get(row.first.connector_id), engine)]
    if not found:  # of several of a row, one is a finding
        return OK if rows else None
    return tuple(Drift(_numbers(row), [row.first, row.last]) for row in found)


def _numbers(row: GivenUp) -> dict[str, Any]:
    return {
        "where": "aborted requests",
        "waited_s": round(row.waited_ns / 1e9, 1),
        "counted_s": round(row.counted_ns / 1e9, 1),
        "requests": row.count,
    }


def _is_late(row: GivenUp | None, engine: Engine) -> bool:
    if row is None or row.count < LEAST_CALLERS:
        return False
    tokens = row.first.allocated if isinstance(row.first, Alloc) else 0
    return row.counted_ns / 1e9 >= within_s(row.first, tokens, engine)

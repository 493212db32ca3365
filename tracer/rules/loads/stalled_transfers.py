"""stalled-transfers: no transfer of a connector ends any more, in the whole engine."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Heartbeat
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.transfer_ends import SEVERAL
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import EngineRule, KnownBy

MISSED_S = 300.0
"""How long no transfer may end, at least, while several are open: vLLM #46019 takes a job for stalled after as long."""
LONGEST = 10
"""So many times as long as the longest transfer so far, if that is more: a slow store is not a dead one."""


class StalledTransfers(EngineRule[Heartbeat]):
    """No transfer of the connector ends any more, though several are open.

    Invariant: while three or more loads, stores, or saves are open and the scheduler makes steps, one of them ends within
    max(300 s, 10 times the longest so far), if three have ended before. A save is what the blocks of an ended request are
    kept for.

    Only time with steps counts, since ends are reported in steps. Requests that were aborted, and all of them after a
    reset, are expected to end nothing. One finding for the engine, however many requests wait; `stuck-load` names those.
    What waits for a peer is left to other rules: loads of a connector that stores nothing to `stuck-load`, blocks that are
    kept for a lease, or for a request that is handed on, to `late-free`. Source: vLLM,
    `KVConnectorBase_V1.get_finished` and the worker metadata report what background threads have copied; the incident
    is vLLM #46019 (https://github.com/vllm-project/vllm/pull/46019). Needs transfers with numbers, asynchronous loads
    or kept blocks, heartbeats that tell the scheduler's steps, and every event of the engine since the transfers began.
    """

    id = "stalled-transfers"
    severity = Severity.HANG
    known_by = KnownBy.DEADLINE
    classes = ("C12", "N8")
    hint = (
        "A background thread of the connector has died, or waits for ever: look for its exception in the workers' log, and"
        " restart the engine. A thread that copies must report the failure of a copy and go on."
    )
    explanation = (
        "At {0} the last of {ended} {direction}s ended; the longest of them took {longest_s} seconds. Since then none has, in"
        " {missed_s} seconds and {steps} steps of the scheduler: at {2} {open} {direction}s are open, the oldest since {1}."
    )

    def judge(self, event: Heartbeat, engine: Engine) -> Judgement:
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
                "direction": direction,
                "ended": ends.ended,
                "open": len(ends.open),
                "missed_s": round(ends.missed_ns / 1e9, 1),
                "steps": ends.steps,
                "longest_s": round(ends.longest_ns / 1e9, 1),
            }
            drifts.append(Drift(numbers, [ends.last, next(iter(ends.open.values())), event]))
        return tuple(drifts) or (OK if is_known else None)

    def finding(self, drift: Drift) -> Finding:
        """About the engine, and with its connector's name."""
        finding = super().finding(drift)
        finding.connector = drift.witness[0].connector
        return finding

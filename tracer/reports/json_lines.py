"""A history as lines of JSON, one object each: what was read, every step, and the end. `type` says which it is.

Times are Unix nanoseconds; a step's account is the one after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kvtrail.tracer.history.player import Player, Step

_EVENT_FIELDS = (
    "start_ns", "end_ns", "kind", "engine", "request", "external", "epoch", "role", "rank", "connector", "connector_id",
    "recorder", "sequence", "trace_id", "span_id", "error",
)  # fmt: skip


def lines(player: Player) -> Iterator[str]:
    """All lines, in order."""
    history = player.history
    read = {
        "type": "history",
        "events": len(player.events),
        "steps": len(player),
        "requests": len(player.requests),
        "missing": player.judged.missing,
        "repeated": history.repeated,
        "foreign": len(history.foreign),
        "unknown": dict(history.unknown),
        "unreadable": [{"file": f, "line": n, "reason": r} for f, n, r in history.unreadable],
    }
    yield json.dumps(read)
    for step in player.steps():
        yield json.dumps(_step(step))
    shown = player.judged.verdicts if player.following is None else player.following
    end = {
        "type": "end",
        "findings": [finding.as_dict() for finding in player.late],
        "drift": bool(player.findings),
        "verdicts": [{"engine": e, "request": r, "verdict": player.judged.verdicts[e, r].value} for e, r in shown],
    }
    yield json.dumps(end)


def _step(step: Step) -> dict[str, Any]:
    return {
        "type": "step",
        "step": step.number,
        **{name: getattr(step.event, name) for name in _EVENT_FIELDS},
        "numbers": step.event.numbers(),
        "gap": step.gap,
        "changed": {name: list(values) for name, values in step.changed.items()},
        "account": step.after,
        "findings": [finding.as_dict() for finding in step.findings],
        "again": [finding.id for finding in step.again],
    }

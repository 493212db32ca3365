"""A history as lines of JSON, one object each: what was read, every step, and the end. `type` says which it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kvtrail.tracer.replay.player import Player
from kvtrail.tracer.replay.step import Step


def lines(player: Player) -> Iterator[str]:
    """All lines, in order."""
    yield json.dumps(history_as_dict(player))
    for step in player.steps():
        yield json.dumps(step_as_dict(step))
    yield json.dumps(end_as_dict(player))


def step_as_dict(step: Step) -> dict[str, Any]:
    """A step as JSON-ready data. Times are Unix nanoseconds; the account is the one after the step."""
    event = step.event
    return {
        "type": "step",
        "step": step.number,
        "start_ns": event.start_ns,
        "end_ns": event.end_ns,
        "kind": event.kind.value,
        "engine": event.engine,
        "request": event.request,
        "external": event.external,
        "epoch": event.epoch,
        "role": event.role,
        "rank": event.rank,
        "connector": event.connector,
        "connector_id": event.connector_id,
        "recorder": event.recorder,
        "sequence": event.sequence,
        "trace_id": event.trace_id,
        "span_id": event.span_id,
        "error": event.error,
        "numbers": event.numbers(),
        "gap": step.gap,
        "changed": {name: list(values) for name, values in step.changed.items()},
        "account": step.after,
        "findings": [finding.as_dict() for finding in step.findings],
        "again": [finding.id for finding in step.again],
    }


def history_as_dict(player: Player) -> dict[str, Any]:
    """What was read, and what was not, as JSON-ready data."""
    history = player.history
    return {
        "type": "history",
        "events": len(player.events),
        "steps": len(player),
        "requests": len(player.stories),
        "missing": player.judged.missing,
        "repeated": history.repeated,
        "foreign": len(history.foreign),
        "unknown": dict(history.unknown),
        "unreadable": [{"file": f, "line": n, "reason": r} for f, n, r in history.unreadable],
    }


def end_as_dict(player: Player) -> dict[str, Any]:
    """What the end of the history brought, as JSON-ready data."""
    shown = player.judged.verdicts if player.following is None else player.following
    return {
        "type": "end",
        "findings": [finding.as_dict() for finding in player.late],
        "drift": bool(player.findings),
        "verdicts": [{"engine": e, "request": r, "verdict": player.judged.verdicts[e, r].value} for e, r in shown],
    }

"""Former names of rules. In stores, settings and commands, they stand for the current rule."""

from __future__ import annotations

OLD_NAMES = {
    "altered-handoff": "handoff-mismatch",
    "byte-early": "byte-drift",
    "byte-rot": "byte-drift",
    "callers-gave-up": "stalled-connector",
    "crossed-handoff": "handoff-mismatch",
    "dead-pair": "peer-always-failing",
    "evicted-hit": "evicted-in-use",
    "evicted-store": "evicted-in-use",
    "failed-load-hit": "failed-load-used",
    "failed-load-resume": "failed-load-used",
    "full-hit": "no-token-left",
    "joint-boundary": "partial-hit",
    "late-read": "stale-handoff",
    "never-admitted": "never-scheduled",
    "rank-disagreement": "partial-hit",
    "refetched-chunk": "evicted-in-use",
    "resume-point": "wrong-resume-offset",
    "second-handoff": "duplicate-load",
    "second-load": "duplicate-load",
    "short-handoff": "handoff-mismatch",
    "short-load": "incomplete-load",
    "stale-block": "plan-blocks",
    "stalled-transfers": "stalled-connector",
    "statistics": "stats-mismatch",
    "store-failed-load": "failed-load-used",
    "store-short": "store-gap",
    "store-under-load": "read-before-loaded",
    "stuck-promotion": "never-scheduled",
    "unloaded-hit": "read-before-loaded",
    "unread-load": "incomplete-load",
    "unselected-load": "load-range",
}


def current(rule: str) -> str:
    """The current name of a rule; unchanged if it was never renamed."""
    return OLD_NAMES.get(rule, rule)

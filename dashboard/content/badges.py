"""Statuses, verdicts and severities in their order, and the colours of their badges."""

STATUSES = ("queued", "admitted", "loading", "running", "preempted", "finished", "failed")
"""In the order of a request's life."""
ACTIVE = STATUSES[:5]
"""Neither finished nor failed."""
ABANDONED = "abandoned"
"""The status shown for a request that never ended and whose engine is gone."""
VERDICTS = ("ok", "drift", "unknown")

SEVERITY_COLORS = {
    "crash": "red",
    "wrong output": "red",
    "hang": "orange",
    "leak": "orange",
    "wasted work": "yellow",
    "wrong metrics": "gray",
}
SEVERITIES = list(SEVERITY_COLORS)
"""Worst first."""
COLORS = {
    **SEVERITY_COLORS,
    "running": "blue",
    "loading": "blue",
    "preempted": "orange",
    "failed": "red",
    "ok": "green",
    "drift": "red",
    "unknown": "gray",
}
"""Every badge's colour; grey is the default."""

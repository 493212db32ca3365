"""Statuses, verdicts and severities in their order."""

from kvtrail.dashboard.content import palette

ABANDONED = "abandoned"
"""The status shown for a request that never ended and whose engine is gone."""
STATUSES = tuple(name for name in palette.STATUS if name != ABANDONED)
"""In the order of a request's life."""
ACTIVE = STATUSES[:5]
"""Neither finished nor failed."""
VERDICTS = tuple(palette.VERDICT)
SEVERITIES = list(palette.SEVERITY)
"""Worst first."""
SEVERITY_COLORS = {
    name: each.colour.badge.replace("violet", "red").replace("green", "yellow")
    for name, each in palette.SEVERITY.items()
}
COLORS = palette.BADGES

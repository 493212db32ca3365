"""What several pages use, from the modules that have it."""

from __future__ import annotations

from kvtrail.dashboard.views.answers import EVERY_S, SLOW_S, read, tracer
from kvtrail.dashboard.views.cards import badge, card, cards
from kvtrail.dashboard.views.filters import ANY, choose
from kvtrail.dashboard.views.links import link, request_query, runbook_link
from kvtrail.dashboard.views.of_requests import (
    account_table,
    request_badges,
    unknown_request,
    which_request,
)
from kvtrail.dashboard.views.tables import table

__all__ = [
    "ANY", "EVERY_S", "SLOW_S", "account_table", "badge", "card", "cards", "choose", "link", "read",
    "request_badges", "request_query", "runbook_link", "table", "tracer", "unknown_request", "which_request",
]  # fmt: skip

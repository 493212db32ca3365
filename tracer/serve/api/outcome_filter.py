"""Requests by what became of them. No store knows that: it depends on how their engine is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kvtrail.tracer.model.outcomes import Outcome, outcome
from kvtrail.tracer.serve.api.outcomes import Fates
from kvtrail.tracer.store import Sort

MOST = 20_000
"""So many requests of a status are looked at."""
_OPEN = ("queued", "admitted", "loading", "running", "preempted")
_STATUSES = {
    Outcome.FINISHED: ("finished",),
    Outcome.ABORTED: ("finished",),
    Outcome.FAILED: ("failed", "finished"),
    Outcome.LOST: ("abandoned", *_OPEN),
    Outcome.UNHEARD: ("abandoned", *_OPEN),
    Outcome.RUNNING: _OPEN,
}
"""The statuses that a request of each outcome may have."""
_COUNTS = {Sort.WAITING: "waited_ns", Sort.RECOMPUTED: "recomputed", Sort.LOADS: "loads", Sort.FINDINGS: "findings"}

Ask = Callable[..., Sequence[dict[str, Any]]]
"""A reader's `requests`, of which some is said already."""


def having(
    became: Outcome, ask: Ask, fates: Fates, *, status: str, engines: Sequence[str] | None, sort: Sort, limit: int
) -> list[dict[str, Any]]:
    """The first `limit` requests that have this outcome, sorted, with what `fates` says of them."""
    found: list[dict[str, Any]] = []
    for each in _STATUSES[became]:
        if status in ("", each):
            of = engines
            if each in _OPEN:  # what became of these is the same for all of an engine
                known = fates.engines if engines is None else engines
                of = [engine for engine in known if outcome(each, None, fates.state(engine)) is became]
            found += _first(became, partial(ask, status=each, engines=of, sort=sort), fates, limit)
    return sorted(found, key=lambda request: _place(request, sort), reverse=True)[:limit]


def _place(request: Mapping[str, Any], sort: Sort) -> tuple[int, int]:
    """Where it comes in the order of the stores."""
    started_ns = int(request["started_ns"])
    if sort is Sort.DURATION:
        return request["last_ns"] - started_ns, started_ns
    return request.get(_COUNTS.get(sort, "")) or 0, started_ns


def _first(became: Outcome, ask: Ask, fates: Fates, limit: int) -> list[dict[str, Any]]:
    """The first `limit` of one status: ever more are asked for, until enough of them have the outcome."""
    most = limit
    while True:
        asked = ask(limit=most)
        found = [request for request in map(fates.request, asked) if request["outcome"] is became]
        if len(found) >= limit or len(asked) < most or most >= MOST:
            return found[:limit]
        most = min(MOST, 4 * most)

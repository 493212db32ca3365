"""The address of the lanes: `from` and `to` as on all pages, and `fold`.

People also write addresses: what cannot be parsed is ignored, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvtrail.dashboard.content import time_range
from kvtrail.dashboard.live.view import DEFAULT_SPAN_MS, MAX_FOLDED, View, between, moment, ms_of, span

NAMES = ("from", "to", "fold")


def of_query(query: Mapping[str, str], *, folded: Sequence[str] = (), now_ms: float) -> View:
    """The view that an address names. `folded` has the values of `fold`, which may occur several times."""

    def at(text: str) -> float | None:
        at_ns = time_range.parsed(text, now_ns=int(now_ms * 1e6)) if text else None
        return None if at_ns is None else moment(ms_of(at_ns))

    follows = query.get("to", "now") == "now"
    range_ms = between(at(query.get("from", "")), at(query.get("to", "now")))
    return View(
        fit=range_ms is None,
        span_ms=DEFAULT_SPAN_MS if range_ms is None else span(range_ms[1] - range_ms[0]),
        to_ms=None if range_ms is None or follows else range_ms[1],
        folded=tuple(folded)[:MAX_FOLDED],
    )


def as_query(view: View) -> dict[str, str | list[str]]:
    """The address of a view; defaults are left out."""
    query: dict[str, str | list[str]] = {}
    if not view.fit and view.to_ms is None:
        seconds = max(1, round(view.span_ms / 1000))
        query = {"from": f"now-{seconds}s" if seconds % 60 else f"now-{seconds // 60}m", "to": "now"}
    elif not view.fit and view.to_ms is not None:
        since_ns, until_ns = (round(at_ms * 1000) * 1000 for at_ms in (view.to_ms - view.span_ms, view.to_ms))
        query = dict(time_range.TimeRange(since_ns, until_ns).address)
    return query | ({"fold": list(view.folded)} if view.folded else {})


def typed_range(text: str, view: View, *, now_ms: float) -> dict[str, Any] | None:
    """A typed range, as a view's `span_ms` and `to_ms`; None if it cannot be parsed."""
    to_ms = now_ms if view.to_ms is None else view.to_ms
    shown = time_range.TimeRange(int((to_ms - max(view.span_ms, 1000)) * 1e6), int(to_ms * 1e6))
    try:
        found = time_range.typed(text, now_ns=int(now_ms * 1e6), shown=shown)
    except ValueError:
        return None
    follows = found.relative is not None and found.relative.endswith(" to now")
    length_ms = (found.until_ns - found.since_ns) / 1e6
    return {"span_ms": span(length_ms), "to_ms": None if follows else ms_of(found.until_ns)}

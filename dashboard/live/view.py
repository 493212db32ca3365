"""What the live page shows: as its component has it, as its address has it, and what the tracer is asked for it.

Addresses are written by people too: what cannot be read is ignored, and is never an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from kvtrail.dashboard.client import Row

DEFAULT_SPAN_MS = 300_000.0
LONGEST_MS = 7 * 86_400_000.0
LATEST_MS = 4_102_444_800_000.0
"""The year 2100; later moments are ignored."""
FILTERS = ("q", "engine", "connector", "status")
AROUND = 0.5
"""This share of the span is asked for on either side as well, so that a small move needs no new answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown. Moments are milliseconds since 1970, UTC.

    Attributes:
        span_ms: how much time.
        to_ms: where it ends; None follows the present.
        paused: whether nothing new is asked for.
        paused_ms: the moment of pausing.
        q: part of a request's id.
        engine, connector, status: only these; empty for all.
        select: the selected range.
    """

    span_ms: float = DEFAULT_SPAN_MS
    to_ms: float | None = None
    paused: bool = False
    paused_ms: float | None = None
    q: str = ""
    engine: str = ""
    connector: str = ""
    status: str = ""
    select: tuple[float, float] | None = None


def question(view: View, *, now_ms: float) -> dict[str, int | str]:
    """What to ask the tracer for a view: the parameters of `/api/lanes`."""
    to_ms = now_ms if view.to_ms is None else view.to_ms
    around_ms = view.span_ms * AROUND
    from_ns = int(max(0.0, to_ms - view.span_ms - around_ms) * 1e6)
    to_ns = max(int((to_ms + around_ms) * 1e6), from_ns + 1_000_000)
    return {"from_ns": from_ns, "to_ns": to_ns, **{name: getattr(view, name) for name in FILTERS}}


def payload(answer: Row | None, view: View, *, is_away: bool) -> dict[str, Any]:
    """The component's data. JavaScript's numbers cannot hold nanoseconds since 1970: moments become milliseconds."""
    if answer is not None:
        answer = answer | {f"{name}_ms": answer[f"{name}_ns"] / 1e6 for name in ("from", "to", "now")}
    return {"answer": answer, "view": asdict(view), "is_away": is_away}


def of_component(state: Any) -> View:
    """The view that the component has set."""
    if not isinstance(state, Mapping):
        return View()
    select = state.get("select")
    ends = [_moment(each) for each in select] if isinstance(select, list | tuple) and len(select) == 2 else []
    to_ms = _moment(state.get("to_ms"))
    return View(
        span_ms=_span(state.get("span_ms")),
        to_ms=to_ms,
        paused=bool(state.get("paused")) and to_ms is not None,
        paused_ms=_moment(state.get("paused_ms")),
        **{name: str(state.get(name) or "")[:200] for name in FILTERS},
        select=_range(*ends) if ends else None,
    )


def of_query(query: Mapping[str, str]) -> View:
    """The view that an address names: `span` in seconds, or `from` and `to`; `paused`, `select`, and the filters."""
    range_ms = _range(*(_parsed(query.get(name, "")) for name in ("from", "to")))
    try:
        span_ms = _span(float(query.get("span", "")) * 1000)
    except ValueError:
        span_ms = DEFAULT_SPAN_MS
    paused_ms = _parsed(query.get("paused", ""))
    if range_ms is None and paused_ms is not None:
        range_ms = (paused_ms - span_ms, paused_ms)
    begin, _, end = query.get("select", "").partition("~")
    return View(
        span_ms=_span(range_ms[1] - range_ms[0]) if range_ms else span_ms,
        to_ms=range_ms[1] if range_ms else None,
        paused=paused_ms is not None,
        paused_ms=paused_ms,
        **{name: query.get(name, "") for name in FILTERS},
        select=_range(_parsed(begin), _parsed(end)),
    )


def as_query(view: View) -> dict[str, str]:
    """The address of a view; defaults are left out."""
    query = {name: getattr(view, name) for name in FILTERS}
    if view.to_ms is not None:
        query |= {"from": _written(view.to_ms - view.span_ms), "to": _written(view.to_ms)}
    elif view.span_ms != DEFAULT_SPAN_MS:
        query["span"] = f"{view.span_ms / 1000:.12g}"
    if view.paused and (at := view.paused_ms or view.to_ms) is not None:
        query["paused"] = _written(at)
    if view.select is not None:
        query["select"] = "~".join(map(_written, view.select))
    return {name: text for name, text in query.items() if text}


def _written(at_ms: float) -> str:
    whole, micros = divmod(round(at_ms * 1000), 1_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06}".rstrip("0").rstrip(".") + "Z"


def _parsed(text: str) -> float | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return _moment((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _moment(value: Any) -> float | None:
    return float(value) if _is_positive(value) and value < LATEST_MS else None


def _range(begin: float | None, end: float | None) -> tuple[float, float] | None:
    return None if begin is None or end is None or end <= begin else (begin, end)


def _span(value: Any) -> float:
    return min(max(float(value), 1.0), LONGEST_MS) if _is_positive(value) else DEFAULT_SPAN_MS


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0

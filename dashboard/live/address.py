"""What the live view shows, as the component says it and as a page's address has it. Pure.

Addresses are written by people too: what cannot be read is left out, and never an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

DEFAULT_SPAN_MS = 300_000.0
LONGEST_MS = 7 * 86_400_000.0
LATEST_MS = 4_102_444_800_000.0
"""The year 2100: a moment beyond it is none."""
FILTERS = ("q", "engine", "connector", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown. Moments are milliseconds since 1970, UTC.

    Attributes:
        span_ms: how much time.
        to_ms: where it ends; None follows the present.
        paused: nothing new is asked for.
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

    def as_dict(self) -> dict[str, Any]:
        """As the component has it."""
        return asdict(self)


def of_component(said: Any) -> View:
    """The view as the component says it."""
    if not isinstance(said, Mapping):
        return View()
    select = said.get("select")
    ends = [_moment(each) for each in select] if isinstance(select, list | tuple) and len(select) == 2 else []
    to_ms = _moment(said.get("to_ms"))
    return View(
        span_ms=_span(said.get("span_ms")),
        to_ms=to_ms,
        paused=bool(said.get("paused")) and to_ms is not None,
        paused_ms=_moment(said.get("paused_ms")),
        **{name: str(said.get(name) or "")[:200] for name in FILTERS},
        select=_range(*ends) if ends else None,
    )


def of_query(query: Mapping[str, str]) -> View:
    """The view that an address names: `span` in seconds, or `from` and `to`; `paused`, `select`, and the filters."""
    begin, end = (_parsed(query.get(name, "")) for name in ("from", "to"))
    fixed = _range(begin, end)
    seconds = query.get("span", "")
    first, _, last = query.get("select", "").partition("~")
    paused_ms = _parsed(query.get("paused", ""))
    if fixed is None and paused_ms is not None:
        span_ms = _span(_number(seconds) * 1000)
        fixed = (paused_ms - span_ms, paused_ms)
    return View(
        span_ms=_span(fixed[1] - fixed[0] if fixed else _number(seconds) * 1000),
        to_ms=fixed[1] if fixed else None,
        paused=paused_ms is not None,
        paused_ms=paused_ms,
        **{name: query.get(name, "") for name in FILTERS},
        select=_range(_parsed(first), _parsed(last)),
    )


def as_query(view: View) -> dict[str, str]:
    """The address of a view; what is as always is left out."""
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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 < value < LATEST_MS else None


def _range(begin: float | None, end: float | None) -> tuple[float, float] | None:
    return None if begin is None or end is None or end <= begin else (begin, end)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _span(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        return DEFAULT_SPAN_MS
    return min(max(float(value), 1.0), LONGEST_MS)

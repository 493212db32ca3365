"""What the live page shows, as its component has it, and what the tracer is asked for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_SPAN_MS = 300_000.0
FIT_MS = 900_000.0
"""As much as a view that fits itself shows at most."""
LONGEST_MS = 7 * 86_400_000.0
LATEST_MS = 4_102_444_800_000.0
"""The year 2100; later moments are ignored."""
FILTERS = ("q", "engine", "connector", "status")
MOST_FOLDED = 100
AROUND = 0.5
"""This share of the span is asked for on either side as well, so that a small move needs no new answer."""
OVERVIEWS_MS = (900_000.0, 3_600_000.0, 6 * 3_600_000.0, 86_400_000.0, LONGEST_MS, 4 * LONGEST_MS)
"""How much time the strip above the lanes shows: the least of these that is `WIDER` times the span."""
WIDER = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown. Moments are milliseconds since 1970, UTC.

    Attributes:
        fit: whether the component chooses the range: what there is, `FIT_MS` at most.
        span_ms: how much time.
        to_ms: where it ends; None follows the present.
        paused: whether nothing new is asked for.
        paused_ms: the moment of pausing.
        q: part of a request's id.
        engine, connector, status: only these; empty for all.
        folded: the engines whose rows are folded into one.
        select: the selected range.
    """

    fit: bool = True
    span_ms: float = DEFAULT_SPAN_MS
    to_ms: float | None = None
    paused: bool = False
    paused_ms: float | None = None
    q: str = ""
    engine: str = ""
    connector: str = ""
    status: str = ""
    folded: tuple[str, ...] = ()
    select: tuple[float, float] | None = None


def question(view: View, *, end_ms: float) -> dict[str, int | str]:
    """What to ask the tracer for a view: the parameters of `/api/lanes`. A view that fits itself, or follows the present,
    ends at `end_ms`."""
    if view.fit:
        return _asked(view, end_ms - FIT_MS * (1 + AROUND), end_ms + FIT_MS * AROUND)
    to_ms = end_ms if view.to_ms is None else view.to_ms
    around_ms = view.span_ms * AROUND
    return _asked(view, to_ms - view.span_ms - around_ms, to_ms + around_ms)


def ms_of(at_ns: int) -> float:
    """A moment as the picture has it, to the microsecond. Nanoseconds of today are too long for a float: divided at once, a
    whole millisecond may come out as a hair less, and is shown as the one before."""
    return at_ns // 1000 / 1000


def fit_end_ms(answer: Mapping[str, Any]) -> float:
    """The `end_ms` of the question that this answers, of a view that fits itself."""
    return ms_of(answer["to_ns"]) - FIT_MS * AROUND


def overview_question(view: View, *, end_ms: float) -> dict[str, int | str]:
    """The same for the strip above the lanes, which shows more time, more coarsely."""
    span_ms = FIT_MS if view.fit else view.span_ms
    length_ms = next((each for each in OVERVIEWS_MS if each >= span_ms * WIDER), OVERVIEWS_MS[-1])
    to_ms = end_ms
    if not view.fit and view.to_ms is not None and end_ms - view.to_ms > length_ms - span_ms * WIDER / 2:
        # By steps, so that it stays where it is while the range moves in it.
        step_ms = length_ms / 3
        to_ms = min(end_ms, math.ceil(view.to_ms / step_ms + 1) * step_ms)
    return {**_asked(view, to_ms - length_ms, to_ms), "points": 100}


def of_component(state: Any) -> View:
    """The view that the component has set."""
    if not isinstance(state, Mapping):
        return View()
    select = state.get("select")
    ends = [moment(each) for each in select] if isinstance(select, list | tuple) and len(select) == 2 else []
    to_ms = moment(state.get("to_ms"))
    folded = state.get("folded")
    return View(
        fit=bool(state.get("fit", True)),
        span_ms=span(state.get("span_ms")),
        to_ms=to_ms,
        paused=bool(state.get("paused")) and to_ms is not None,
        paused_ms=moment(state.get("paused_ms")),
        **{name: str(state.get(name) or "")[:200] for name in FILTERS},
        folded=tuple(map(str, folded))[:MOST_FOLDED] if isinstance(folded, list | tuple) else (),
        select=between(*ends) if ends else None,
    )


def moment(value: Any) -> float | None:
    """A moment that somebody has said; None if it is none."""
    return float(value) if _is_positive(value) and value < LATEST_MS else None


def between(begin: float | None, end: float | None) -> tuple[float, float] | None:
    """A range of two moments; None if it is none."""
    return None if begin is None or end is None or end <= begin else (begin, end)


def span(value: Any) -> float:
    """How much time somebody has said, within bounds."""
    return min(max(float(value), 1.0), LONGEST_MS) if _is_positive(value) else DEFAULT_SPAN_MS


def _asked(view: View, from_ms: float, to_ms: float) -> dict[str, int | str]:
    from_ns = int(max(0.0, from_ms) * 1e6)
    to_ns = max(int(to_ms * 1e6), from_ns + 1_000_000)
    return {"from_ns": from_ns, "to_ns": to_ns, **{name: getattr(view, name) for name in FILTERS}}


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0

"""The view of the lanes, as their component reports it, and the tracer's parameters for it.

`chosen` are the page's filters, and `q`, a part of a request's id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvtrail.dashboard.content.requests import filters

DEFAULT_SPAN_MS = 300_000.0
FIT_MS = 900_000.0
"""The longest range of a view that fits its contents."""
CLOSEST_MS, CLOSER = 10_000.0, 3.0
"""On either side of contents that are looked at closely, so much is asked for, or so many times their length: the picture is
wider than they are."""
LONGEST_MS = 7 * 86_400_000.0
LATEST_MS = 4_102_444_800_000.0
"""The year 2100; later moments are ignored."""
APPLIED = ("q", "engine", "service", "model", "status", "where")
"""The filters that `/api/lanes` has."""
MAX_FOLDED = 100
AROUND = 0.5
"""This share of the span is requested on either side as well, so that a small move needs no new answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A view. Moments are Unix milliseconds.

    Attributes:
        fit: whether the component fits the range to its contents, `FIT_MS` at most.
        span_ms: the length of the range.
        to_ms: its end; None follows the present.
        folded: the engines with their rows folded into one.
    """

    fit: bool = True
    span_ms: float = DEFAULT_SPAN_MS
    to_ms: float | None = None
    folded: tuple[str, ...] = ()


def question(view: View, chosen: Mapping[str, str], *, end_ms: float) -> dict[str, int | str]:
    """The parameters of `/api/lanes` for a view. A view that fits its contents, or follows the present, ends at `end_ms`."""
    if view.fit:
        return _parameters(chosen, end_ms - FIT_MS * (1 + AROUND), end_ms + FIT_MS * AROUND)
    to_ms = end_ms if view.to_ms is None else view.to_ms
    around_ms = view.span_ms * AROUND
    return _parameters(chosen, to_ms - view.span_ms - around_ms, to_ms + around_ms)


def closer_question(view: View, chosen: Mapping[str, str], answer: Mapping[str, Any]) -> dict[str, int | str] | None:
    """The parameters for the contents of an answer alone, for a view that fits them; None where they fill it. An answer has
    a fixed number of moments over its range: in one of half an hour, phases of less than a second would fall together."""
    if not view.fit or not answer["requests"]["begin_us"]:
        return None
    beside = [*answer["marks"]["at_us"], *((each["at_ns"] - answer["from_ns"]) / 1000 for each in answer["deaths"])]
    begin_us, end_us = (
        most([*answer["requests"][name], *beside]) for most, name in ((min, "begin_us"), (max, "end_us"))
    )
    around_ms = max(CLOSEST_MS, CLOSER * (end_us - begin_us) / 1000)
    from_ms, to_ms = (answer["from_ns"] / 1e6 + us / 1000 for us in (begin_us, end_us))
    if to_ms - from_ms + 2 * around_ms > FIT_MS:
        return None
    return _parameters(chosen, from_ms - around_ms, to_ms + around_ms)


def ms_of(at_ns: int) -> float:
    """A moment in milliseconds, to the microsecond. Unix nanoseconds exceed a float's precision: divided in one step, a whole
    millisecond may come out slightly less, and would be shown as the one before."""
    return at_ns // 1000 / 1000


def of_component(state: Any) -> View:
    """The view that the component reported."""
    if not isinstance(state, Mapping):
        return View()
    folded = state.get("folded")
    return View(
        fit=bool(state.get("fit", True)),
        span_ms=span(state.get("span_ms")),
        to_ms=moment(state.get("to_ms")),
        folded=tuple(map(str, folded))[:MAX_FOLDED] if isinstance(folded, list | tuple) else (),
    )


def moment(value: Any) -> float | None:
    """A reported moment; None if invalid."""
    return float(value) if _is_positive(value) and value < LATEST_MS else None


def between(begin: float | None, end: float | None) -> tuple[float, float] | None:
    """A range of two moments; None if invalid."""
    return None if begin is None or end is None or end <= begin else (begin, end)


def span(value: Any) -> float:
    """A reported length, within bounds."""
    return min(max(float(value), 1.0), LONGEST_MS) if _is_positive(value) else DEFAULT_SPAN_MS


def _parameters(chosen: Mapping[str, str], from_ms: float, to_ms: float) -> dict[str, int | str]:
    from_ns = int(max(0.0, from_ms) * 1e6)
    to_ns = max(int(to_ms * 1e6), from_ns + 1_000_000)
    applied = {name: value for name, value in chosen.items() if name in APPLIED}
    return {"from_ns": from_ns, "to_ns": to_ns, **filters(applied)}


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0

"""Markers on charts over time: lines at deploys, restarts, deaths, resets and drops of events, with their text under the
pointer.

`drawn` puts them on any chart with an axis of time. A marker is a row of `/api/markers`, defined in tracer/model/markers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import palette, text
from kvtrail.dashboard.content.palette import GREY, MARKER
from kvtrail.tracer.model.words import count

SHAPES = {"death": "cross", "contact lost": "cross", "drop": "square", "reset": "circle"}
"""Marks at the tops of the lines, so that kinds differ not by colour alone; all others are triangles."""
LONGEST = 90
"""Characters of a text under the pointer; Vega shows no lines."""
_OF_BASE = ("mark", "encoding", "params", "transform", "name")
"""What a chart has for itself; the rest, such as its size and padding, is the whole picture's."""


def drawn(spec: Mapping[str, Any], markers: Sequence[Row], *, dark: bool) -> dict[str, Any]:
    """A Vega-Lite spec with an axis of time, such as `chart.to_dict()`, with the markers over it.

    The spec stays as it is where no marker lies within its axis; otherwise its own parts become the first of several layers,
    so selections along the axis work as before.
    """
    is_layered = "layer" in spec
    base = [*spec["layer"]] if is_layered else [{name: spec[name] for name in _OF_BASE if name in spec}]
    axis = next(
        (found for each in base if (found := each.get("encoding", {}).get("x"))), spec.get("encoding", {}).get("x")
    )
    if axis is None or axis.get("type") != "temporal":
        raise ValueError("markers need a chart with an axis of time")
    rows = marker_rows(markers, axis.get("scale", {}).get("domain"), dark=dark)
    if not rows:
        return dict(spec)
    # The base has the domain: Vega warns of the same one twice.
    scale = {"type": axis.get("scale", {}).get("type", "time")}
    x = {"field": "at", "type": "temporal", "title": None, "scale": scale}
    colour, shape = ({"field": field, "type": "nominal", "scale": None} for field in ("colour", "shape"))
    fields = {"time": "time", "what": "what", "text": "text"}
    tooltip = [{"field": field, "type": "nominal", "title": title} for field, title in fields.items()]
    shared = {"x": x, "color": colour, "tooltip": tooltip}
    data = {"values": rows, "name": "markers"}
    lines = {"type": "rule", "strokeWidth": 1.5, "strokeDash": [4, 3], "clip": True}
    # A line is hard to hit with the pointer; its mark at the top is not.
    points = {"type": "point", "filled": True, "size": 90, "opacity": 1, "clip": False}
    layers = [
        *base,
        {"data": data, "mark": lines, "encoding": shared},
        {"data": data, "mark": points, "encoding": {**shared, "shape": shape, "y": {"value": 7}}},
    ]
    whole = spec if is_layered else {name: value for name, value in spec.items() if name not in _OF_BASE}
    return {**whole, "layer": layers}


def marker_rows(markers: Iterable[Row], domain: Sequence[Any] | None, *, dark: bool) -> list[Row]:
    """The markers within a domain of Vega-Lite (its date-times in UTC, or Unix milliseconds), as data of a chart."""
    low, high = (float("-inf"), float("inf")) if domain is None else (_unix_ms(domain[0]), _unix_ms(domain[-1]))
    return [
        {
            "at": each["at_ns"] // 10**6,
            "time": f"{text.clock(each['at_ns']).partition('.')[0]} UTC",
            "what": what(each),
            "text": sentence(each, longest=LONGEST),
            "colour": (MARKER[each["kind"]].colour if each["kind"] in MARKER else GREY).on(dark=dark),
            "shape": SHAPES.get(each["kind"], "triangle-down"),
        }
        for each in markers
        if low <= each["at_ns"] / 10**6 <= high
    ]


def _unix_ms(bound: float | Mapping[str, int]) -> float:
    if not isinstance(bound, Mapping):
        return bound
    day = datetime(bound["year"], bound["month"], bound["date"], tzinfo=UTC)
    time = {unit: bound[unit] for unit in ("hours", "minutes", "seconds", "milliseconds")}
    return (day + timedelta(**time)).timestamp() * 1000


def what(marker: Row) -> str:
    """The kind of a marker, with its number if it stands for several."""
    return f"{count(marker['count'])} × {marker['kind']}" if marker["count"] > 1 else str(marker["kind"])  # noqa: RUF001


def sentence(marker: Row, *, longest: int | None = None) -> str:
    """What happened, with the engine's name, as plain text."""
    said = " ".join(filter(None, (marker["engine_name"], marker["text"])))
    return said if longest is None or len(said) <= longest else f"{said[: longest - 1]}…"


def in_a_line(marker: Row, *, now_ns: int) -> str:
    """A marker for a list."""
    return f"{text.clock(marker['at_ns'], now_ns=now_ns).partition('.')[0]} {what(marker)}: {sentence(marker)}"


def moment(at_ns: int) -> Row:
    """A marker where a range is divided in two."""
    return {"kind": "compared", "at_ns": at_ns, "engine_name": "", "text": "before it against after it", "count": 1}


def present(markers: Iterable[Row]) -> list[str]:
    """The kinds of these markers, in the palette's order."""
    kinds = {each["kind"] for each in markers}
    return [*(kind for kind in palette.MARKER if kind in kinds), *sorted(kinds - palette.MARKER.keys())]

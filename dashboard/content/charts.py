"""Charts of a time range: findings and tokens over time with markers, and the estimated effect of more memory.

The same data gives the same chart: every dataset is named here, since Altair numbers its own names. Times are UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import altair as alt

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import causes, findings, memory, savings, text
from kvtrail.dashboard.palette import GREY, MARKER, SEVERITY, SOURCE, TIERS
from kvtrail.tracer.model.cause_words import name
from kvtrail.tracer.model.words import count

Chart = alt.Chart
AnyChart = TypeVar("AnyChart", alt.Chart, alt.LayerChart | alt.FacetChart)
BRUSH, MOMENT = "drawn", "at"
"""The name of the selection along the time axis, and its field."""
HEIGHT = 160
_CURVE_HEIGHT = 220
_TWO_DAYS_MS = 2 * 24 * 3600 * 1000
_ABOVE = 24
"""The height of text above a plot, in pixels."""
SHAPES = {"death": "cross", "contact lost": "cross", "drop": "square", "reset": "circle"}
"""Symbols at the tops of marker lines, so that kinds do not differ only by colour; all others are triangles."""
LONGEST = 90
"""Maximum number of characters in a tooltip, since Vega does not wrap it."""
_OF_BASE = ("mark", "encoding", "params", "transform", "name")
"""The parts of a spec that belong to a single layer; the rest, such as size and padding, belongs to the whole chart."""


def findings_over_time(trend: Row, *, dark: bool) -> Chart:
    """Findings, stacked by severity with the worst at the bottom."""
    return _over_time(
        findings.trend_rows(trend),
        (trend["since_ns"], trend["until_ns"], trend["step_ns"]),
        _color("severity:N", severity_colours(trend, dark=dark)),
        alt.Y(
            "findings:Q",
            stack="zero",
            title=None,
            axis=alt.Axis(minExtent=36, format=",d", tickMinStep=1, tickCount=3, labelPadding=6),
        ),
        [*tooltip("time", "severity"), alt.Tooltip("findings:Q")],
    )


def sources_over_time(answer: Row, *, dark: bool) -> Chart:
    """The tokens of admitted requests by source."""
    return _tokens_over_time(answer, savings.time_rows(answer), "source", source_colours(answer, dark=dark))


def causes_over_time(answer: Row, *, dark: bool) -> Chart:
    """The computed tokens of admitted requests by cause."""
    present = list(causes.computed(answer["worth"]))
    shown = {name(cause): causes.colour(cause, dark=dark) for cause in present}
    return _tokens_over_time(answer, causes.time_rows(answer), "cause", shown)


def causes_by(sums_of: Mapping[str, Mapping[str, int]], *, dark: bool) -> Chart:
    """The shares of the causes of computed tokens, with a bar for each group."""
    rows = causes.group_rows(sums_of)
    labels = alt.Axis(minExtent=130, maxExtent=130, labelLimit=130, labelOverlap=False, labelPadding=6)
    present = {row["cause"] for row in rows}
    shown = {name(cause): causes.colour(cause, dark=dark) for cause in palette.CAUSE if name(cause) in present}
    groups = list(sums_of)
    drawn: Chart = (
        alt.Chart(data(rows, "by group"))
        .mark_bar(height=18)
        .encode(
            x=alt.X(
                "tokens:Q", stack="normalize", title=None, axis=alt.Axis(format=".0%", tickCount=5, labelPadding=4)
            ),
            y=alt.Y("group:N", sort=groups, title=None, axis=labels),
            color=_color("cause:N", shown),
            order="order:Q",
            tooltip=[*tooltip("group", "cause"), alt.Tooltip("share:N", title="tokens")],
        )
        .properties(height=30 * max(1, len(groups)) + 34)
    )
    return framed(drawn)


def what_memory_buys(curve: Row, *, dark: bool) -> alt.LayerChart | alt.FacetChart:
    """The share that stores of other sizes would have supplied, the current size, and the measured share."""
    held, given = curve["held"], curve["given"]
    (unit, chunk), rows = memory.unit(curve), memory.rows(curve)
    stores = alt.Axis(tickCount=6, grid=False, format="~g", labelOverlap=True)
    shares = alt.Axis(format=".0%", tickCount=4, minExtent=36)
    sizes = sorted([*(row["store"] for row in rows), *([held * chunk] if held else [])])
    # The domain is explicit: Streamlit first draws a chart without its rows, and a logarithmic axis has no zero.
    scale = alt.Scale(type="log", nice=False, domain=[sizes[0], max(sizes[-1], sizes[0] * 1.01)])
    x = alt.X("store:Q", title=f"store ({unit})", scale=scale, axis=stores)
    y = alt.Y("share:Q", title=None, scale=alt.Scale(domainMin=0), axis=shares)
    base = alt.Chart(data(rows, "capacities")).encode(x=x)
    colour = palette.GREEN.on(dark=dark)
    shown = [alt.Tooltip("held:N", title="store"), alt.Tooltip("given:N", title="given")]
    layers = [
        base.mark_area(opacity=0.2, color=colour, interpolate="step-after").encode(y="low:Q", y2="high:Q"),
        base.mark_line(color=colour, interpolate="step-after", strokeWidth=2.5).encode(y=y),
        base.mark_point(color=colour, filled=True, size=20).encode(y=y, tooltip=shown),
    ]
    if held is not None:
        row = {"store": held * chunk, "name": "you are here", "share": given, "given": text.percent(given)}
        here = alt.Chart(data([row], "today")).encode(x="store:Q", tooltip=tooltip("name", "given"))
        grey = GREY.on(dark=dark)
        words = here.mark_text(align="left", dx=4, dy=-6, color=grey, baseline="bottom")
        dot = here.mark_point(color=palette.ORANGE.on(dark=dark), filled=True, size=80, opacity=1)
        layers += [
            here.mark_rule(strokeDash=[4, 4], color=grey),
            words.encode(text="name:N", y=alt.value(0)),
            *([] if given is None else [dot.encode(y="share:Q")]),
        ]
    return framed(alt.layer(*layers).properties(height=_CURVE_HEIGHT), above=_ABOVE)


def severity_colours(trend: Row, *, dark: bool) -> dict[str, str]:
    """The colours of the severities of these findings, worst first."""
    present = {each["severity"] for each in trend["counts"]}
    return {name: colour for name, colour in palette.colours(SEVERITY, dark=dark).items() if name in present}


def source_colours(answer: Row, *, dark: bool) -> dict[str, str]:
    """The colours of the answer's sources; tiers take theirs in turn."""
    names = list(savings.sources(answer["worth"]))
    own = {SOURCE[name].colour for name in names if name in SOURCE}
    tiers = (colour for colour in TIERS if colour not in own)
    return {name: (SOURCE[name].colour if name in SOURCE else next(tiers, GREY)).on(dark=dark) for name in names}


def time_axis(since_ns: int, until_ns: int, step_ns: int) -> alt.X:
    """The axis of a range of whole steps, so that it does not move within a step."""
    begin_ms, end_ms = since_ns // step_ns * step_ns // 10**6, -(-until_ns // step_ns) * step_ns // 10**6
    shown = "%b %d" if end_ms - begin_ms > _TWO_DAYS_MS else "%H:%M:%S" if step_ns < 10**10 else "%H:%M"
    axis = alt.Axis(format=shown, tickCount=6, grid=False, labelPadding=4)
    scale = alt.Scale(type="utc", domain=[_date(begin_ms), _date(end_ms)])
    return alt.X(f"{MOMENT}:T", title=None, scale=scale, axis=axis)


def _date(at_ms: int) -> alt.DateTime:
    """A time for a scale: Streamlit's Vega does not convert numbers to dates there, and a line needs a date."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return alt.DateTime(
        year=at.year, month=at.month, date=at.day, hours=at.hour, minutes=at.minute, seconds=at.second,
        milliseconds=at.microsecond // 1000, utc=True,
    )  # fmt: skip


def readable(spec: dict[str, Any], *, dark: bool) -> dict[str, Any]:
    """A chart's spec with readable text: Streamlit's default text has a contrast of 3.72."""
    colour = GREY.on(dark=dark)
    config = spec.get("config", {})
    words = {"labelColor": colour, "titleColor": colour}
    return {
        **spec,
        "config": {**config, **{part: config.get(part, {}) | words for part in ("axis", "legend", "header")}},
    }


def framed(chart: AnyChart, *, above: int = 0) -> AnyChart:
    """The chart without margins except `above` the plot."""
    return chart.properties(padding={"left": 0, "right": 4, "top": above + 2, "bottom": 0})


def spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """A chart's spec, not validated against its schema: that is slow at each refresh, and the tests do it."""
    drawn: dict[str, Any] = chart.to_dict(validate=False)
    return drawn


def spec_and_rows(chart: Chart) -> tuple[dict[str, Any], list[Row]]:
    """A chart's spec and its rows, separated."""
    whole = spec(chart)
    return whole, whole.pop("data")["values"]


def _tokens_over_time(answer: Row, rows: Sequence[Row], field: str, colours: Mapping[str, str]) -> Chart:
    """Tokens over the range of an answer, stacked by a field of the rows."""
    return _over_time(
        rows,
        (answer["since_ns"], answer["until_ns"], answer["step_s"] * 10**9),
        _color(f"{field}:N", colours),
        alt.Y(
            "tokens:Q",
            stack="zero",
            title=None,
            axis=alt.Axis(minExtent=36, format=".3~s", tickCount=3, labelPadding=6),
        ),
        [*tooltip("time", field), alt.Tooltip("share:N", title="tokens")],
    )


def _over_time(
    rows: Sequence[Row],
    extent: tuple[int, int, int],
    color: alt.Color,
    y: alt.Y,
    tooltip: list[alt.Tooltip],
) -> Chart:
    """Stacked bars over a range of whole steps. `extent` has the range's ends and the length of a step, in nanoseconds."""
    x = time_axis(*extent)
    bars = alt.Chart(data(rows, "over time")).mark_bar(orient="vertical", clip=True, cursor="crosshair")
    brush = alt.selection_interval(name=BRUSH, encodings=["x"])
    drawn: Chart = bars.encode(x=x, x2="to:T", y=y, color=color, order="order:Q", tooltip=tooltip)
    return framed(drawn.add_params(brush).properties(height=HEIGHT))


def _color(field: str, colours: Mapping[str, str]) -> alt.Color:
    """Without a legend in the chart: one that wraps on a phone would lie on the plot. Pages draw it above (`legend.py`)."""
    scale = alt.Scale(domain=[*colours], range=[*colours.values()])
    return alt.Color(field, title=None, sort=[*colours], scale=scale, legend=None)


def tooltip(*fields: str) -> list[alt.Tooltip]:
    """A tooltip with these fields of a row."""
    return [alt.Tooltip(f"{field}:N") for field in fields]


def data(rows: Sequence[Row], name: str) -> Any:
    """Rows as a named dataset."""
    return alt.InlineData(values=list(rows), name=name)


def with_markers(spec: Mapping[str, Any], markers: Sequence[Row], *, dark: bool) -> dict[str, Any]:
    """The spec of a chart over time with the markers of its range as further layers. Selections along the axis still work."""
    if not markers:
        return dict(spec)
    base = {name: spec[name] for name in _OF_BASE if name in spec}
    # Only the base has the domain: Vega warns if it occurs twice.
    x = {"field": "at", "type": "temporal", "title": None, "scale": {"type": "utc"}}
    colour, shape = ({"field": field, "type": "nominal", "scale": None} for field in ("colour", "shape"))
    said = [{"field": field, "type": "nominal"} for field in ("time", "what", "text")]
    shared = {"x": x, "color": colour, "tooltip": said}
    rows = {"values": marker_rows(markers, dark=dark), "name": "markers"}
    lines = {"type": "rule", "strokeWidth": 1.5, "strokeDash": [4, 3], "clip": True}
    # A line is hard to hit with the pointer, but its symbol at the top is not.
    points = {"type": "point", "filled": True, "size": 90, "opacity": 1, "clip": False}
    layers = [
        base,
        {"data": rows, "mark": lines, "encoding": shared},
        {"data": rows, "mark": points, "encoding": {**shared, "shape": shape, "y": {"value": 7}}},
    ]
    return {**{name: value for name, value in spec.items() if name not in _OF_BASE}, "layer": layers}


def marker_rows(markers: Iterable[Row], *, dark: bool) -> list[Row]:
    """The markers as data of a chart."""
    return [
        {
            "at": each["at_ns"] // 10**6,
            "time": f"{text.clock(each['at_ns']).partition('.')[0]} UTC",
            "what": marker_kind(each),
            "text": marker_text(each, longest=LONGEST),
            "colour": (MARKER[each["kind"]].colour if each["kind"] in MARKER else GREY).on(dark=dark),
            "shape": SHAPES.get(each["kind"], "triangle-down"),
        }
        for each in markers
    ]


def marker_kind(marker: Row) -> str:
    """The kind of a marker, with its number if it stands for several."""
    return f"{count(marker['count'])} × {marker['kind']}" if marker["count"] > 1 else str(marker["kind"])  # noqa: RUF001


def marker_text(marker: Row, *, longest: int | None = None) -> str:
    """The marker's text with the engine's name, as plain text."""
    said = " ".join(filter(None, (marker["engine_name"], marker["text"])))
    return said if longest is None or len(said) <= longest else f"{said[: longest - 1]}…"


def marker_line(marker: Row, *, now_ns: int) -> str:
    """A marker for a list."""
    return (
        f"{text.clock(marker['at_ns'], now_ns=now_ns).partition('.')[0]} {marker_kind(marker)}: {marker_text(marker)}"
    )

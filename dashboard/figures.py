"""Charts of one request, from the api's data. Pure: the same data gives the same chart, so a refresh redraws nothing.

All names inside a chart are given explicitly: Altair's own are counted up, and each refresh would look like a new chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from kvtrail.dashboard import wording
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.series import GROUPS, MEASURES, epoch_names, epochs, levels, moments
from kvtrail.tracer.model.semconv import Kind

# Colours that keep their contrast on white and on near-black alike; red is kept for what is wrong.
BLUE, GREEN, AMBER, VIOLET, GREY, RED = "#3b82f6", "#10a37f", "#e08a00", "#a855f7", "#8a8f98", "#ef4444"
PINK = "#db5fa8"
_STROKES: dict[str, tuple[str, list[int]]] = {
    "total": (GREY, [1, 0]),
    "computed": (BLUE, [1, 0]),
    "matched": (VIOLET, [7, 4]),
    "allocated": (PINK, [2, 2]),
    "loaded": (GREEN, [1, 0]),
    "stored": (AMBER, [2, 3]),
}
"""Colour and dashes of each measure: two that have the same value must both be seen."""
Chart = alt.LayerChart | alt.FacetChart
"""What Altair says that a layered chart may be."""
_ORDER = [wording.kind(kind) for kind in Kind if kind != Kind.HEARTBEAT]
TICKS = 16
"""About so many along the axis: more than that is read by nobody."""
_NAME_SHARE = 0.12
"""Of the axis: what an epoch's name takes on a narrow screen."""
_ROW_HEIGHT = 30
_AXIS_HEIGHT = 60
_LABEL_WIDTH = 110
"""Width of the labels left of both charts: the same, so that one moment lies at the same place in both."""


def timeline_chart(timeline: Row, *, by_step: bool = False, at: int | None = None) -> Chart:
    """All steps by kind over time, or one after the other `by_step`; witnesses of findings are red and labelled. A line
    marks the step `at`."""
    points = moments(timeline)
    rows = _rows(points)
    x = _x(points, by_step=by_step)
    y = alt.Y("row:N", sort=rows, title=None, axis=alt.Axis(minExtent=_LABEL_WIDTH, maxExtent=_LABEL_WIDTH, grid=True))
    color = alt.Color(
        "group:N",
        title=None,
        scale=alt.Scale(
            domain=GROUPS,
            range=[BLUE, GREY, RED, RED],
        ),
        legend=None,
    )
    shape = alt.Shape(
        "group:N",
        scale=alt.Scale(
            domain=GROUPS,
            range=["circle", "square", "diamond", "cross"],
        ),
        legend=None,
    )
    size = alt.condition("datum.group === 'kvtrail'", alt.value(55), alt.value(110))
    base = alt.Chart(_data(points, "points"))
    layers: list[alt.Chart] = [
        *_mark_layers(points, x, at),
        *_epoch_layers(timeline, x, _span(points, by_step=by_step)),
    ]
    if not by_step:
        bars = base.mark_bar(height=7, opacity=0.45, cornerRadius=3)
        layers.append(bars.encode(x=_x(points, by_step=False, field="from"), x2="to:Q", y=y, color=color))
    tooltip = _tooltip("says", "row", "epoch", "time", "took", "mark")
    layers.append(base.mark_point(filled=True, opacity=0.9).encode(x, y, color, shape, size=size, tooltip=tooltip))
    marked = [point for point in points if point["mark"]]
    # By turns above and below: witnesses are often neighbours, and their labels would run into each other.
    for name, rest, dy in (("above", marked[::2], -12), ("below", marked[1::2], 14)):
        text = alt.Chart(_data(rest, name)).mark_text(dy=dy, fontWeight="bold", color=RED)
        layers.append(text.encode(x=x, y=y, text="mark:N"))
    return alt.layer(*layers).properties(height=_ROW_HEIGHT * len(rows) + _AXIS_HEIGHT)


def account_chart(timeline: Row, *, by_step: bool = False, at: int | None = None, top: int | None = None) -> Chart:
    """Computed, matched, allocated, loaded and stored tokens after each step, against the request's total.
    A line marks the step `at`; beside another chart, both axes end at `top`."""
    names = list(MEASURES)
    rows = levels(timeline)
    points = moments(timeline)
    x = _x(points, by_step=by_step)
    axis = alt.Axis(minExtent=_LABEL_WIDTH, maxExtent=_LABEL_WIDTH, format=",d", tickCount=5, titlePadding=0)
    columns = 3 if top is None else 2  # beside another chart there is less room for the legend
    top = top or highest(timeline)
    y = alt.Y("tokens:Q", title=None, axis=axis, scale=alt.Scale(domain=[0, top * 1.08], nice=False))
    color = alt.Color(
        "measure:N",
        title=None,
        sort=names,
        scale=alt.Scale(domain=names, range=[_STROKES[name][0] for name in names]),
        legend=alt.Legend(orient="top", columns=columns, symbolType="stroke", symbolStrokeWidth=3),
    )
    dash = alt.StrokeDash(
        "measure:N", sort=names, scale=alt.Scale(domain=names, range=[_STROKES[name][1] for name in names])
    )
    base = alt.Chart(_data(rows, "levels"))
    lines = base.mark_line(interpolate="step-after", strokeWidth=2.5).encode(x=x, y=y, color=color, strokeDash=dash)
    # Between two unknowns a line has no length; the points show such a lone value, and carry the tooltip.
    tooltip = [*_tooltip("measure", "after", "time"), alt.Tooltip("tokens:Q", format=",d")]
    dots = base.mark_point(filled=True, size=22, opacity=0.9).encode(x=x, y=y, color=color, tooltip=tooltip)
    marks = [*_mark_layers(points, x, at), *_epoch_layers(timeline, x, _span(points, by_step=by_step))]
    return alt.layer(*marks, lines, dots).properties(height=290)


def highest(timeline: Row) -> int:
    """The most tokens that any number of the account has."""
    return max((row["tokens"] or 0 for row in levels(timeline)), default=0) or 1


def status_chart(counts: dict[str, int]) -> Chart:
    """How many requests there are in each status; every status has its place, so that nothing moves."""
    names = [*wording.STATUSES, wording.LEFT_OPEN]
    rows = [
        {"status": status, "requests": counts.get(status, 0), "said": wording.count(counts.get(status, 0))}
        for status in names
    ]
    top = max(1, *counts.values()) if counts else 1
    y = alt.Y("status:N", sort=names, title=None, axis=alt.Axis(minExtent=70, maxExtent=70))
    # Room at the right for the number behind the longest bar.
    x = alt.X("requests:Q", axis=None, scale=alt.Scale(domain=[0, top * 1.2]))
    base = alt.Chart(_data(rows, "statuses"))
    color = alt.condition("datum.status === 'failed'", alt.value(RED), alt.value(BLUE))
    bars = base.mark_bar(height=12, cornerRadius=2).encode(x=x, y=y, color=color)
    numbers = base.mark_text(align="left", dx=6, color=GREY).encode(x=x, y=y, text="said:N")
    return alt.layer(bars, numbers).properties(height=24 * len(rows))


def _rows(points: Sequence[Row]) -> list[str]:
    """Other services' spans first, as they enclose the rest; then the kinds in the order of a request's life."""
    present = {point["row"] for point in points}
    places = {kind: place for place, kind in enumerate(_ORDER)}
    return sorted(present, key=lambda row: (places.get(row.partition(", rank ")[0], -1), row))


def _x(points: Sequence[Row], *, by_step: bool, field: str = "at") -> alt.X:
    if by_step:
        domain = [0.5, max(len(points), 1) + 0.5]
        return alt.X(
            "step:Q",
            title="step",
            scale=alt.Scale(domain=domain, nice=False),
            axis=alt.Axis(format=",d", tickMinStep=1, tickCount=TICKS),
        )
    low = min((p["from"] for p in points), default=0.0)
    high = max((p["to"] for p in points), default=1.0)
    # A little air on both sides: a point on the very edge would be cut in half.
    air = max((high - low) * 0.015, 0.01)
    seconds = high - low >= 10_000
    return alt.X(
        f"{field}:Q",
        title=f"time since the arrival ({'s' if seconds else 'ms'})",
        scale=alt.Scale(domain=[low - air, high + air], nice=False),
        axis=alt.Axis(
            labelExpr="format(datum.value / 1000, ',.3~f')" if seconds else "format(datum.value, ',.3~f')",
            tickCount=TICKS,
        ),
    )


def _epoch_layers(timeline: Row, x: alt.X, span: float) -> list[alt.Chart]:
    begins = epochs(timeline)
    if len(begins) < 2:
        return []
    field = str(x.shorthand).partition(":")[0]
    rules = alt.Chart(_data(begins[1:], "preemptions")).mark_rule(strokeDash=[4, 4], color=GREY)
    names = alt.Chart(_data(epoch_names(begins, field=field, near=span * _NAME_SHARE), "epochs"))
    text = names.mark_text(align="left", dx=4, dy=-6, color=GREY, baseline="bottom")
    return [rules.encode(x=x), text.encode(x=x, text="name:N", y=alt.value(0))]


def _span(points: Sequence[Row], *, by_step: bool) -> float:
    """How much the axis shows."""
    return (
        len(points)
        if by_step
        else max((p["to"] for p in points), default=1.0) - min((p["from"] for p in points), default=0.0)
    )


def _mark_layers(points: Sequence[Row], x: alt.X, at: int | None) -> list[alt.Chart]:
    """A line at the step that is looked at, behind everything else."""
    marked = [point for point in points if point["step"] == at]
    base = alt.Chart(_data(marked, "here"))
    return [base.mark_rule(color=BLUE, strokeWidth=6, opacity=0.25).encode(x=x)] if marked else []


def _tooltip(*fields: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{field}:N") for field in fields]


def _data(rows: Sequence[Row], name: str) -> Any:
    return alt.InlineData(values=list(rows), name=name)

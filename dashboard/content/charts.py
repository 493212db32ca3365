"""Charts: one request's timeline and account, requests by status, findings and sources of tokens over time.

The same data must give the same chart, or a refresh would redraw it: so every dataset is named here, as Altair would number
its own names on. Times are UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import efficiency, findings
from kvtrail.dashboard.content.badges import ABANDONED, SEVERITIES, SEVERITY_COLORS, STATUSES
from kvtrail.dashboard.content.request import (
    GROUPS,
    account_points,
    epoch_labels,
    epoch_starts,
    row_order,
    step_points,
)
from kvtrail.tracer.model.words import count

Chart = alt.LayerChart | alt.FacetChart
"""Altair's type of a layered chart."""

# Colours with enough contrast on white and on near-black; red is only for what is wrong.
BLUE, GREEN, AMBER, VIOLET, GREY, RED = "#3b82f6", "#10a37f", "#e08a00", "#a855f7", "#8a8f98", "#ef4444"
PINK = "#db5fa8"
_BADGES = {"red": RED, "orange": AMBER, "yellow": "#c9a400", "gray": GREY}
_SEVERITIES = {severity: _BADGES[color] for severity, color in SEVERITY_COLORS.items()} | {
    "wrong output": "#b91c1c",
    "leak": "#a16207",
}
"""As their badges; of two with the same badge, the second is darker."""
_TIERS = [GREEN, VIOLET, AMBER, PINK, "#0ea5b7", "#7c8f3a"]
"""The connector's tiers; vLLM's own cache is blue, computed tokens are grey."""
_MEASURES = {
    "total": (GREY, [1, 0]),
    "computed": (BLUE, [1, 0]),
    "matched": (VIOLET, [7, 4]),
    "allocated": (PINK, [2, 2]),
    "loaded": (GREEN, [1, 0]),
    "stored": (AMBER, [2, 3]),
}
"""Colour and dashes of each measure, so that two of the same value can both be seen."""
TICKS = 16
_LABELS = 110
"""Width of the labels left of a request's charts: the same, so that a moment is at the same place in both."""
_EPOCH_LABEL = 0.12
"""The share of the axis that an epoch's label takes on a narrow screen."""
_EPOCH_BAR_LABELS = 130
_ROW_HEIGHT = 30
_AXIS_HEIGHT = 60
_HEIGHT_OVER_TIME = 180
_TWO_DAYS_MS = 2 * 24 * 3600 * 1000


def timeline_chart(timeline: Row, *, by_step: bool = False, at: int | None = None) -> Chart:
    """All steps by kind, over time or `by_step`; a line marks step `at`, red diamonds the witnesses of findings."""
    points = step_points(timeline)
    rows = row_order(points)
    x = _x(points, by_step=by_step)
    y = alt.Y("row:N", sort=rows, title=None, axis=_labels(_LABELS, grid=True))
    color = _color("group:N", GROUPS, [BLUE, GREY, RED, RED], legend=None)
    shapes = alt.Scale(domain=GROUPS, range=["circle", "square", "diamond", "cross"])
    layers = _marks(timeline, points, x, at=at, by_step=by_step)
    base = alt.Chart(_data(points, "points"))
    if not by_step:
        bars = base.mark_bar(height=7, opacity=0.45, cornerRadius=3)
        layers.append(bars.encode(x=_x(points, by_step=False, field="from"), x2="to:Q", y=y, color=color))
    dots = base.mark_point(filled=True, opacity=0.9).encode(
        x,
        y,
        color,
        alt.Shape("group:N", scale=shapes, legend=None),
        size=alt.condition("datum.group === 'kvtrail'", alt.value(55), alt.value(110)),
        tooltip=_tooltip("says", "row", "epoch", "time", "took", "mark"),
    )
    layers.append(dots)
    marked = [point for point in points if point["mark"]]
    # Alternately above and below: witnesses are often neighbours, and their labels would overlap.
    for name, some, dy in (("above", marked[::2], -12), ("below", marked[1::2], 14)):
        labels = alt.Chart(_data(some, name)).mark_text(dy=dy, fontWeight="bold", color=RED)
        layers.append(labels.encode(x=x, y=y, text="mark:N"))
    return alt.layer(*layers).properties(height=_ROW_HEIGHT * len(rows) + _AXIS_HEIGHT)


def account_chart(timeline: Row, *, by_step: bool = False, at: int | None = None, top: int | None = None) -> Chart:
    """The account's tokens after each step. A line marks step `at`; two charts with the same `top` have the same scale."""
    steps = step_points(timeline)
    x = _x(steps, by_step=by_step)
    scale = alt.Scale(domain=[0, (top or highest(timeline)) * 1.08], nice=False)
    y = alt.Y("tokens:Q", title=None, scale=scale, axis=_labels(_LABELS, format=",d", tickCount=5, titlePadding=0))
    names, (colors, dashes) = list(_MEASURES), zip(*_MEASURES.values(), strict=True)
    columns = 3 if top is None else 2  # beside another chart there is less room
    legend = alt.Legend(orient="top", columns=columns, symbolType="stroke", symbolStrokeWidth=3)
    color = _color("measure:N", names, list(colors), legend=legend)
    dash = alt.StrokeDash("measure:N", sort=names, scale=alt.Scale(domain=names, range=list(dashes)))
    base = alt.Chart(_data(account_points(timeline), "levels"))
    lines = base.mark_line(interpolate="step-after", strokeWidth=2.5).encode(x=x, y=y, color=color, strokeDash=dash)
    # Between two unknowns a line has no length; points show such a single value, and have the tooltips.
    tooltip = [*_tooltip("measure", "after", "time"), alt.Tooltip("tokens:Q", format=",d")]
    dots = base.mark_point(filled=True, size=22, opacity=0.9).encode(x=x, y=y, color=color, tooltip=tooltip)
    return alt.layer(*_marks(timeline, steps, x, at=at, by_step=by_step), lines, dots).properties(height=290)


def highest(timeline: Row) -> int:
    """The largest number that the account chart draws, at least 1."""
    return max((point["tokens"] or 0 for point in account_points(timeline)), default=0) or 1


def status_chart(counts: dict[str, int]) -> Chart:
    """Requests by status; each status has its place, so that nothing moves."""
    names = [*STATUSES, ABANDONED]
    rows = [{"status": name, "requests": counts.get(name, 0), "label": count(counts.get(name, 0))} for name in names]
    y = alt.Y("status:N", sort=names, title=None, axis=_labels(70))
    # Room at the right for the number behind the longest bar.
    top = max(1, *counts.values()) if counts else 1
    x = alt.X("requests:Q", axis=None, scale=alt.Scale(domain=[0, top * 1.2]))
    base = alt.Chart(_data(rows, "statuses"))
    color = alt.condition("datum.status === 'failed'", alt.value(RED), alt.value(BLUE))
    bars = base.mark_bar(height=12, cornerRadius=2).encode(x=x, y=y, color=color)
    labels = base.mark_text(align="left", dx=6, color=GREY).encode(x=x, y=y, text="label:N")
    return alt.layer(bars, labels).properties(height=24 * len(rows))


def findings_chart(trend: Row) -> Chart:
    """Findings over time, stacked by severity with the worst at the bottom."""
    return _over_time(
        trend,
        _data(findings.trend_rows(trend), "findings"),
        _color("severity:N", SEVERITIES, list(_SEVERITIES.values()), legend=_LEGEND),
        alt.Y(
            "findings:Q", stack="zero", title=None, axis=alt.Axis(minExtent=40, format=",d", tickMinStep=1, tickCount=4)
        ),
        [*_tooltip("time", "severity"), alt.Tooltip("findings:Q")],
    )


def sources_chart(answer: Row) -> Chart:
    """Where the tokens of admitted requests came from, over time."""
    return _over_time(
        answer,
        _data(efficiency.time_rows(answer), "sources"),
        _source_color(answer, legend=_LEGEND),
        alt.Y("tokens:Q", stack="zero", title=None, axis=alt.Axis(minExtent=40, format=".3~s", tickCount=4)),
        [*_tooltip("time", "source"), alt.Tooltip("share:N", title="tokens")],
    )


def epochs_chart(answer: Row) -> Chart:
    """The shares of the same sources by preemption epoch, a bar each."""
    rows = efficiency.epoch_rows(answer)
    present = {row["epoch"] for row in rows}
    epochs = [name for name in efficiency.EPOCHS.values() if name in present]
    axis = _labels(_EPOCH_BAR_LABELS, labelLimit=_EPOCH_BAR_LABELS)
    base = alt.Chart(_data(rows, "epochs")).encode(
        x=alt.X("tokens:Q", stack="normalize", title=None, axis=alt.Axis(format=".0%", tickCount=5)),
        y=alt.Y("epoch:N", sort=epochs, title=None, axis=axis),
        color=_source_color(answer, legend=None),
        order="order:Q",
        tooltip=[*_tooltip("epoch", "source"), alt.Tooltip("share:N", title="tokens")],
    )
    return alt.layer(base.mark_bar(height=18)).properties(height=34 * max(1, len(epochs)) + 34)


_LEGEND = alt.Legend(orient="top", symbolType="square", labelLimit=220)


def _over_time(answer: Row, data: Any, color: alt.Color, y: alt.Y, tooltip: list[alt.Tooltip]) -> Chart:
    """Stacked bars over the time range of the answer."""
    domain = [answer[end] // 10**6 for end in ("since_ns", "until_ns")]
    shown = "%b %d" if domain[1] - domain[0] > _TWO_DAYS_MS else "%H:%M"
    axis = alt.Axis(format=shown, tickCount=7, grid=False)
    x = alt.X("at:T", title=None, scale=alt.Scale(type="utc", domain=domain), axis=axis)
    base = alt.Chart(data).encode(x=x, x2="to:T", y=y, color=color, order="order:Q", tooltip=tooltip)
    return alt.layer(base.mark_bar(orient="vertical", clip=True)).properties(height=_HEIGHT_OVER_TIME)


def _source_color(answer: Row, *, legend: alt.Legend | None) -> alt.Color:
    names = list(efficiency.sources(answer["worth"]))
    tiers = [_TIERS[number % len(_TIERS)] for number in range(len(names) - 2)]
    return _color("source:N", names, [BLUE, *tiers, "#a3a8b1"], legend=legend)


def _x(points: Sequence[Row], *, by_step: bool, field: str = "at") -> alt.X:
    if by_step:
        scale = alt.Scale(domain=[0.5, max(len(points), 1) + 0.5], nice=False)
        return alt.X("step:Q", title="step", scale=scale, axis=alt.Axis(format=",d", tickMinStep=1, tickCount=TICKS))
    low, high = _ends(points)
    # A little room at both ends: a point on the very edge would be cut in half.
    room = max((high - low) * 0.015, 0.01)
    unit, divisor = ("s", 1000) if high - low >= 10_000 else ("ms", 1)
    return alt.X(
        f"{field}:Q",
        title=f"time since the arrival ({unit})",
        scale=alt.Scale(domain=[low - room, high + room], nice=False),
        axis=alt.Axis(labelExpr=f"format(datum.value / {divisor}, ',.3~f')", tickCount=TICKS),
    )


def _ends(points: Sequence[Row]) -> tuple[float, float]:
    return min((p["from"] for p in points), default=0.0), max((p["to"] for p in points), default=1.0)


def _marks(timeline: Row, points: Sequence[Row], x: alt.X, *, at: int | None, by_step: bool) -> list[alt.Chart]:
    """What lies behind the points: a line at step `at`, and one where each epoch but the first begins."""
    field = "step" if by_step else "at"
    layers = []
    if marked := [point for point in points if point["step"] == at]:
        line = alt.Chart(_data(marked, "here")).mark_rule(color=BLUE, strokeWidth=6, opacity=0.25)
        layers.append(line.encode(x=x))
    starts = epoch_starts(timeline)
    if len(starts) > 1:
        low, high = _ends(points)
        near = (len(points) if by_step else high - low) * _EPOCH_LABEL
        rules = alt.Chart(_data(starts[1:], "preemptions")).mark_rule(strokeDash=[4, 4], color=GREY)
        labels = alt.Chart(_data(epoch_labels(starts, field=field, near=near), "epochs"))
        names = labels.mark_text(align="left", dx=4, dy=-6, color=GREY, baseline="bottom")
        layers += [rules.encode(x=x), names.encode(x=x, text="name:N", y=alt.value(0))]
    return layers


def _labels(width: int, **options: Any) -> alt.Axis:
    """A y axis whose labels take exactly this width."""
    return alt.Axis(minExtent=width, maxExtent=width, **options)


def _color(field: str, names: list[str], colors: list[str], *, legend: alt.Legend | None) -> alt.Color:
    return alt.Color(field, title=None, sort=names, scale=alt.Scale(domain=names, range=colors), legend=legend)


def _tooltip(*fields: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{field}:N") for field in fields]


def _data(rows: Sequence[Row], name: str) -> Any:
    return alt.InlineData(values=list(rows), name=name)

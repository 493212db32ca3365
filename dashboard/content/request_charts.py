"""The charts of one request: its phases and events over time, and its account in tokens.

The same data must give the same chart, or a refresh would redraw it: so every dataset is named here, since Altair numbers its
own names consecutively.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import palette, phases
from kvtrail.dashboard.content.legend import Entry
from kvtrail.dashboard.content.request import (
    GROUPS,
    MEASURES,
    account_points,
    epoch_labels,
    epoch_starts,
    row_order,
    step_points,
)
from kvtrail.tracer.model.words import duration

Chart = alt.LayerChart | alt.FacetChart
"""Altair's type of a layered chart."""
PHASES = "phases"
"""The row of phases, above the rows of events."""
_COLOURS = (palette.BLUE, palette.GREY, palette.RED, palette.RED)
_SHAPES = ("circle", "square", "diamond", "cross")
_DASHES = {"solid": [1, 0], "dashed": [7, 4], "dotted": [2, 3]}
MEASURE_LINES = dict(zip(MEASURES, ("solid", "solid", "dashed", "dotted", "solid", "dashed"), strict=True))
"""Each measure's line style: two lines of the same value both show."""
TICKS = 12
_LABELS = 110
"""Width of the labels left of a request's charts; equal, so that their time axes align."""
_EPOCH_LABEL = 0.12
"""The share of the axis that a preemption's label takes on a narrow screen."""
_ROW_HEIGHT = 26
_AXIS_HEIGHT = 56


@dataclass(frozen=True, slots=True)
class Frame:
    """The extent that compared charts share.

    Attributes:
        steps: the last step.
        begin, end: milliseconds after the arrival.
        top: the largest number of tokens, at least 1.
        rows: of the timeline.
    """

    steps: int
    begin: float
    end: float
    top: int
    rows: tuple[str, ...]


def frame(*timelines: Row, parts: Sequence[phases.Stretch] = ()) -> Frame:
    """The frame of these requests and phases; a running request's last phase extends beyond its last event."""
    points = [point for timeline in timelines for point in step_points(timeline)]
    tokens = [point["tokens"] or 0 for timeline in timelines for point in account_points(timeline)]
    return Frame(
        steps=max(1, *(len(timeline["steps"]) for timeline in timelines)),
        begin=min((point["from"] for point in points), default=0.0),
        end=max([*(point["to"] for point in points), *(part.end for part in parts)], default=1.0),
        top=max([1, *tokens]),
        rows=tuple(row_order(points)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How charts of requests are drawn: the theme, the axis, the marked step, and the shared extent."""

    frame: Frame
    dark: bool = False
    by_step: bool = False
    at: int | None = None


def timeline_chart(timeline: Row, style: Style, parts: Sequence[phases.Stretch] = ()) -> Chart:
    """The phases on top, and all steps by kind below; red diamonds are witnesses of findings."""
    points = step_points(timeline)
    rows = [*([PHASES] if parts else []), *style.frame.rows]
    x = _x(style)
    y = alt.Y("row:N", sort=rows, scale=alt.Scale(domain=rows), title=None, axis=_labels(grid=True))
    colours = [colour.on(dark=style.dark) for colour in _COLOURS]
    color = alt.Color("group:N", scale=alt.Scale(domain=GROUPS, range=colours), legend=None)
    layers = _marks(timeline, points, style)
    if parts:
        layers.append(_phase_bars(parts, [point["at"] for point in points], y, style))
    base = alt.Chart(_data(points, "points"))
    tooltip = _tooltip("says", "row", "preemptions", "time", "took", "proof")
    if not style.by_step:
        bars = base.mark_bar(height=7, opacity=0.45, cornerRadius=3)
        layers.append(bars.encode(x=_x(style, field="from"), x2="to:Q", y=y, color=color, tooltip=tooltip))
    shape = alt.Shape("group:N", scale=alt.Scale(domain=GROUPS, range=list(_SHAPES)), legend=None)
    size = alt.condition("datum.group === 'kvtrail'", alt.value(55), alt.value(110))
    dots = base.mark_point(filled=True, opacity=0.9)
    layers.append(dots.encode(x=x, y=y, color=color, shape=shape, size=size, tooltip=tooltip))
    proofs = [point for point in points if point["proof"]]
    # Alternately above and below: proofs are often neighbours, and their labels would overlap.
    for name, some, dy in (("above", proofs[::2], -11), ("below", proofs[1::2], 13)):
        labels = alt.Chart(_data(some, name)).mark_text(dy=dy, fontWeight="bold", color=palette.RED.on(dark=style.dark))
        layers.append(labels.encode(x=x, y=y, text="proof:N", tooltip=tooltip))
    return alt.layer(*layers).properties(height=_ROW_HEIGHT * len(rows) + _AXIS_HEIGHT)


def account_chart(timeline: Row, style: Style, *, height: int = 260) -> Chart:
    """The account's tokens after each step."""
    x = _x(style)
    scale = alt.Scale(domain=[0, style.frame.top * 1.08], nice=False)
    y = alt.Y("tokens:Q", title=None, scale=scale, axis=_labels(format=",d", tickCount=5, titlePadding=0))
    names = list(MEASURES.values())
    colours = [palette.MEASURE[measure].colour.on(dark=style.dark) for measure in MEASURES]
    color = alt.Color("measure:N", scale=alt.Scale(domain=names, range=colours), legend=None)
    dashes = [_DASHES[MEASURE_LINES[measure]] for measure in MEASURES]
    dash = alt.StrokeDash("measure:N", scale=alt.Scale(domain=names, range=dashes), legend=None)
    base = alt.Chart(_data(account_points(timeline), "levels"))
    tooltip = [*_tooltip("measure", "after", "time"), alt.Tooltip("tokens:Q", format=",d")]
    lines = base.mark_line(interpolate="step-after", strokeWidth=2.5)
    drawn = lines.encode(x=x, y=y, color=color, strokeDash=dash, tooltip=tooltip)
    # A known value between two unknown ones has no line; points show it.
    dots = base.mark_point(filled=True, size=22, opacity=0.9).encode(x=x, y=y, color=color, tooltip=tooltip)
    return alt.layer(*_marks(timeline, step_points(timeline), style), drawn, dots).properties(height=height)


def phase_legend(parts: Sequence[phases.Stretch], *, dark: bool) -> list[Entry]:
    """The phases of a request with the time in each."""
    return [
        Entry(
            phase,
            palette.PHASE[phase].colour.on(dark=dark) if phase in palette.PHASE else palette.GREY.on(dark=dark),
            value=spent,
            help=palette.PHASE[phase].means if phase in palette.PHASE else "",
        )
        for phase, spent in phases.time_texts(parts).items()
    ]


def measure_legend(*, dark: bool) -> list[Entry]:
    """The lines of the account."""
    return [
        Entry(
            name,
            palette.MEASURE[measure].colour.on(dark=dark),
            MEASURE_LINES[measure],
            help=palette.MEASURE[measure].means,
        )
        for measure, name in MEASURES.items()
    ]


def mark_legend(timelines: Sequence[Row], *, dark: bool) -> list[Entry]:
    """The marks of these requests' timelines, without plain dots."""
    found = {point["group"] for timeline in timelines for point in step_points(timeline)}
    marks = dict(zip(GROUPS, ("dot", "square", "diamond", "cross"), strict=True))
    return [
        Entry(group, colour.on(dark=dark), marks[group])
        for group, colour in zip(GROUPS[1:], _COLOURS[1:], strict=True)
        if group in found
    ]


def _phase_bars(parts: Sequence[phases.Stretch], moments: Sequence[float], y: alt.Y, style: Style) -> alt.Chart:
    drawn = phases.alone(parts)
    placed = phases.by_step(drawn, moments) if style.by_step else drawn
    colours = palette.colours(palette.PHASE, dark=style.dark)
    rows = [
        {
            "row": PHASES, "phase": part.phase, "from": place.begin, "to": place.end,
            "lasted": duration(round((part.end - part.begin) * 1e6)),
            "colour": colours.get(part.phase, palette.GREY.on(dark=style.dark)),
        }
        for part, place in zip(drawn, placed, strict=True)
    ]  # fmt: skip
    bars: alt.Chart = alt.Chart(_data(rows, "phases")).mark_bar(height=16, clip=True)
    color = alt.Color("colour:N", scale=None)
    return bars.encode(x=_x(style, field="from"), x2="to:Q", y=y, color=color, tooltip=_tooltip("phase", "lasted"))


def _x(style: Style, *, field: str = "") -> alt.X:
    if style.by_step:
        scale = alt.Scale(domain=[0.5, style.frame.steps + 0.5], nice=False)
        axis = alt.Axis(format=",d", tickMinStep=1, tickCount=TICKS)
        return alt.X(f"{field or 'step'}:Q", title="step", scale=scale, axis=axis)
    begin, end = style.frame.begin, style.frame.end
    # A little room at both ends: a point on the very edge would be cut in half.
    room = max((end - begin) * 0.015, 0.01)
    unit, divisor = ("s", 1000) if end - begin >= 10_000 else ("ms", 1)
    return alt.X(
        f"{field or 'at'}:Q",
        title=f"time since the arrival ({unit})",
        scale=alt.Scale(domain=[begin - room, end + room], nice=False),
        axis=alt.Axis(labelExpr=f"format(datum.value / {divisor}, ',.3~f')", tickCount=TICKS),
    )


def _marks(timeline: Row, points: Sequence[Row], style: Style) -> list[alt.Chart]:
    """The layers behind the points: a line at the marked step, and one at each new epoch."""
    field = "step" if style.by_step else "at"
    x = _x(style)
    layers = []
    if marked := [point for point in points if point["step"] == style.at]:
        line = alt.Chart(_data(marked, "here")).mark_rule(
            color=palette.BLUE.on(dark=style.dark), strokeWidth=6, opacity=0.25
        )
        layers.append(line.encode(x=x, tooltip=_tooltip("says", "row", "time")))
    starts = epoch_starts(timeline)
    if len(starts) > 1:
        grey = palette.GREY.on(dark=style.dark)
        near = (style.frame.steps if style.by_step else style.frame.end - style.frame.begin) * _EPOCH_LABEL
        tooltip = _tooltip("name", "time")
        rules = alt.Chart(_data(starts[1:], "preemptions")).mark_rule(strokeDash=[4, 4], color=grey)
        labels = alt.Chart(_data(epoch_labels(starts, field=field, near=near), "preemption names"))
        names = labels.mark_text(align="left", dx=4, dy=-6, color=grey, baseline="bottom")
        layers.append(rules.encode(x=x, tooltip=tooltip))
        layers.append(names.encode(x=x, text="name:N", y=alt.value(0), tooltip=_tooltip("name")))
    return layers


def _labels(**options: Any) -> alt.Axis:
    """A y axis with labels of the same width in every chart."""
    return alt.Axis(minExtent=_LABELS, maxExtent=_LABELS, **options)


def _tooltip(*fields: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{field}:N") for field in fields]


def _data(rows: Sequence[Row], name: str) -> Any:
    return alt.InlineData(values=list(rows), name=name)

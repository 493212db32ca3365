"""The charts of one request: its phases and events over time; and, step by step, its events and its account in tokens.

The same data must give the same chart, or a refresh would redraw it: so every dataset is named here, since Altair numbers its
own names consecutively.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.charts import data, tooltip
from kvtrail.dashboard.content.legend import Entry
from kvtrail.dashboard.content.request import phases
from kvtrail.dashboard.content.request.account import number, since_arrival_ms, step_text, witness_labels
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.words import NOTHING, duration, kind

MEASURES = {
    "total": "tokens of the request", "computed": "in vLLM", "matched": "matched", "allocated": "to be loaded",
    "loaded": "loaded", "stored": "stored",
}  # fmt: skip
"""The account's numbers in the chart, and their names."""
LINES = dict(zip(MEASURES, ("solid", "solid", "dashed", "dotted", "solid", "dashed"), strict=True))
"""Each measure's line style: two lines of the same value both show."""
MARKS = {
    "kvtrail": (palette.BLUE, "circle"),
    "other service": (palette.GREY, "square"),
    "proof of a finding": (palette.RED, "diamond"),
    "call that raised": (palette.RED, "cross"),
}
"""The kinds of marks, with colour and shape; if several apply to a step, the last one."""
Chart = alt.LayerChart | alt.FacetChart
"""Altair's type of a layered chart."""
PHASES = "phases"
"""The row of phases, above the rows of events."""
_KINDS = [kind(each) for each in Kind if each != Kind.HEARTBEAT]
_DASHES = {"solid": [1, 0], "dashed": [7, 4], "dotted": [2, 3]}
_TICKS = 12
_LABELS_PX, _ROW_PX, _AXIS_PX, _ACCOUNT_PX = 110, 26, 56, 180
"""The width of the labels left of the charts, equal so that their axes align; the height of a row, of the axis below, and of
the account."""


def over_time(timeline: Row, parts: Sequence[phases.Stretch], *, dark: bool) -> Chart:
    """The phases on top, and all steps by kind below, over the time since the arrival; red diamonds are witnesses of
    findings."""
    points = step_points(timeline)
    drawn = phases.known(parts)
    begin = min((point["from"] for point in points), default=0.0)
    end = max([*(point["to"] for point in points), *(part.end for part in drawn)], default=1.0)
    # A little room at both ends: a point on the very edge would be cut in half.
    room = max((end - begin) * 0.015, 0.01)
    unit, divisor = ("s", 1000) if end - begin >= 10_000 else ("ms", 1)
    axis = alt.Axis(labelExpr=f"format(datum.value / {divisor}, ',.3~f')", tickCount=_TICKS)
    x: dict[str, Any] = {
        "title": f"time since the arrival ({unit})",
        "scale": alt.Scale(domain=[begin - room, end + room], nice=False),
        "axis": axis,
    }
    rows, y = _rows(points, above=[PHASES] if drawn else [])
    colours = palette.colours(palette.PHASE, dark=dark)
    bars = [
        {"row": PHASES, "phase": part.phase, "from": part.begin, "to": part.end,
         "lasted": duration(round((part.end - part.begin) * 1e6)),
         "colour": colours.get(part.phase, palette.GREY.on(dark=dark))}
        for part in drawn
    ]  # fmt: skip
    phase_bars = alt.Chart(data(bars, "phases")).mark_bar(height=16, clip=True)
    calls = alt.Chart(data(points, "points")).mark_bar(height=7, opacity=0.45, cornerRadius=3)
    from_ = alt.X("from:Q", **x)
    layers = [
        phase_bars.encode(
            x=from_, x2="to:Q", y=y, color=alt.Color("colour:N", scale=None), tooltip=tooltip("phase", "lasted")
        ),
        calls.encode(x=from_, x2="to:Q", y=y, color=_mark_colour(dark=dark), tooltip=_step_tooltip()),
        *_dots(points, alt.X("at:Q", **x), y, dark=dark),
    ]
    return alt.layer(*layers).properties(height=_ROW_PX * len(rows) + _AXIS_PX)


def by_step(timeline: Row, *, at: int, dark: bool) -> Chart:
    """All steps by kind, one after the other, with a line at step `at`."""
    points, x = step_points(timeline), _step_axis(timeline)
    rows, y = _rows(points)
    layers = [_here(at, x, dark=dark), *_dots(points, x, y, dark=dark)]
    return alt.layer(*layers).properties(height=_ROW_PX * len(rows) + _AXIS_PX)


def account_by_step(timeline: Row, *, at: int, dark: bool) -> Chart:
    """The account's tokens after each step, with a line at step `at`."""
    points, x = account_points(timeline), _step_axis(timeline)
    top = max([1, *(point["tokens"] or 0 for point in points)])
    axis = alt.Axis(minExtent=_LABELS_PX, maxExtent=_LABELS_PX, format=",d", tickCount=5, titlePadding=0)
    y = alt.Y("tokens:Q", title=None, scale=alt.Scale(domain=[0, top * 1.08], nice=False), axis=axis)
    names = list(MEASURES.values())
    colours = [palette.MEASURE[measure].colour.on(dark=dark) for measure in MEASURES]
    color = alt.Color("measure:N", scale=alt.Scale(domain=names, range=colours), legend=None)
    dashes = [_DASHES[LINES[measure]] for measure in MEASURES]
    dash = alt.StrokeDash("measure:N", scale=alt.Scale(domain=names, range=dashes), legend=None)
    base = alt.Chart(data(points, "levels"))
    shown = [*tooltip("measure", "after", "time"), alt.Tooltip("tokens:Q", format=",d")]
    lines = base.mark_line(interpolate="step-after", strokeWidth=2.5)
    # A known value between two unknown ones has no line; points show it.
    dots = base.mark_point(filled=True, size=22, opacity=0.9)
    layers = [
        _here(at, x, dark=dark),
        lines.encode(x=x, y=y, color=color, strokeDash=dash, tooltip=shown),
        dots.encode(x=x, y=y, color=color, tooltip=shown),
    ]
    return alt.layer(*layers).properties(height=_ACCOUNT_PX)


def phase_legend(parts: Sequence[phases.Stretch], *, dark: bool) -> list[Entry]:
    """The phases of a request with the time in each."""
    return [
        Entry(
            phase,
            palette.colours(palette.PHASE, dark=dark).get(phase, palette.GREY.on(dark=dark)),
            value=spent,
            help=palette.PHASE[phase].means if phase in palette.PHASE else "",
        )
        for phase, spent in phases.time_texts(parts).items()
    ]


def measure_legend(*, dark: bool) -> list[Entry]:
    """The lines of the account."""
    return [
        Entry(name, each.colour.on(dark=dark), LINES[measure], help=each.means)
        for measure, name in MEASURES.items()
        for each in [palette.MEASURE[measure]]
    ]


def mark_legend(timeline: Row, *, dark: bool) -> list[Entry]:
    """The marks of the timeline, without plain dots."""
    found = {point["group"] for point in step_points(timeline)}
    return [
        Entry(group, colour.on(dark=dark), shape)
        for group, (colour, shape) in MARKS.items()
        if group in found and shape != "circle"
    ]


def step_points(timeline: Row) -> list[Row]:
    """The steps as points; times are milliseconds after the arrival.

    Each has its `row` in the chart, its `group`, and `proof`, its label in the explanations of findings.
    """
    labels = witness_labels(timeline["findings"])
    ranks = len({step["rank"] for step in timeline["steps"] if step["role"] == "worker"})
    points = []
    for step_number, step in enumerate(timeline["steps"], 1):
        begin, end = (since_arrival_ms(timeline, step[name]) for name in ("start_ns", "end_ns"))
        has_rank = step["role"] == "worker" and ranks > 1
        applies = (True, step["foreign"], step["span_id"] in labels, step["error"])
        points.append(
            {
                "step": step_number,
                "at": begin if step["foreign"] else end,
                "from": begin,
                "to": end,
                "row": kind(step["name"]) + (f", rank {step['rank']}" if has_rank else ""),
                "group": [group for group, does in zip(MARKS, applies, strict=True) if does][-1],
                "proof": labels.get(step["span_id"], ""),
                "preemptions": NOTHING if step["epoch"] is None else str(step["epoch"]),
                "time": text.clock(step["start_ns"]),
                "took": duration(step["end_ns"] - step["start_ns"]),
                "says": step_text(step),
            }
        )
    return points


def account_points(timeline: Row) -> list[Row]:
    """The account after each step, a point for each measure; None if not known."""
    return [
        {
            "step": step_number,
            "measure": name,
            "tokens": number(step["account"], measure),
            "time": text.clock(step["end_ns"]),
            "after": kind(step["name"]),
        }
        for step_number, step in enumerate(timeline["steps"], 1)
        if step["account"] is not None
        for measure, name in MEASURES.items()
    ]


def _rows(points: Sequence[Row], *, above: Sequence[str] = ()) -> tuple[list[str], alt.Y]:
    """The rows of a chart, and its axis: other services' first, since their spans enclose the rest; then kinds in order."""
    order = {name: place for place, name in enumerate(_KINDS)}
    present = {point["row"] for point in points}
    rows = [*above, *sorted(present, key=lambda row: (order.get(row.partition(", rank ")[0], -1), row))]
    axis = alt.Axis(minExtent=_LABELS_PX, maxExtent=_LABELS_PX, grid=True)
    return rows, alt.Y("row:N", sort=rows, scale=alt.Scale(domain=rows), title=None, axis=axis)


def _dots(points: Sequence[Row], x: alt.X, y: alt.Y, *, dark: bool) -> list[alt.Chart]:
    """A mark for each step, and the labels of those that prove a finding."""
    shape = alt.Shape(
        "group:N", scale=alt.Scale(domain=[*MARKS], range=[shape for _, shape in MARKS.values()]), legend=None
    )
    size = alt.condition("datum.group === 'kvtrail'", alt.value(55), alt.value(110))
    dots = alt.Chart(data(points, "dots")).mark_point(filled=True, opacity=0.9)
    layers = [dots.encode(x=x, y=y, color=_mark_colour(dark=dark), shape=shape, size=size, tooltip=_step_tooltip())]
    proofs = [point for point in points if point["proof"]]
    # Alternately above and below: proofs are often neighbours, and their labels would overlap.
    for name, some, dy in (("above", proofs[::2], -11), ("below", proofs[1::2], 13)):
        labels = alt.Chart(data(some, name)).mark_text(dy=dy, fontWeight="bold", color=palette.RED.on(dark=dark))
        layers.append(labels.encode(x=x, y=y, text="proof:N", tooltip=_step_tooltip()))
    return layers


def _mark_colour(*, dark: bool) -> alt.Color:
    colours = [colour.on(dark=dark) for colour, _ in MARKS.values()]
    return alt.Color("group:N", scale=alt.Scale(domain=[*MARKS], range=colours), legend=None)


def _step_tooltip() -> list[alt.Tooltip]:
    return tooltip("says", "row", "preemptions", "time", "took", "proof")


def _step_axis(timeline: Row) -> alt.X:
    scale = alt.Scale(domain=[0.5, max(1, len(timeline["steps"])) + 0.5], nice=False)
    return alt.X("step:Q", title="step", scale=scale, axis=alt.Axis(format=",d", tickMinStep=1, tickCount=_TICKS))


def _here(step: int, x: alt.X, *, dark: bool) -> alt.Chart:
    """A line at a step."""
    colour = palette.BLUE.on(dark=dark)
    line: alt.Chart = alt.Chart(data([{"step": step}], "here")).mark_rule(color=colour, strokeWidth=6, opacity=0.25)
    return line.encode(x=x)

"""The chart of one request: its phases and events over time.

The same data must give the same chart, or a refresh would redraw it: so every dataset is named here, since Altair numbers its
own names consecutively.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import altair as alt

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.charts import data, tooltip
from kvtrail.dashboard.content.legend import Entry
from kvtrail.dashboard.content.request import phases
from kvtrail.dashboard.content.request.account import since_arrival_ms, step_text, witness_labels
from kvtrail.dashboard.palette import Meaning
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.words import NOTHING, duration, kind

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
_LABELS_PX, _ROW_PX, _AXIS_PX = 110, 26, 56
"""The width of the labels left of the charts; the height of a row, and of the axis below."""


def over_time(timeline: Row, parts: Sequence[phases.Stretch], *, dark: bool, at: int | None = None) -> Chart:
    """The phases on top, and all steps by kind below, over the time since the arrival; red diamonds are witnesses of
    findings. A line marks step `at`."""
    points = step_points(timeline)
    bars = [bar(PHASES, part, palette.PHASE, dark=dark) for part in phases.known(parts)]
    begin = min((point["from"] for point in points), default=0.0)
    end = max((each["to"] for each in (*points, *bars)), default=1.0)
    order = {name: place for place, name in enumerate(_KINDS)}
    # Spans of other services first, since they enclose the rest; then kinds in order.
    kinds = sorted(
        {point["row"] for point in points}, key=lambda row: (order.get(row.partition(", rank ")[0], -1), row)
    )
    calls = alt.Chart(data(points, "points")).mark_bar(height=7, opacity=0.45, cornerRadius=3)
    here = alt.Chart(data([point for point in points if point["step"] == at], "here"))
    line = here.mark_rule(color=palette.BLUE.on(dark=dark), strokeWidth=6, opacity=0.25)
    x, y = since_arrival(begin, end), rows_axis([PHASES] * bool(bars) + kinds)
    layers = [
        line.encode(x=x("at")),
        bars_drawn(bars, x, y),
        calls.encode(x=x("from"), x2="to:Q", y=y, color=_mark_colour(dark=dark), tooltip=_step_tooltip()),
        *_dots(points, x("at"), y, dark=dark),
    ]
    return alt.layer(*layers).properties(height=_ROW_PX * (len(kinds) + bool(bars)) + _AXIS_PX)


def since_arrival(begin: float, end: float, *, what: str = "the arrival") -> Callable[[str], alt.X]:
    """The axis of milliseconds since an arrival, for each field of a row."""
    # A margin at both ends: a point at the edge would be cut in half.
    room = max((end - begin) * 0.015, 0.01)
    unit, divisor = ("s", 1000) if end - begin >= 10_000 else ("ms", 1)
    axis = alt.Axis(labelExpr=f"format(datum.value / {divisor}, ',.3~f')", tickCount=12)
    scale = alt.Scale(domain=[begin - room, end + room], nice=False)
    return lambda field: alt.X(f"{field}:Q", title=f"time since {what} ({unit})", scale=scale, axis=axis)


def rows_axis(rows: Sequence[str]) -> alt.Y:
    """The axis of rows with names."""
    axis = alt.Axis(minExtent=_LABELS_PX, maxExtent=_LABELS_PX, grid=True)
    return alt.Y("row:N", sort=[*rows], scale=alt.Scale(domain=[*rows]), title=None, axis=axis)


def bar(row: str, part: phases.Stretch, meanings: Mapping[str, Meaning], *, dark: bool, shift: float = 0.0) -> Row:
    """A phase as a bar in a row, in the phase's colour, shifted by a number of milliseconds."""
    return {
        "row": row,
        "what": part.phase,
        "from": part.begin + shift,
        "to": part.end + shift,
        "lasted": text.milliseconds(part.end - part.begin),
        "colour": (meanings[part.phase].colour if part.phase in meanings else palette.GREY).on(dark=dark),
    }


def bars_drawn(bars: Sequence[Row], x: Callable[[str], alt.X], y: alt.Y) -> alt.Chart:
    """The bars of `bar`."""
    drawn: alt.Chart = alt.Chart(data(bars, "bars")).mark_bar(height=16, clip=True)
    colour = alt.Color("colour:N", scale=None)
    return drawn.encode(x=x("from"), x2="to:Q", y=y, color=colour, tooltip=tooltip("what", "lasted"))


def legend_of(spent: Mapping[str, str], meanings: Mapping[str, Meaning], *, dark: bool) -> list[Entry]:
    """Phases, or parts of the time to the first token, with the time `spent` in each."""
    return [
        Entry(phase, known.colour.on(dark=dark), value=time, help=known.means)
        for phase, time in spent.items()
        if (known := meanings.get(phase))
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


def _dots(points: Sequence[Row], x: alt.X, y: alt.Y, *, dark: bool) -> list[alt.Chart]:
    """A mark for each step, and the labels of those that prove a finding."""
    shape = alt.Shape(
        "group:N", scale=alt.Scale(domain=[*MARKS], range=[shape for _, shape in MARKS.values()]), legend=None
    )
    size = alt.condition("datum.group === 'kvtrail'", alt.value(55), alt.value(110))
    dots = alt.Chart(data(points, "dots")).mark_point(filled=True, opacity=0.9)
    layers = [dots.encode(x=x, y=y, color=_mark_colour(dark=dark), shape=shape, size=size, tooltip=_step_tooltip())]
    proofs = [point for point in points if point["proof"]]
    # Alternately above and below: witnesses are often adjacent, and their labels would overlap.
    for name, some, dy in (("above", proofs[::2], -11), ("below", proofs[1::2], 13)):
        labels = alt.Chart(data(some, name)).mark_text(dy=dy, fontWeight="bold", color=palette.RED.on(dark=dark))
        layers.append(labels.encode(x=x, y=y, text="proof:N", tooltip=_step_tooltip()))
    return layers


def _mark_colour(*, dark: bool) -> alt.Color:
    colours = [colour.on(dark=dark) for colour, _ in MARKS.values()]
    return alt.Color("group:N", scale=alt.Scale(domain=[*MARKS], range=colours), legend=None)


def _step_tooltip() -> list[alt.Tooltip]:
    return tooltip("says", "row", "preemptions", "time", "took", "proof")

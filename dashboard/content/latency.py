"""Durations of requests: percentiles over time, the heat map of start times and durations, and the time in each phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.charts import MOMENT, Chart, data, framed, time_axis
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.palette import BLUE
from kvtrail.tracer.model.cause_words import name as cause_name
from kvtrail.tracer.model.words import count, duration, percent, some

MEASURES = {
    "first_token": "time to first token",
    "duration": "whole request",
    "queued": "queued",
    "lookup": "waiting for the connector's answer",
    "load_wait": "waiting for a load",
    "prefill": "prefill",
    "decode": "decode",
    "running": "prefill or decode, not recorded which",
    "preempted": "preempted",
}
"""Display names of the time measures, in the order of a request's phases."""
FIRST, WHOLE = "first_token", "duration"
"""The default measure, and the one that is shown if no request has it: every ended request has the latter."""
WITHOUT = "they have not come so far, were never in this phase, or their level does not record it."
"""Why requests have no such time."""
CHOICES = {"": "Time to first token, if known", **MEASURES}
"""The measures to choose from."""
AREA = "area"
"""The name of the selection on the heat map."""
CAUSES = 4
"""Maximum number of causes that a sentence names."""
_HEIGHT = 240
TICKS_S = [digit * 10.0**power for power in range(-6, 2) for digit in (1, 2, 5) if digit * 10.0**power < 50] + [
    minutes * 60.0 for minutes in (1, 2, 5, 10, 20, 60, 120, 300, 600, 1440, 2880, 7200)
]
"""Possible labels of a duration axis."""
LABELS = (
    "datum.value < 1 ? format(datum.value * 1000, '.3~g') + ' ms' : datum.value < 60 ? format(datum.value, '.3~g') + ' s' :"
    " datum.value < 3600 ? format(datum.value / 60, '.3~g') + ' min' : format(datum.value / 3600, '.3~g') + ' h'"
)
"""The text of a label; the axis has seconds."""


def drawn(selection: Mapping[str, Any], answer: Row) -> dict[str, str] | None:
    """The URL of the requests in the heat map's cells that a drawn rectangle touches: their time range, and a condition on
    their duration. None if it touches no cell."""
    times, lengths = selection.get(MOMENT), selection.get("low")
    if not times or not lengths:
        return None
    (from_ms, to_ms), (low_s, high_s) = sorted(times), sorted(lengths)
    touched = [
        cell
        for cell in cells(answer)
        if cell["at_ns"] < to_ms * 10**6
        and cell["at_ns"] + answer["step_ns"] > from_ms * 10**6
        and cell["low_ns"] < high_s * 10**9
        and cell["high_ns"] > low_s * 10**9
    ]
    if not touched:
        return None
    begins, lows, highs = ([cell[name] for cell in touched] for name in ("at_ns", "low_ns", "high_ns"))
    of = answer["of"]
    return {
        **TimeRange(min(begins), max(begins) + answer["step_ns"]).address,
        "where": f"{of} >= {min(lows)}ns and {of} < {max(highs)}ns",
    }


def cells(answer: Row) -> list[dict[str, int]]:
    """The heat map of `/api/latency`, a row for each cell."""
    columns = answer["cells"]
    return [dict(zip(columns, cell, strict=True)) for cell in zip(*columns.values(), strict=True)]


def summary(answer: Row) -> str:
    """The percentiles in a sentence, and the number of requests without the measure."""
    whole, name = answer["whole"], MEASURES[answer["of"]]
    if not whole["requests"]:
        return f"None of {some(answer['requests'], 'request')} has this time: {WITHOUT}"
    half, most, nearly_all = (duration(whole[share]) for share in ("p50_ns", "p90_ns", "p99_ns"))
    of = some(whole["requests"], "request")
    sentence = f"**{name.capitalize()}**: of {of}, half took {half} or less, 90 % {most}, and 99 % {nearly_all}."
    if missing := answer["requests"] - whole["requests"]:
        sentence += f" {some(missing, 'other request')} {'has' if missing == 1 else 'have'} none: {WITHOUT}"
    return sentence


def usual(measures: Row) -> str:
    """The measure to show if none is chosen."""
    return FIRST if any(each["of"] == FIRST and each["requests"] for each in measures["times"]) else WHOLE


def tokens(measures: Row) -> str:
    """The most frequent causes of these requests' tokens, in a sentence; empty if none is recorded."""
    asked = sum(measures["tokens"].values())
    found = sorted(measures["tokens"].items(), key=lambda each: -each[1])[:CAUSES]
    parts = [f"{percent(number / asked)} {cause_name(cause)}" for cause, number in found if number]
    return f"Of the {count(asked)} tokens that they asked for: {', '.join(parts)}." if parts else ""


def measures_shown(answer: Row) -> list[Row]:
    """The measures that any request has, in the order of a request's phases."""
    found = [each for each in answer["times"] if each["requests"] and each["of"] in MEASURES]
    return sorted(found, key=lambda each: [*MEASURES].index(each["of"]))


def measure_rows(measures: Iterable[Row]) -> list[Row]:
    """Each measure with its percentiles."""
    return [
        {
            "Time": MEASURES[each["of"]],
            "Requests": each["requests"],
            **{name: each[f"{name}_ns"] / 1e9 for name in ("p50", "p90", "p99")},
        }
        for each in measures
    ]


def heat_map(answer: Row, *, dark: bool) -> Chart:
    """A heat map of the number of requests by start time and duration."""
    most = max(answer["cells"]["requests"], default=1)
    step_ns = answer["step_ns"]
    rows = [
        {MOMENT: cell["at_ns"] / 10**6, "to": (cell["at_ns"] + step_ns) / 10**6, "low": seconds_shown(cell["low_ns"]),
         "high": seconds_shown(cell["high_ns"]), "requests": cell["requests"],
         "took": f"{duration(cell['low_ns'])} to {duration(cell['high_ns'])}"}
        for cell in cells(answer)
    ]  # fmt: skip
    seconds = sorted(row[end] for row in rows for end in ("low", "high")) or [0.001, 1.0]
    # The domain is explicit, since the rows are sent after the spec.
    durations = alt.Scale(type="log", nice=False, domain=[seconds[0], max(seconds[-1], seconds[0] * 2)])
    axis = alt.Axis(values=TICKS_S, minExtent=52, maxExtent=52, labelPadding=6, labelExpr=LABELS)
    shades = alt.Scale(type="log", domain=[1, max(2, most)], range=[0.25, 1.0])
    cells_: Chart = (
        alt.Chart(data(rows, "heat map"))
        .mark_rect(cursor="crosshair", clip=True, color=BLUE.on(dark=dark))
        .encode(
            x=time_axis(answer["since_ns"], answer["until_ns"], step_ns),
            x2="to:T",
            y=alt.Y("low:Q", title=None, scale=durations, axis=axis),
            y2="high:Q",
            opacity=alt.Opacity("requests:Q", scale=shades, legend=None),
            tooltip=[alt.Tooltip("requests:Q", format=",d"), alt.Tooltip("took:N")],
        )
    )
    brush = alt.selection_interval(name=AREA, encodings=["x", "y"])
    return framed(cells_.add_params(brush).properties(height=_HEIGHT))


def seconds_shown(ns: int) -> float:
    """A value for an axis without zero."""
    return max(ns, 1000) / 1e9

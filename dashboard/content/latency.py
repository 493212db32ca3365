"""How long requests take: percentiles over time, the heat map of times and durations, and the time in each phase."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, sqrt
from typing import Any

import altair as alt

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.charts import MOMENT, Chart, data, framed, time_axis
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.palette import BLUE
from kvtrail.tracer.model.cause_words import name as cause_name
from kvtrail.tracer.model.causes import Cause
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
"""The measures of time, for people, in the order of a request's life."""
FIRST, WHOLE = "first_token", "duration"
"""The measure that is shown if none is chosen; and where no request has it, that of every request that has ended."""
CHOICES = {"": "Time to first token, if known", **MEASURES}
"""The measures to choose from."""
PERCENTILES = {"p50_ns": "half", "p90_ns": "90 %", "p99_ns": "99 %"}
AREA = "area"
"""The name of the selection on the heat map."""
CAUSES = 4
"""Causes of tokens that a sentence names."""
_HEIGHT = 240
SHADES = (0.25, 1.0)
"""The opacity of a cell with one request, and of the one with most."""
TICKS_S = [digit * 10.0**power for power in range(-6, 2) for digit in (1, 2, 5) if digit * 10.0**power < 50] + [
    minutes * 60.0 for minutes in (1, 2, 5, 10, 20, 60, 120, 300, 600, 1440, 2880, 7200)
]
"""Where an axis of durations may have labels."""
LABELS = (
    "datum.value < 1 ? format(datum.value * 1000, '.3~g') + ' ms' : datum.value < 60 ? format(datum.value, '.3~g') + ' s' :"
    " datum.value < 3600 ? format(datum.value / 60, '.3~g') + ' min' : format(datum.value / 3600, '.3~g') + ' h'"
)
"""The text of a label; the axis has seconds."""


def drawn(selection: Mapping[str, Any], answer: Row) -> dict[str, str] | None:
    """The requests in the cells of the heat map that a drawn rectangle touches, as the address of the page of requests: their
    range of time, and a condition on their duration. None if it touches none."""
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
    """The percentiles in a sentence, and how many requests do not have the measure."""
    whole, name = answer["whole"], MEASURES[answer["of"]]
    if not whole["requests"]:
        return f"None of {some(answer['requests'], 'request')} has this time: {_why_none(answer['of'])}"
    half, most, nearly_all = (duration(whole[share]) for share in PERCENTILES)
    of = some(whole["requests"], "request")
    sentence = f"**{name.capitalize()}**: of {of}, half took {half} or less, 90 % {most}, and 99 % {nearly_all}."
    if missing := answer["requests"] - whole["requests"]:
        sentence += (
            f" {some(missing, 'other request')} {'has' if missing == 1 else 'have'} none: {_why_none(answer['of'])}"
        )
    return sentence


def _why_none(of: str) -> str:
    if of == "first_token":
        return "their prompts are not computed yet, or level `basic` does not show when they were."
    if of == WHOLE:
        return "they have not ended."
    return "they were never in this phase, or have not left it yet."


def usual(measures: Row) -> str:
    """The measure to show if none is chosen."""
    return FIRST if any(each["of"] == FIRST and each["requests"] for each in measures["times"]) else WHOLE


def tokens(measures: Row) -> str:
    """The largest causes of the tokens that these requests asked for, in a sentence; empty if none is recorded."""
    asked = sum(measures["tokens"].values())
    found = sorted(measures["tokens"].items(), key=lambda each: -each[1])[:CAUSES]
    parts = [f"{percent(number / asked)} {_of_cause(cause)}" for cause, number in found if number]
    return f"Of the {count(asked)} tokens that they asked for: {', '.join(parts)}." if parts else ""


def _of_cause(cause: str) -> str:
    return "of unknown cause" if cause == Cause.UNKNOWN else cause_name(cause)


def measure_rows(answer: Row) -> list[Row]:
    """Each measure with its percentiles; those that no request has are left out."""
    by_name = {each["of"]: each for each in answer["times"]}
    return [
        {
            "Time": name,
            "Requests": each["requests"],
            "p50": each["p50_ns"] / 1e9,
            "p90": each["p90_ns"] / 1e9,
            "p99": each["p99_ns"] / 1e9,
        }
        for of, name in MEASURES.items()
        if (each := by_name.get(of)) and each["requests"]
    ]


def measures_shown(answer: Row) -> list[str]:
    """The measures of these rows."""
    present = {each["of"] for each in answer["times"] if each["requests"]}
    return [of for of in MEASURES if of in present]


def heat_map(answer: Row, *, dark: bool) -> Chart:
    """How many requests started when and took how long."""
    most = max(answer["cells"]["requests"], default=1)
    step_ns = answer["step_ns"]
    rows = [
        {MOMENT: cell["at_ns"] / 10**6, "to": (cell["at_ns"] + step_ns) / 10**6, "low": seconds_shown(cell["low_ns"]),
         "high": seconds_shown(cell["high_ns"]), "requests": cell["requests"],
         "took": f"{duration(cell['low_ns'])} to {duration(cell['high_ns'])}"}
        for cell in cells(answer)
    ]  # fmt: skip
    seconds = sorted(row[end] for row in rows for end in ("low", "high")) or [0.001, 1.0]
    # The ends are given, since the rows come after the spec.
    durations = alt.Scale(type="log", nice=False, domain=[seconds[0], max(seconds[-1], seconds[0] * 2)])
    axis = alt.Axis(values=TICKS_S, minExtent=52, maxExtent=52, labelPadding=6, labelExpr=LABELS)
    shades = alt.Scale(type="log", domain=[1, max(2, most)], range=[*SHADES])
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


def scale(answer: Row, *, dark: bool) -> dict[str, str]:
    """The legend of the heat map: numbers of requests, and their colours."""
    most = max(2, *answer["cells"]["requests"], 0)
    numbers = sorted({1, round(sqrt(most)), most})
    colour = BLUE.on(dark=dark)
    return {
        some(number, "request"): f"color-mix(in srgb, {colour} {100 * _shade(number, most):.0f}%, transparent)"
        for number in numbers
    }


def _shade(number: int, most: int) -> float:
    """The opacity of a cell."""
    least, strongest = SHADES
    return least + (strongest - least) * log(number) / log(most)


def seconds_shown(ns: int) -> float:
    """For an axis that has no zero."""
    return max(ns, 1000) / 1e9

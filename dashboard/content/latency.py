"""How long requests take: percentiles over time, the heat map of times and durations, and the time in each phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import altair as alt

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.palette import BLUE, GREY
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.content.trends import MOMENT, Chart, framed, time_axis
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


@dataclass(frozen=True, slots=True)
class Area:
    """A part of the heat map: requests that started in a range of time and took `low_ns` or more, and less than `high_ns`."""

    since_ns: int
    until_ns: int
    low_ns: int
    high_ns: int

    @property
    def text(self) -> str:
        """As an address holds it."""
        return f"{self.since_ns}~{self.until_ns}~{self.low_ns}~{self.high_ns}"

    def where(self, of: str, others: str = "") -> str:
        """The conditions that select its requests, with others that are to be met, too."""
        own = f"{of} >= {self.low_ns}ns and {of} < {self.high_ns}ns"
        return f"{others} and {own}" if others else own

    def filters(self, of: str, chosen: Mapping[str, str]) -> dict[str, str | int]:
        """The parameters of `/api/requests` that select its requests, with other filters."""
        where = self.where(of, chosen.get("where", ""))
        return {**chosen, "where": where, "since_ns": self.since_ns, "before_ns": self.until_ns}

    @property
    def range(self) -> TimeRange:
        """Its time."""
        return TimeRange(self.since_ns, self.until_ns)


def area_of(text: str) -> Area | None:
    """The area that an address holds; None if it holds none."""
    parts = text.split("~")
    if len(parts) != 4 or not all(part.isdecimal() for part in parts):
        return None
    area = Area(*map(int, parts))
    return area if area.since_ns < area.until_ns and area.low_ns < area.high_ns else None


def drawn(selection: Mapping[str, Any], answer: Row) -> Area | None:
    """The cells of the heat map that a drawn rectangle touches; None if it touches none."""
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
    return Area(
        min(cell["at_ns"] for cell in touched),
        max(cell["at_ns"] for cell in touched) + answer["step_ns"],
        min(cell["low_ns"] for cell in touched),
        max(cell["high_ns"] for cell in touched),
    )


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
            "Half within": duration(each["p50_ns"]),
            "90 % within": duration(each["p90_ns"]),
            "99 % within": duration(each["p99_ns"]),
        }
        for of, name in MEASURES.items()
        if (each := by_name.get(of)) and each["requests"]
    ]


def measures_shown(answer: Row) -> list[str]:
    """The measures of these rows."""
    present = {each["of"] for each in answer["times"] if each["requests"]}
    return [of for of in MEASURES if of in present]


def heat_map(answer: Row, area: Area | None, *, dark: bool) -> Chart:
    """How many requests started when and took how long; what lies outside of the chosen area is grey."""
    most = max(answer["cells"]["requests"], default=1)
    step_ns = answer["step_ns"]
    rows = [
        {MOMENT: cell["at_ns"] / 10**6, "to": (cell["at_ns"] + step_ns) / 10**6, "low": seconds_shown(cell["low_ns"]),
         "high": seconds_shown(cell["high_ns"]), "requests": cell["requests"],
         "took": f"{duration(cell['low_ns'])} to {duration(cell['high_ns'])}",
         "is_chosen": area is None or _is_in(cell, area)}
        for cell in cells(answer)
    ]  # fmt: skip
    colours = alt.Scale(domain=[True, False], range=[BLUE.on(dark=dark), GREY.on(dark=dark)])
    shades = alt.Scale(type="log", domain=[1, max(2, most)], range=[*SHADES])
    drawn_: Chart = (
        alt.Chart(_data(rows, "heat map"))
        .mark_rect(cursor="crosshair", clip=True)
        .encode(
            x=time_axis(answer["since_ns"], answer["until_ns"], step_ns),
            x2="to:T",
            y=_duration_axis("low", (row[end] for row in rows for end in ("low", "high"))),
            y2="high:Q",
            color=alt.Color("is_chosen:N", scale=colours, legend=None),
            opacity=alt.Opacity("requests:Q", scale=shades, legend=None),
            tooltip=[alt.Tooltip("requests:Q", format=",d"), alt.Tooltip("took:N")],
        )
    )
    brush = alt.selection_interval(name=AREA, encodings=["x", "y"])
    return framed(drawn_.add_params(brush).properties(height=_HEIGHT))


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


def _is_in(cell: Mapping[str, int], area: Area) -> bool:
    return (
        area.since_ns <= cell["at_ns"] < area.until_ns
        and area.low_ns <= cell["low_ns"]
        and cell["high_ns"] <= area.high_ns
    )


def duration_scale(seconds: Iterable[float]) -> alt.Scale:
    """A logarithmic scale for these durations. Its ends are given, since the rows come after the spec."""
    known = sorted(seconds)
    low, high = (known[0], known[-1]) if known else (0.001, 1.0)
    return alt.Scale(type="log", nice=False, domain=[low, max(high, low * 2)])


def _duration_axis(field: str, seconds: Iterable[float]) -> alt.Y:
    axis = alt.Axis(values=TICKS_S, minExtent=52, maxExtent=52, labelPadding=6, labelExpr=LABELS)
    return alt.Y(f"{field}:Q", title=None, scale=duration_scale(seconds), axis=axis)


def seconds_shown(ns: int) -> float:
    """For an axis that has no zero."""
    return max(ns, 1000) / 1e9


def _data(rows: Sequence[Row], name: str) -> Any:
    return alt.InlineData(values=list(rows), name=name)

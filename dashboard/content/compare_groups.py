"""Two groups of requests side by side: their times, phase by phase, and why their tokens were reused or computed.

A group is an answer of `/api/latency/measures`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import altair as alt

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.latency import LABELS, MEASURES, TICKS_S, duration_scale, seconds_shown
from kvtrail.dashboard.content.legend import Entry
from kvtrail.dashboard.content.palette import BLUE, ORANGE
from kvtrail.dashboard.content.text import percent
from kvtrail.dashboard.content.trends import Chart, framed
from kvtrail.tracer.model.cause_words import name
from kvtrail.tracer.model.causes import REUSED, Cause
from kvtrail.tracer.model.conditions import parsed
from kvtrail.tracer.model.words import NOTHING, duration, some

Filters = Mapping[str, str]
"""What the requests of a group are chosen by: `engine`, `status`, and conditions (`where`)."""
LETTERS = ("A", "B")
_MUCH = 1.2
"""A median has changed if it is more than this many times the other one."""
_APART = 0.05
"""A cause's share of the tokens has changed if it is this much apart."""
_HEIGHT = 260


def summary(a: Row, b: Row, filters: tuple[Filters, Filters] = ({}, {})) -> str:
    """What differs most between the two, in sentences: the phase and the cause. What their `filters` tell them apart by is no
    discovery, and not named."""
    if not (a["requests"] and b["requests"]):
        empty = " and ".join(letter for letter, each in zip(LETTERS, (a, b), strict=True) if not each["requests"])
        return f"No request of the range is in group {empty}: change its conditions, or the range."
    given = _differing(*filters)
    named = [MEASURES[of] for of in MEASURES if of in given]
    apart = f"Apart from “{'”, “'.join(named)}”, by which they are filtered, " if named else ""
    sentences = [f"A has {some(a['requests'], 'request')}, B {some(b['requests'], 'request')}."]
    if contained := _contained(*filters):
        sentences.append(contained)
    medians = [(of, _time(a, of), _time(b, of)) for of in MEASURES if of not in given]
    both = [(of, x["p50_ns"], y["p50_ns"]) for of, x, y in medians if x["requests"] and y["requests"]]
    changed = [(of, x, y) for of, x, y in both if max(x, y) > _MUCH * min(x, y)]
    if changed:
        of, ours, theirs = max(changed, key=lambda each: abs(each[1] - each[2]))
        differs = f"the median of “{MEASURES[of]}” differs most: A {duration(ours)}, B {duration(theirs)}."
    else:
        differs = "no median time differs by more than a fifth."
    sentences.append(f"{apart}{differs}" if apart else f"{differs[0].upper()}{differs[1:]}")
    shares = [_shares(each) for each in (a, b)]
    causes = [each for each in _by_difference(*shares) if each not in given]
    if causes and abs(shares[0].get(causes[0], 0) - shares[1].get(causes[0], 0)) >= _APART:
        ours_, theirs_ = (percent(each.get(causes[0], 0.0)) for each in shares)
        sentences.append(
            f"By cause, tokens {_words(causes[0])} differ most: A {ours_} of those asked for, B {theirs_}."
        )
    return " ".join(sentences)


def _differing(a: Filters, b: Filters) -> set[str]:
    """The names in those conditions that only one of the two has."""
    ours, theirs = (set(parsed(each.get("where", ""))) for each in (a, b))
    return {each.name for each in ours ^ theirs}


def _contained(a: Filters, b: Filters) -> str:
    """A sentence if one group contains the other, which then has all of its filters and more; else an empty text."""
    sides = [
        {*((name, value) for name, value in each.items() if name != "where"), *parsed(each.get("where", ""))}
        for each in (a, b)
    ]
    for wide, narrow in ((0, 1), (1, 0)):
        if sides[wide] < sides[narrow]:
            why = "its filters are a part of the other's" if sides[wide] else "it has no filters"
            return f"{LETTERS[wide]} contains {LETTERS[narrow]}, since {why}."
    return ""


def time_rows(a: Row, b: Row) -> list[Row]:
    """Each time that one of them has, with the percentiles of both."""
    rows = []
    for of, words in MEASURES.items():
        ours, theirs = _time(a, of), _time(b, of)
        if ours["requests"] or theirs["requests"]:
            row: Row = {"Time": words}
            for share, text in (("p50_ns", "half"), ("p90_ns", "90 %"), ("p99_ns", "99 %")):
                for letter, each in zip(LETTERS, (ours, theirs), strict=True):
                    row[f"{letter}: {text} within"] = NOTHING if each[share] is None else duration(each[share])
            rows.append(row)
    return rows


def cause_rows(a: Row, b: Row) -> list[Row]:
    """The tokens of both by cause: numbers, and shares of the tokens asked for, the largest difference of shares first."""
    shares = [_shares(each) for each in (a, b)]
    return [
        {
            "Tokens": _words(cause),
            "Reused": "reused" if cause in REUSED else "computed",
            **{
                key: value
                for letter, each, share in zip(LETTERS, (a, b), shares, strict=True)
                for key, value in (
                    (f"{letter}: tokens", each["tokens"].get(cause, 0)),
                    (f"{letter}: share", 100 * share.get(cause, 0.0)),
                )
            },
        }
        for cause in _by_difference(*shares)
    ]


def cumulative(a: Row, b: Row, of: str, *, dark: bool) -> Chart:
    """The share of each group's requests that took no longer, over the time they took: two lines."""
    rows: list[dict[str, Any]] = []
    for letter, group in zip(LETTERS, (a, b), strict=True):
        each = _time(group, of)
        reached = accumulate(requests for *_, requests in each["bins"])
        points = [(high, sum_ / each["requests"]) for (_, high, _), sum_ in zip(each["bins"], reached, strict=True)]
        for ns, share in [(each["bins"][0][0], 0.0), *points] if points else []:
            rows.append({"group": letter, "seconds": seconds_shown(ns), "share": share, "took": duration(ns)})
    colours = dict(zip(LETTERS, (BLUE.on(dark=dark), ORANGE.on(dark=dark)), strict=True))
    x = alt.X(
        "seconds:Q",
        title=None,
        scale=duration_scale(row["seconds"] for row in rows),
        axis=alt.Axis(values=TICKS_S, labelExpr=LABELS, labelPadding=4),
    )
    axis = alt.Axis(format=".0%", tickCount=5, minExtent=40)
    drawn: Chart = (
        alt.Chart(alt.InlineData(values=rows, name="cumulative"))
        .mark_line(strokeWidth=2.5)
        .encode(
            x=x,
            y=alt.Y("share:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=axis),
            color=alt.Color("group:N", legend=None, scale=alt.Scale(domain=[*colours], range=[*colours.values()])),
            order="seconds:Q",
            tooltip=[
                alt.Tooltip("group:N"),
                alt.Tooltip("share:Q", format=".1%"),
                alt.Tooltip("took:N", title="took less than"),
            ],
        )
    )
    return framed(drawn.properties(height=_HEIGHT))


def legend_entries(a: Row, b: Row, *, dark: bool) -> list[Entry]:
    """The two groups, with the number of their requests."""
    return [
        Entry(letter, colour.on(dark=dark), value=some(each["requests"], "request"))
        for letter, colour, each in zip(LETTERS, (BLUE, ORANGE), (a, b), strict=True)
    ]


def _time(answer: Row, of: str) -> Row:
    found: Row = next(each for each in answer["times"] if each["of"] == of)
    return found


def _shares(answer: Row) -> dict[str, float]:
    """The causes as shares of the tokens asked for."""
    asked = sum(answer["tokens"].values())
    return {cause: number / asked for cause, number in answer["tokens"].items()} if asked else {}


def _by_difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[str]:
    """The causes, those with the largest difference between their shares first."""
    return sorted({*ours, *theirs}, key=lambda each: -abs(ours.get(each, 0) - theirs.get(each, 0)))


def _words(cause: str) -> str:
    return "of unknown cause" if cause == Cause.UNKNOWN else name(cause)

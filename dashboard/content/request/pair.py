"""A request and the one on the other side of its hand-off: both engines on one axis, where the time to the first token went,
and what each of them computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import altair as alt

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.charts import data
from kvtrail.dashboard.content.legend import Entry
from kvtrail.dashboard.content.request import account, phases
from kvtrail.dashboard.content.request.charts import Chart
from kvtrail.dashboard.palette import BLUE, GREEN, GREY, RED, STAGE
from kvtrail.tracer.events.events import Side
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.cause_words import headline, runs, sentence
from kvtrail.tracer.model.causes import PEER, REUSED, Cause
from kvtrail.tracer.model.words import NOTHING, duration, percent, some

PREFILLS, DECODES, KEEPS = "prefill", "decode", "kept"
"""The rows of the chart."""
_ROW_HEIGHT, _AXIS_HEIGHT = 30, 56
_BEYOND = 0.1
"""How much of the output is drawn, as a share of what comes before it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A hand-off with the requests of both engines; the page shows one of them.

    Attributes:
        given, taken: the timelines of the request that gives, and of the one that takes.
        given_parts, taken_parts: their phases, in milliseconds after the arrival of each.
        link: the hand-off, as the api has it.
    """

    given: Row
    taken: Row
    given_parts: Sequence[phases.Stretch]
    taken_parts: Sequence[phases.Stretch]
    link: Row

    @property
    def shift(self) -> float:
        """Milliseconds from the arrival of the request that gives to that of the one that takes, as the picture has it."""
        apart = self.taken["request"]["started_ns"] - self.given["request"]["started_ns"] - self.link["ahead_ns"]
        return float(apart / 1e6)

    def given_ms(self, at_ns: int) -> float:
        """A moment of the engine that gives, on the picture's axis."""
        return float((at_ns - self.given["request"]["started_ns"]) / 1e6)

    @property
    def names(self) -> tuple[str, str]:
        """The engines that give and take."""
        return self.given["request"]["engine_name"], self.taken["request"]["engine_name"]


def pair_of(
    timeline: Row, parts: Sequence[phases.Stretch], other: Row, others: Sequence[phases.Stretch], link: Row
) -> Pair:
    """The pair of a page's request and the one on the other side of its hand-off `link`."""
    if link["side"] == Side.GIVES:
        return Pair(timeline, other, parts, others, link)
    return Pair(other, timeline, others, parts, link)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the time to the first token, on the axis of the picture: milliseconds after the arrival at the engine that
    prefills."""

    name: str
    begin: float
    end: float


def stages(pair: Pair) -> list[Stage]:
    """Where the time to the first token went; empty if too little of either request is recorded."""
    given, taken = _moments(pair.given), _moments(pair.taken)
    ended = pair.link["kept_from_ns"]
    if given.stepped is None or ended is None or taken.token is None:
        return []
    start = pair.shift
    allocated = taken.stepped if taken.allocated is None else taken.allocated
    received = allocated if taken.received is None else taken.received
    if allocated is None or received is None:
        return []
    moments = [
        0.0,
        given.stepped,
        pair.given_ms(ended),
        start,
        start + allocated,
        start + received,
        start + taken.token,
    ]
    return [Stage(name, begin, end) for name, (begin, end) in zip(STAGE, pairwise(moments), strict=True)]


@dataclass(frozen=True, slots=True)
class _Moments:
    """Of a request, in milliseconds after its arrival: its first step, the allocation of a load, the load's end, and the
    first token; None where it is not recorded."""

    stepped: float | None
    allocated: float | None
    received: float | None
    token: float | None


def _moments(timeline: Row) -> _Moments:
    start_ns = timeline["request"]["started_ns"]

    def ms(at_ns: int) -> float:
        return float((at_ns - start_ns) / 1e6)

    steps: list[Row] = [step for step in timeline["steps"] if step["name"] == Kind.SCHEDULE]
    allocated = next((s for s in timeline["steps"] if s["name"] == Kind.ALLOC and s["numbers"].get("allocated")), None)
    received = next((s for s in timeline["steps"] if s["name"] == Kind.RECEIVED), None)
    total = timeline["request"]["prompt"] or timeline["request"]["total"]
    token = None
    for number, step in enumerate(steps):
        if step["numbers"]["computed"] + step["numbers"]["scheduled"] >= total:  # the step that makes the token
            token = steps[number + 1] if number + 1 < len(steps) else step
            break
    return _Moments(
        None if not steps else ms(steps[0]["end_ns"]),
        None if allocated is None else ms(allocated["start_ns"]),
        None if received is None else ms(received["end_ns"]),
        None if token is None else ms(token["end_ns"]),
    )


def alignment(link: Row) -> str:
    """How the axes of both engines are aligned, and how exact that is."""
    least, most, taken = link["ahead_least_ns"], link["ahead_most_ns"], link["ahead_ns"]
    if least is None and most is None:
        return (
            "No message shows how far the clocks of the two engines are apart. They are drawn as if they agreed, so what one"
            " engine did before or after the other is not known."
        )
    known = (("at least", least), ("at most", most))
    bounds = [f"{word} {_ahead(bound)}" for word, bound in known if bound is not None]
    left = "any time" if most is None else f"up to {duration(most - taken)}"
    right = "any time" if least is None else f"up to {duration(taken - least)}"
    drawn = "as if they agreed" if taken == 0 else f"as {_ahead(taken)}"
    return (
        "The engines' clocks are never compared, but the messages between them bound how far they are apart: the clock of the"
        f" engine that decodes is {' and '.join(bounds)}. It is drawn {drawn}: its row may lie {left} further left, and"
        f" {right} further right. Within a row, times are exact."
    )


def _ahead(ns: int) -> str:
    return f"{duration(-ns)} behind" if ns < 0 else f"{duration(ns)} ahead"


def kept_text(link: Row) -> str:
    """How long the blocks were kept, and what ended that, in a sentence; empty if it is not known."""
    if link["kept_from_ns"] is None:
        return ""
    if link["kept_to_ns"] is None:
        if link.get("gone_ns") is None:
            return "Its blocks are still kept."
        return f"Its blocks were kept for {duration(max(0, link['gone_ns'] - link['kept_from_ns']))}, until its engine ended."
    lasted = duration(link["kept_to_ns"] - link["kept_from_ns"])
    if not link["expired"]:
        return (
            f"Its blocks were kept for {lasted}, until they had been read."
            if link["read_ns"]
            else f"Its blocks were kept for {lasted}."
        )
    late = ""
    if link["read_ns"] is not None and link["read_ns"] > link["kept_to_ns"]:
        late = f" A reader reported {duration(link['read_ns'] - link['kept_to_ns'])} later that it had read them."
    return f"Its blocks were kept for {lasted}, until the lease ran out.{late}"


def stage_legend(parts: Sequence[Stage], *, dark: bool) -> list[Entry]:
    """The parts of the time to the first token, with how long each was."""
    return [
        Entry(
            part.name,
            STAGE[part.name].colour.on(dark=dark),
            value=_ms(part.end - part.begin),
            help=STAGE[part.name].means,
        )
        for part in parts
    ]


def first_token_text(parts: Sequence[Stage], link: Row) -> str:
    """The time to the first token in a sentence, and which part of it is uncertain."""
    if not parts:
        return ""
    whole = parts[-1].end - parts[0].begin
    longest = max(parts, key=lambda part: part.end - part.begin)
    share = (longest.end - longest.begin) / whole if whole > 0 else 0.0
    least, most = link["ahead_least_ns"], link["ahead_most_ns"]
    exact = (
        ""
        if least is None or most is None
        else f" How long the hand-off took is known within {duration(most - least)}; the others are exact."
    )
    return f"{_ms(whole)} to the first token; {longest.name} took the most of it, {percent(share)}.{exact}"


def computed_rows(pair: Pair) -> list[Row]:
    """What each engine had, loaded and computed of the prompt at its first admission, and why it computed that."""
    rows = []
    for role, engine, timeline in zip((PREFILLS, DECODES), pair.names, (pair.given, pair.taken), strict=True):
        first = next(iter(account.admissions(timeline)), None)
        causes = next(iter(timeline["request"].get("causes") or ()), None)
        rows.append(
            {
                "Engine": f"{engine} ({role})",
                "Prompt": None if first is None else first.asked,
                "From its cache": None if first is None else first.cached,
                "Loaded": None if first is None else first.loaded,
                "Computed": None if first is None else first.computed,
                "Why": NOTHING if causes is None else headline(causes),
            }
        )
    return rows


def again_text(pair: Pair) -> str:
    """What the engine that decodes computed though the other one had it, and why, in sentences; empty if that is nothing but
    the last token, or not known."""
    entry = next(iter(pair.taken["request"].get("causes") or ()), None)
    if entry is None:
        return ""
    giver = pair.given["request"]["engine"]
    again = [
        run | {"engine": pair.names[0]} if run.get("engine") == giver else run
        for run in runs(entry["parts"])
        if run["cause"] == Cause.ELSEWHERE or (run["tier"] == PEER and run["cause"] not in (*REUSED, Cause.LAST_TOKEN))
    ]
    if not again:
        return ""
    each = "; ".join(f"{some(run['tokens'], 'token')} {sentence(run, at_ns=entry['at_ns'])}" for run in again)
    return f"Computed again: {each}."


def pair_chart(pair: Pair, parts: Sequence[Stage], *, dark: bool) -> Chart:
    """Both engines' phases and the blocks that are kept, above each other; below them the parts of the time to the first
    token."""
    colours = palette.colours(palette.PHASE, dark=dark)
    grey = GREY.on(dark=dark)
    given, taken = (phases.alone(each) for each in (pair.given_parts, pair.taken_parts))
    bars = [_bar(PREFILLS, part, colours.get(part.phase, grey), 0.0) for part in given]
    bars += [_bar(DECODES, part, colours.get(part.phase, grey), pair.shift) for part in taken]
    bars += [
        {"row": "first token", "what": each.name, "from": each.begin, "to": each.end,
         "lasted": _ms(each.end - each.begin), "colour": STAGE[each.name].colour.on(dark=dark)}
        for each in parts
    ]  # fmt: skip
    end = max((bar["to"] for bar in bars), default=1.0)
    marks = []
    link = pair.link
    if link["kept_from_ns"] is not None:
        begin = pair.given_ms(link["kept_from_ns"])
        is_open = link["kept_to_ns"] is None
        until = max(end, begin) if is_open else pair.given_ms(link["kept_to_ns"])
        colour = (BLUE if is_open else RED if link["expired"] else GREEN).on(dark=dark)
        if is_open:
            how = "still kept" if link.get("gone_ns") is None else "its engine ended"
        else:
            how = "the lease ran out" if link["expired"] else "given back"
        bars.append(
            {
                "row": KEEPS,
                "what": f"kept: {how}",
                "from": begin,
                "to": until,
                "lasted": _ms(until - begin),
                "colour": colour,
            }
        )
        if not is_open:
            marks.append({"row": KEEPS, "at": until, "what": how, "colour": colour})
        if link["read_ns"] is not None:
            marks.append(
                {"row": KEEPS, "at": pair.given_ms(link["read_ns"]), "what": "a reader's report", "colour": grey}
            )
    rows = [row for row in (PREFILLS, KEEPS, DECODES, "first token") if any(bar["row"] == row for bar in bars)]
    ends = [bar["to"] for bar in bars if bar["row"] != DECODES or not parts] + [mark["at"] for mark in marks]
    begins = [bar["from"] for bar in bars] + [0.0]
    end = max([*ends, 1.0])  # the output may go on for long: its beginning is what matters here
    return _layers(bars, marks, rows, extent=(min(begins), end * (1 + _BEYOND)))


def _bar(row: str, part: phases.Stretch, colour: str, shift: float) -> Row:
    return {
        "row": row, "what": part.phase, "from": part.begin + shift, "to": part.end + shift,
        "lasted": _ms(part.end - part.begin), "colour": colour,
    }  # fmt: skip


def _layers(
    bars: Sequence[Row],
    marks: Sequence[Row],
    rows: Sequence[str],
    *,
    extent: tuple[float, float],
) -> Chart:
    begin, end = extent
    room = max((end - begin) * 0.015, 0.01)
    unit, divisor = ("s", 1000) if end - begin >= 10_000 else ("ms", 1)
    scale = alt.Scale(domain=[begin - room, end + room], nice=False)
    x = alt.X(
        "from:Q",
        title=f"since the arrival at prefill ({unit})",
        scale=scale,
        axis=alt.Axis(labelExpr=f"format(datum.value / {divisor}, ',.3~f')", tickCount=12),
    )
    axis = alt.Axis(minExtent=110, maxExtent=110, grid=True)
    y = alt.Y("row:N", sort=list(rows), scale=alt.Scale(domain=list(rows)), title=None, axis=axis)
    color = alt.Color("colour:N", scale=None)
    tooltip = [alt.Tooltip("what:N"), alt.Tooltip("lasted:N")]
    drawn = alt.Chart(data(bars, "pair")).mark_bar(height=16, clip=True)
    layers = [drawn.encode(x=x, x2="to:Q", y=y, color=color, tooltip=tooltip)]
    ticks = alt.Chart(data(marks, "pair marks")).mark_tick(thickness=3, size=24, opacity=1)
    layers.append(ticks.encode(x=alt.X("at:Q", scale=scale), y=y, color=color, tooltip=[alt.Tooltip("what:N")]))
    return alt.layer(*layers).properties(height=_ROW_HEIGHT * len(rows) + _AXIS_HEIGHT)


def _ms(lasted: float) -> str:
    return duration(round(lasted * 1e6)) if lasted >= 0 else f"-{duration(round(-lasted * 1e6))}"

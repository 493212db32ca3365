"""A request and the request on the other side of its hand-off: both engines on one axis, the parts of the time to the first
token, and the tokens that each engine computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import altair as alt

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.charts import data, tooltip
from kvtrail.dashboard.content.request import account, phases
from kvtrail.dashboard.content.request.account import since_arrival_ms
from kvtrail.dashboard.content.request.charts import Chart, bar, bars_drawn, rows_axis, since_arrival
from kvtrail.dashboard.content.text import milliseconds
from kvtrail.dashboard.palette import BLUE, GREEN, GREY, RED, STAGE, Meaning
from kvtrail.tracer.events.events import Side
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.cause_words import headline, runs, sentence
from kvtrail.tracer.model.causes import PEER, REUSED, Cause
from kvtrail.tracer.model.words import NOTHING, duration, percent, some

PREFILLS, DECODES, KEEPS, TO_FIRST_TOKEN = "prefill", "decode", "kept", "first token"
"""The rows of the chart."""
_ROW_HEIGHT, _AXIS_HEIGHT = 30, 56
_BEYOND = 0.1
"""The length of the drawn output, as a share of the time before it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A hand-off with the requests of both engines; the page shows one of them.

    Attributes:
        given, taken: the timelines of the request that gives, and of the one that takes.
        given_parts, taken_parts: their phases, in milliseconds after the arrival of each.
        link: the hand-off from the API.
    """

    given: Row
    taken: Row
    given_parts: Sequence[phases.Stretch]
    taken_parts: Sequence[phases.Stretch]
    link: Row

    @property
    def shift(self) -> float:
        """Milliseconds from the arrival of the giving request, where the chart's axis begins, to that of the taking one."""
        return since_arrival_ms(self.given, self.taken["request"]["started_ns"] - self.link["ahead_ns"])

    @property
    def names(self) -> tuple[str, str]:
        """The engines that give and take."""
        return self.given["request"]["engine_name"], self.taken["request"]["engine_name"]


def pair_of(
    timeline: Row, parts: Sequence[phases.Stretch], other: Row, others: Sequence[phases.Stretch], link: Row
) -> Pair:
    """The pair of a page's request and the request on the other side of its hand-off `link`."""
    if link["side"] == Side.GIVES:
        return Pair(timeline, other, parts, others, link)
    return Pair(other, timeline, others, parts, link)


def stages(pair: Pair) -> list[phases.Stretch]:
    """The parts of the time to the first token, on the chart's axis; empty if too little of either request is recorded."""
    step, _, _, _ = _moments(pair.given)
    first, allocated, received, token = _moments(pair.taken)
    allocated = first if allocated is None else allocated
    received = allocated if received is None else received
    ended_ns = pair.link["kept_from_ns"]
    if step is None or ended_ns is None or allocated is None or received is None or token is None:
        return []
    given = [0.0, step, since_arrival_ms(pair.given, ended_ns)]
    moments = [*given, *(pair.shift + ms for ms in (0.0, allocated, received, token))]
    return [phases.Stretch(name, begin, end) for name, (begin, end) in zip(STAGE, pairwise(moments), strict=True)]


def _moments(timeline: Row) -> tuple[float | None, float | None, float | None, float | None]:
    """Times of a request, in milliseconds after its arrival: its first step, the allocation of a load, the load's end, and
    the first token; None if not recorded."""
    steps = [step for step in timeline["steps"] if step["name"] == Kind.SCHEDULE]
    allocated = [s for s in timeline["steps"] if s["name"] == Kind.ALLOC and s["numbers"].get("allocated")]
    received = [s for s in timeline["steps"] if s["name"] == Kind.RECEIVED]
    total = timeline["request"]["prompt"] or timeline["request"]["total"]
    # The step after the one that computes the token, if there is one.
    token = [
        after
        for step, after in pairwise([*steps, *steps[-1:]])
        if step["numbers"]["computed"] + step["numbers"]["scheduled"] >= total
    ]

    def first(found: Sequence[Row], end: str) -> float | None:
        return since_arrival_ms(timeline, found[0][end]) if found else None

    return first(steps, "end_ns"), first(allocated, "start_ns"), first(received, "end_ns"), first(token, "end_ns")


def alignment(link: Row) -> str:
    """How the axes of both engines are aligned, and how exact that is."""
    least, most, taken = link["ahead_least_ns"], link["ahead_most_ns"], link["ahead_ns"]
    if least is None and most is None:
        return (
            "No message shows how far the clocks of the two engines are apart. They are drawn as if they agreed, so what one"
            " engine did before or after the other is not known."
        )
    bounds = " and ".join(
        f"{word} {_ahead(bound)}" for word, bound in (("at least", least), ("at most", most)) if bound is not None
    )
    return (
        "The engines' clocks are never compared, but the messages between them bound how far they are apart: the clock of the"
        f" engine that decodes is {bounds}. It is drawn {f'as {_ahead(taken)}' if taken else 'as if they agreed'}. Within a"
        " row, times are exact."
    )


def _ahead(ns: int) -> str:
    return f"{duration(-ns)} behind" if ns < 0 else f"{duration(ns)} ahead"


def kept_text(link: Row) -> str:
    """How long the blocks were kept, and why they were freed, in a sentence; empty if unknown."""
    if link["kept_from_ns"] is None:
        return ""
    end_ns, read_ns = link["kept_to_ns"] or link.get("gone_ns"), link["read_ns"]
    if end_ns is None:
        return "Its blocks are still kept."
    late = ""
    if link["expired"] and read_ns is not None and read_ns > end_ns:
        late = f" A reader reported {duration(read_ns - end_ns)} later that it had read them."
    return f"Its blocks were kept for {duration(max(0, end_ns - link['kept_from_ns']))}, until {_end_of(link)}.{late}"


def _end_of(link: Row) -> str:
    """Why the blocks were freed."""
    if link["kept_to_ns"] is None:
        return "its engine ended"
    return (
        "the lease ran out" if link["expired"] else "they had been read" if link["read_ns"] else "they were given back"
    )


def first_token_text(parts: Sequence[phases.Stretch], link: Row) -> str:
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
    return f"{milliseconds(whole)} to the first token; {longest.phase} took the most of it, {percent(share)}.{exact}"


def computed_rows(pair: Pair) -> list[Row]:
    """The prompt's cached, loaded and computed tokens at each engine's first admission, and why they were computed."""
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
    """The tokens that the decode engine computed although the other one had them, and why, in sentences; empty if it is only
    the last token, or unknown."""
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


def pair_chart(pair: Pair, parts: Sequence[phases.Stretch], *, dark: bool) -> Chart:
    """Both engines' phases and the blocks that are kept, above each other; below them the parts of the time to the first
    token."""
    given, taken = (phases.alone(each) for each in (pair.given_parts, pair.taken_parts))
    bars = [bar(PREFILLS, part, palette.PHASE, dark=dark) for part in given]
    bars += [bar(DECODES, part, palette.PHASE, dark=dark, shift=pair.shift) for part in taken]
    bars += [bar(TO_FIRST_TOKEN, part, STAGE, dark=dark) for part in parts]
    link = pair.link
    marks = []
    if link["kept_from_ns"] is not None:
        is_open = link["kept_to_ns"] is None
        begin = since_arrival_ms(pair.given, link["kept_from_ns"])
        until = (
            max(begin, *(each["to"] for each in bars)) if is_open else since_arrival_ms(pair.given, link["kept_to_ns"])
        )
        what = "still kept" if is_open and link.get("gone_ns") is None else f"kept until {_end_of(link)}"
        kept = Meaning(BLUE if is_open else RED if link["expired"] else GREEN, what)
        bars.append(bar(KEEPS, phases.Stretch(what, begin, until), {what: kept}, dark=dark))
        if link["read_ns"] is not None:
            marks.append(
                {"row": KEEPS, "at": since_arrival_ms(pair.given, link["read_ns"]), "what": "a reader's report"}
            )
    rows = [row for row in (PREFILLS, KEEPS, DECODES, TO_FIRST_TOKEN) if any(each["row"] == row for each in bars)]
    # The output may be long; only its beginning matters here.
    ends = [each["to"] for each in bars if each["row"] != DECODES or not parts] + [mark["at"] for mark in marks]
    begin = min((each["from"] for each in bars), default=0.0)
    x = since_arrival(min(begin, 0.0), max([*ends, 1.0]) * (1 + _BEYOND), what="the arrival at prefill")
    y = rows_axis(rows)
    ticks = alt.Chart(data(marks, "marks")).mark_tick(thickness=3, size=24, opacity=1, color=GREY.on(dark=dark))
    layers = [bars_drawn(bars, x, y), ticks.encode(x=x("at"), y=y, tooltip=tooltip("what"))]
    return alt.layer(*layers).properties(height=_ROW_HEIGHT * len(rows) + _AXIS_HEIGHT)

"""The data of the lanes' component, from the tracer's answers.

JavaScript's numbers cannot hold Unix nanoseconds: moments become milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import palette, text
from kvtrail.dashboard.content.markers import sentence, what
from kvtrail.dashboard.live.view import View, ms_of

BINS = 240
"""The overview's columns."""
NO_COMMAND = {"count": 0, "view": None}


def payload(
    answer: Row | None,
    view: View,
    *,
    is_away: bool,
    is_filtered: bool = False,
    overview: Row | None = None,
    markers: Sequence[Row] = (),
    command: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The component's data.

    Args:
        answer: of `/api/lanes`; None before the first one.
        is_away: whether the tracer does not answer; `answer` is then its last one.
        is_filtered: whether the page has filters in use.
        overview: `busyness` of a longer range than the answer's.
        markers: of `/api/markers`, by time.
        command: the last view that the page commanded, and the `count` of commands; a view of None means that the typed
            time cannot be parsed.
    """
    if answer is not None:
        moments = {f"{name}_ms": ms_of(answer[f"{name}_ns"]) for name in ("from", "to", "now")}
        answer = answer | moments | {"deaths": deaths(answer)}
    return {
        "answer": answer,
        "view": asdict(view),
        "is_away": is_away,
        "overview": overview,
        "is_filtered": is_filtered,
        "markers": [marker(each) for each in markers],
        "command": {"count": command["count"], "view": command["view"] and asdict(command["view"])}
        if command
        else NO_COMMAND,
        "palette": COLOURS,
    }


def busyness(answer: Row) -> Row:
    """The number of concurrent requests in each of `BINS`, and the moments of findings and deaths.

    It begins with the first request, or with the answer if that is later.
    """
    begins, ends = answer["requests"]["begin_us"], answer["requests"]["end_us"]
    from_us, to_us = max(0.0, min(begins, default=0)), (answer["to_ns"] - answer["from_ns"]) / 1000
    bin_us = max(1.0, (to_us - from_us) / BINS)
    changes = [0] * (BINS + 1)
    for begin_us, end_us in zip(begins, ends, strict=True):
        first, last = (min(max(int((us - from_us) / bin_us), 0), BINS - 1) for us in (begin_us, end_us))
        changes[first] += 1
        changes[last + 1] -= 1
    origin_ms = ms_of(answer["from_ns"])
    return {
        "from_ms": origin_ms + from_us / 1000,
        "to_ms": ms_of(answer["to_ns"]),
        "busy": list(accumulate(changes[:BINS])),
        "marks": [origin_ms + us / 1000 for us in answer["marks"]["at_us"]],
        "deaths": deaths(answer),
    }


def deaths(answer: Row) -> list[Row]:
    """The engines that died in an answer's time."""
    return [{**death, "at_ms": ms_of(death["at_ns"])} for death in answer.get("deaths", ())]


def marker(row: Row) -> Row:
    """A marker, with the words of the other charts."""
    at = f"{text.clock(row['at_ns']).partition('.')[0]} UTC"
    return {"at_ms": ms_of(row["at_ns"]), "kind": row["kind"], "text": f"{at} {what(row)}: {sentence(row)}"}


def shows_nothing(answer: Row) -> bool:
    """Whether the answer has no request."""
    return not answer["requests"]["begin_us"]


def _colours(*, dark: bool) -> Row:
    named = {"wrong": palette.RED, "warning": palette.ORANGE, "calm": palette.GREEN, "muted": palette.GREY}
    return {
        **{name: colour.on(dark=dark) for name, colour in named.items()},
        "phases": palette.colours(palette.PHASE, dark=dark),
        "means": {name: each.means for name, each in palette.PHASE.items()},
    }


COLOURS = {"light": _colours(dark=False), "dark": _colours(dark=True)}
"""The component's part of the palette."""

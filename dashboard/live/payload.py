"""The data of the lanes' component, from the tracer's answers.

JavaScript's numbers cannot hold Unix nanoseconds: moments become milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.charts import marker_kind, marker_text
from kvtrail.dashboard.content.text import clock
from kvtrail.dashboard.live.view import View, ms_of

NO_COMMAND = {"count": 0, "view": None}


def payload(
    answer: Row | None,
    view: View,
    *,
    is_away: bool,
    is_filtered: bool = False,
    markers: Sequence[Row] = (),
    command: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The component's data.

    Args:
        answer: of `/api/lanes`; None before the first one.
        is_away: whether the tracer does not answer; `answer` is then its last one.
        is_filtered: whether the page has filters in use.
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
        "is_filtered": is_filtered,
        "markers": [marker(each) for each in markers],
        "command": {"count": command["count"], "view": command["view"] and asdict(command["view"])}
        if command
        else NO_COMMAND,
        "palette": COLOURS,
    }


def deaths(answer: Row) -> list[Row]:
    """The engines that died in an answer's time."""
    return [{**death, "at_ms": ms_of(death["at_ns"])} for death in answer.get("deaths", ())]


def marker(row: Row) -> Row:
    """A marker, with the words of the other charts."""
    at = f"{clock(row['at_ns']).partition('.')[0]} UTC"
    return {"at_ms": ms_of(row["at_ns"]), "kind": row["kind"], "text": f"{at} {marker_kind(row)}: {marker_text(row)}"}


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

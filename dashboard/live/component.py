"""The component as Streamlit needs it: one JavaScript module, one style sheet, one piece of HTML; and its data.

JavaScript's numbers cannot hold Unix nanoseconds: moments become milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st
from msgspec import to_builtins
from streamlit.components.v2.types import ComponentRenderer

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.charts import marker_kind, marker_text
from kvtrail.dashboard.content.text import clock
from kvtrail.dashboard.live.view import View, ms_of
from kvtrail.dashboard.scripts import FOLDER as SHARED
from kvtrail.dashboard.scripts import joined

FOLDER = Path(__file__).parent
MODULES = (
    "time", "address", "theme", "rows", "model", "paint", "cursor", "card", "heads", "sentences", "hover",
    "markers", "toolbar", "input", "live",
)  # fmt: skip
"""Each module comes after its imports."""
NAME = "kvtrail_live"


def script() -> str:
    """All modules as one."""
    return joined([SHARED / "ids.js", *(FOLDER / f"{name}.js" for name in MODULES)])


@cache
def component() -> ComponentRenderer:
    """The component, registered once."""
    style, body = ((FOLDER / f"live.{kind}").read_text() for kind in ("css", "html"))
    return st.components.v2.component(NAME, js=script(), css=style, html=body)


def payload(
    answer: Row | None,
    view: View,
    *,
    command: Mapping[str, Any],
    is_away: bool,
    is_filtered: bool = False,
    markers: Sequence[Row] = (),
) -> dict[str, Any]:
    """The component's data.

    Args:
        answer: the answer of `/api/lanes`; None before the first one.
        command: the last view that the page commanded, and the `count` of commands; a view of None means that the typed
            time cannot be parsed.
        is_away: whether the tracer does not answer; `answer` is then its last answer.
        is_filtered: whether the page has filters in use.
        markers: the markers of `/api/markers`, by time.
    """
    if answer is not None:
        moments = {f"{name}_ms": ms_of(answer[f"{name}_ns"]) for name in ("from", "to", "now")}
        deaths = [{**death, "at_ms": ms_of(death["at_ns"])} for death in answer.get("deaths", ())]
        answer = answer | moments | {"deaths": deaths}
    return {
        "answer": answer,
        "view": to_builtins(view),
        "is_away": is_away,
        "is_filtered": is_filtered,
        "markers": [marker(each) for each in markers],
        "command": to_builtins(command),
        "palette": COLOURS,
    }


def marker(row: Row) -> Row:
    """A marker, with the same texts as on the other charts."""
    at = f"{clock(row['at_ns']).partition('.')[0]} UTC"
    return {"at_ms": ms_of(row["at_ns"]), "kind": row["kind"], "text": f"{at} {marker_kind(row)}: {marker_text(row)}"}


def _colours(*, dark: bool) -> Row:
    named = {"wrong": palette.RED, "warning": palette.ORANGE, "calm": palette.GREEN, "muted": palette.GREY}
    return {
        **{name: colour.on(dark=dark) for name, colour in named.items()},
        "phases": palette.colours(palette.PHASE, dark=dark),
        "means": {name: each.means for name, each in palette.PHASE.items()},
    }


COLOURS = {"light": _colours(dark=False), "dark": _colours(dark=True)}
"""The component's part of the palette."""

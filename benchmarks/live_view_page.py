"""The page that `live_view.py` measures: the same moving events, drawn by the live page's component or by Altair."""

from __future__ import annotations

import random
import time
from functools import cache
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from kvtrail.dashboard.live.component import component, payload
from kvtrail.dashboard.live.view import View
from kvtrail.tracer.ledger.phases import WORDS

EVERY_S = 3
OF_ONE = 5
"""Events per request."""
LANES = 40
WINDOW_US = 300 * 10**6


@cache
def columns(events: int) -> dict[str, Any]:
    """`events` segments of requests that follow each other on `LANES` lanes, in microseconds after the range's beginning."""
    dice = random.Random(4)
    count = events // OF_ONE
    length = WINDOW_US * LANES // max(count, LANES)
    begins, cuts = [], []
    for number in range(count):
        begin = number // LANES * length
        begins.append(begin)
        cuts.append(
            [begin, *sorted(begin + dice.randrange(length) for _ in range(OF_ONE - 1)), begin + int(length * 0.95)]
        )
    return {"begins": begins, "cuts": [sorted(c) for c in cuts], "length": length, "count": count}


def answer(events: int, *, shift_us: int) -> dict[str, Any]:
    """What the tracer would answer, with everything moved to the left by `shift_us`."""
    known = columns(events)
    count, now_ns = known["count"], time.time_ns()
    begins = [b - shift_us for b in known["begins"]]
    ends = [c[-1] - shift_us for c in known["cuts"]]
    segments = [
        (n, k, c[k] - shift_us, c[k + 1] - shift_us) for n, c in enumerate(known["cuts"]) for k in range(OF_ONE)
    ]
    lane, phase, begin, end = (list(column) for column in zip(*segments, strict=True))
    return {
        "from_ns": now_ns - WINDOW_US * 1000, "to_ns": now_ns, "now_ns": now_ns, "phases": list(WORDS.values()),
        "requests": {
            "request": [f"chat-{n}" for n in range(count)], "external": [f"chat-{n}" for n in range(count)],
            "engine": ["engine-a"] * count, "connector": ["C"] * count, "status": ["finished"] * count,
            "verdict": ["ok"] * count, "findings": [0] * count, "complete": [True] * count, "begin_us": begins,
            "end_us": ends, "is_open": [False] * count, "is_unsure": [False] * count,
        },
        "segments": {"lane": lane, "phase": phase, "begin_us": begin, "end_us": end},
        "marks": {name: [] for name in ("lane", "at_us", "rule", "title", "severity", "healed")}, "engine_names": {},
        "gaps": {name: [] for name in ("engine", "begin_us", "end_us", "missing")},
        "engines": ["engine-a"], "connectors": ["C"], "heard_ns": now_ns, "known": count, "is_sample": False,
        "has_all_findings": True, "is_whole": True,
    }  # fmt: skip


def chart(shown: dict[str, Any]) -> alt.Chart:
    """The same segments as Altair's bars, which can be moved and zoomed too."""
    segments = shown["segments"]
    frame = pd.DataFrame(
        {
            "lane": [n % LANES for n in segments["lane"]],
            "phase": [shown["phases"][k] for k in segments["phase"]],
            "begin": segments["begin_us"],
            "end": segments["end_us"],
        }
    )
    bars: alt.Chart = alt.Chart(frame).mark_bar()
    return bars.encode(x="begin:Q", x2="end:Q", y="lane:O", color="phase:N").properties(height=600).interactive()


@st.fragment(run_every=EVERY_S)
def page(kind: str, events: int) -> None:
    """One update."""
    number = st.session_state["number"] = st.session_state.get("number", 0) + 1
    data = answer(events, shift_us=number * 50_000)
    if kind == "component":
        shown = payload(data, View(), command={"count": 0, "view": None}, is_away=False)
        component()(key="live", data=shown, on_view_change=lambda: None)
    else:
        st.altair_chart(chart(data), key="chart")
    st.markdown(f"update {number}")


if __name__ == "__main__":
    page(st.query_params.get("kind", "component"), int(st.query_params.get("events", "1000")))

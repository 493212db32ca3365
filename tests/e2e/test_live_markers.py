"""The live page has the markers of the other charts: the launch of an engine."""

from __future__ import annotations

import re
import time

import pytest
from browser import SCHEMES, needs_chromium, playwright, shoot, switch_scheme
from live_page import ready
from live_traffic import S, post
from processes import SharedDashboard, Tracer
from traffic import Engine, served

from kvtrail.dashboard.live.payload import payload
from kvtrail.dashboard.live.view import View

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")


def test_a_marker_has_the_words_of_the_other_charts() -> None:
    row = {"at_ns": 1_764_725_076_001_000_000, "kind": "reset", "count": 2, "engine_name": "llama-a", "text": "emptied"}
    (marker,) = payload(None, View(), is_away=False, markers=[row])["markers"]
    assert marker["at_ms"] == 1_764_725_076_001
    assert marker["kind"] == "reset"
    assert re.fullmatch(r"\d\d:\d\d:\d\d UTC 2 . reset: llama-a emptied", marker["text"].rpartition(" 20")[2]), marker[
        "text"
    ]


@pytest.mark.long
@needs_chromium
def test_a_launch_is_a_line_over_the_lanes(page: playwright.Page, pages: SharedDashboard, shown: Tracer) -> None:
    now_ns = time.time_ns()
    post(shown, served(Engine("llama-a"), from_ns=now_ns - 60 * S, to_ns=now_ns, every_ms=1500))
    page.goto(f"{pages.url}/requests?view=lanes")
    ready(page)
    line = page.get_by_role("img", name=re.compile("deploy: llama-a"))
    playwright.expect(line).to_have_count(1)
    box, field = line.bounding_box(), page.locator(".field").bounding_box()
    assert box is not None
    assert field is not None
    assert field["x"] < box["x"] < field["x"] + field["width"]
    assert box["height"] > field["height"] / 2
    for scheme in SCHEMES:
        switch_scheme(page, scheme)
        shoot(page, f"live-markers-{scheme}")

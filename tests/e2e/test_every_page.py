"""Every page, of an empty store, a small one, and one that fills: it can be read, and the browser's console is silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from browser import SCHEMES, drawn, holds, needs_chromium, playwright, switch_scheme
from connection import Connection
from contrast import unreadable
from live_traffic import chatting
from processes import SharedDashboard, Tracer
from stories import STALE, feed

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
OF_A_REQUEST = "id=chat-7-0123abcd&engine=engine-a"
PAGES = (
    "", "live", "requests", "requests?by=engine", "latency", "findings", "efficiency", "fleet", "changes", "silences",
    "waste",    "compare_groups", "runbook?name=stale-lookup", f"request?{OF_A_REQUEST}", f"replay?{OF_A_REQUEST}",
    f"compare?{OF_A_REQUEST}", f"compare?{OF_A_REQUEST}&with=chat-8-0123abcd&with_engine=engine-a",
)  # fmt: skip


@pytest.fixture(params=["empty", "small", "live"])
def filled(request: pytest.FixtureRequest, shown: Tracer) -> Iterator[str]:
    """A store that has nothing, two requests, or those of two engines that go on; its name."""
    if request.param != "empty":
        for number in (7, 8):
            feed(shown, STALE, request=f"chat-{number}-0123abcd", engine="engine-a")
    with chatting(shown, "llama-a", "llama-b") if request.param == "live" else nullcontext():
        yield request.param


CHARTS = [
    f"svg.marks .{role} text"
    for role in ("role-axis-label", "role-axis-title", "role-legend-label", "role-legend-title")
]
PRESSED = ["button[aria-checked=true]", "button[aria-pressed=true]", "button[kind$=Active]"]
TABLES = [".kvtable th button", ".kvtable td", ".kvtable .label"]


def test_a_page_can_be_read_and_the_console_is_silent(
    page: playwright.Page, pages: SharedDashboard, filled: str
) -> None:
    """Vega warned of infinite extents, and of a domain, some 95 times in ten minutes; an axis had a contrast of 3.72."""
    connection = Connection(page)
    said: list[str] = []
    path = ""
    page.on("console", lambda message: said.append(f"/{path}: {message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"/{path}: {error}"))

    def all_can_be_read() -> None:
        assert unreadable(page, [*CHARTS, *PRESSED, *TABLES]) == {}, page.url

    for path in PAGES:
        page.goto(f"{pages.url}/{path}")
        drawn(page)
        if filled == "live":
            connection.wait_for_refreshes(1)
        for scheme in SCHEMES if filled == "small" else ():
            switch_scheme(page, scheme)
            drawn(page)
            holds(all_can_be_read)
    assert not said, "\n".join(said)

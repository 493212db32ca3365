"""Every page, of an empty store and of a small one: it can be read, and the browser's console has no errors."""

from __future__ import annotations

import re

import pytest
from browser import SCHEMES, drawn, holds, needs_chromium, playwright, switch_scheme
from contrast import unreadable
from processes import SharedDashboard, Tracer
from stories import STALE, feed

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
ALSO_EMPTY = ("", "requests?view=lanes", "requests", "requests?view=heat", "savings")
"""Those with charts, and the first one; `test_oncall_answers.py` has all pages of an empty store, without a browser."""
OF_A_REQUEST = "id=chat-7-0123abcd&engine=engine-a"
PAGES = (
    "", "requests", "requests?view=lanes", "requests?view=heat", "requests?by=engine", "findings",
    "findings?rule=stale-lookup", "findings?runbook=KvtrailEngineDied", "savings", f"request?{OF_A_REQUEST}",
    f"request?{OF_A_REQUEST}&tab=replay", f"request?{OF_A_REQUEST}&tab=compare",
    f"request?{OF_A_REQUEST}&tab=compare&with=chat-8-0123abcd&with_engine=engine-a",
)  # fmt: skip


@pytest.fixture(params=["empty", "small"])
def filled(request: pytest.FixtureRequest, shown: Tracer) -> str:
    """A store that has nothing, or two requests; its name."""
    if request.param != "empty":
        for number in (7, 8):
            feed(shown, STALE, request=f"chat-{number}-0123abcd", engine="engine-a")
    name: str = request.param
    return name


CHARTS = [
    f"svg.marks .{role} text"
    for role in ("role-axis-label", "role-axis-title", "role-legend-label", "role-legend-title")
]
PRESSED = ["button[aria-checked=true]", "button[aria-pressed=true]", "button[kind$=Active]"]
TABLES = [".kvtable th button", ".kvtable td", ".kvtable .label"]


EMPTY_AT_FIRST = re.compile(r"warning: WARN (Infinite extent for field|Conflicting scale property \"domain\")")
"""Streamlit draws each chart without its rows first, and what Vega then warns of cannot be chosen."""


@pytest.mark.costly("every page in a browser, in two schemes")
def test_a_page_can_be_read_and_the_console_has_nothing_of_ours(
    page: playwright.Page, pages: SharedDashboard, filled: str
) -> None:
    """An axis had a contrast of 3.72, and kept its colour when somebody switched from light to dark."""
    said: list[str] = []
    path = ""
    page.on("console", lambda message: said.append(f"/{path}: {message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"/{path}: {error}"))

    def all_can_be_read() -> None:
        assert unreadable(page, [*CHARTS, *PRESSED, *TABLES]) == {}, page.url

    for path in PAGES if filled == "small" else ALSO_EMPTY:
        page.goto(f"{pages.url}/{path}")
        drawn(page)
        for scheme in SCHEMES if filled == "small" else ():
            switch_scheme(page, scheme)
            drawn(page)
            holds(all_can_be_read)
    said = [each for each in said if not EMPTY_AT_FIRST.search(each)]
    assert not said, "\n".join(said)


@pytest.mark.long
def test_on_a_phone_no_card_is_cut_and_a_choice_that_is_shows_it(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    """ "in this range; 7 requests …", "tokens the store …"."""
    feed(shown, STALE, request="chat-7-0123abcd", engine="engine-a")
    page.set_viewport_size({"width": 390, "height": 844})

    def none_is_cut() -> None:
        cut = page.evaluate(
            """[...document.querySelectorAll("[data-testid=stMetric] .stMarkdownEllipsis")]
                .filter(each => each.scrollWidth > each.clientWidth).map(each => each.innerText)"""
        )
        assert cut == [], page.url

    for path in ("", "savings", f"request?{OF_A_REQUEST}"):
        page.goto(f"{pages.url}/{path}")
        page.get_by_test_id("stMetric").first.wait_for()
        drawn(page)
        holds(none_is_cut)
    page.goto(f"{pages.url}/requests")
    fields = page.locator(".st-key-filters input")
    playwright.expect(fields).to_have_count(9)
    for field in fields.all():
        playwright.expect(field).to_have_css("text-overflow", "ellipsis")

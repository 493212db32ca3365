"""Why tokens were no hit, and what more memory would buy, on the pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import needs_chromium, open_row, playwright, see, see_table, shoot
from evicted_story import ABOUT, CHUNK, STORY
from history import goodbyes, history
from processes import dashboard, serve
from test_dashboard_page import now
from wire import encoded

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard whose tracer has heard the story a moment ago."""
    folder = tmp_path_factory.mktemp("causes")
    tracer = serve(folder)
    try:
        events = history(STORY, chunk=CHUNK)
        told = [*events, *goodbyes(events)]
        tracer.post(encoded(now(told), ABOUT))
        with dashboard(folder, tracer.url) as url:
            yield url
    finally:
        tracer.end()


def test_the_request_tells_each_part_and_leads_to_what_explains_it(page: playwright.Page, site: str) -> None:
    page.goto(f"{site}/request?id=b-cmpl-1-0-0123abcd")
    see(page, "56 tokens of 120 were computed: 57 % evicted, 43 % unaligned.")
    table = see_table(page, "causes_0")
    assert [cells[:3] for cells in table] == [["0", "64", "held"], ["64", "32", "evicted"], ["96", "24", "unaligned"]]
    assert "evicted from the connector's store" in table[1][3]
    widths = page.locator(".parts").last.locator("i").evaluate_all("all => all.map(each => each.style.flexGrow)")
    assert widths == ["64", "32", "24"]
    shoot(page, "causes-request")
    open_row(page, "causes_0", 1)
    page.wait_for_url(re.compile(r"/live\?"))
    assert {"from", "to"} <= parse_qs(urlsplit(page.url).query).keys()


def test_efficiency_sums_up_why_and_what_memory_would_buy(page: playwright.Page, site: str) -> None:
    page.goto(f"{site}/efficiency")
    see(page, "Why the others were computed")
    see(page, re.compile("of what was computed was never computed before"))
    see(page, "What more memory would buy")
    see(page, re.compile("could have been given. Beyond 3 chunks nothing is gained"))
    shoot(page, "causes-efficiency")

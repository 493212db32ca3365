"""Why tokens were no hit, and what more memory would buy, on the pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from browser import holds, needs_chromium, open_row, playwright, query_of, see, shoot
from evicted_story import ABOUT, CHUNK, STORY
from history import goodbyes, groups_declared, history
from processes import SharedDashboard
from stories import now
from wire import encoded

from kvtrail.tracer.events import semconv

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def site(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard; its tracer has heard the story a moment ago."""
    with pages.showing(tmp_path_factory.mktemp("causes")) as tracer:
        events = history(STORY, chunk=CHUNK)
        tracer.post(encoded(now([*events, *goodbyes(events)]), ABOUT))
        hybrid = history(
            "L 96 c0 h64 -> 64\nA 64 [1-3 | 0 20-21]\nS 64+32\nend", request="hybrid-0123abcd", engine="h", recorder="h"
        )
        groups = {semconv.GROUPS.key: groups_declared("full 32, window 32 64") or ""}
        tracer.post(encoded(now([*hybrid, *goodbyes(hybrid)]), groups))
        yield pages.url


def test_the_request_shows_each_part_and_links_to_its_explanation(page: playwright.Page, site: str) -> None:
    page.goto(f"{site}/request?id=b-cmpl-1-0-0123abcd")
    see(page, "56 tokens of 120 were computed: 57 % evicted, 43 % unaligned.")
    bar = page.get_by_role("navigation", name="The 120 tokens by cause, in their order")
    lines = bar.get_by_role("listitem")
    playwright.expect(lines).to_have_text(
        [
            re.compile("0 to 64held by vLLM's own cache"),
            re.compile("64 to 96evicted from the connector's store"),
            re.compile("96 to 120unaligned"),
        ]
    )

    def the_first_is_twice_as_wide() -> None:
        widths = bar.locator(".parts a").evaluate_all("all => all.map(each => each.getBoundingClientRect().width)")
        assert widths[0] / widths[1] == pytest.approx(2, abs=0.05)

    holds(the_first_is_twice_as_wide)
    shoot(page, "causes-request")
    bar.get_by_role("link", name=re.compile("^tokens 64 to 96: evicted from the connector's store")).focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/requests\?.*view=lanes"))
    assert {"from", "to"} <= query_of(page).keys()


def test_savings_sum_up_why_and_what_memory_would_buy(page: playwright.Page, site: str) -> None:
    page.goto(f"{site}/savings")
    see(page, "Why the others were computed")
    see(page, re.compile("of what was computed was never computed before"))
    see(page, "What more memory would buy")
    see(page, re.compile("could have been given. Beyond 3 chunks nothing is gained"))
    page.get_by_role("combobox", name="Grouped by").click()
    page.get_by_role("option", name="connector").click()
    page.wait_for_url(re.compile("causes_by=connector"))
    shoot(page, "causes-savings")


@pytest.mark.long
def test_a_prefix_leads_to_its_requests_and_back(page: playwright.Page, site: str) -> None:
    page.goto(f"{site}/savings")
    see(page, re.compile(r"32 of \d+ computed tokens \(\d+\.\d %\) had been held by a cache before"))
    open_row(page, "waste_prefixes")
    page.wait_for_url(re.compile(r"prefix=[0-9a-f]{16}"))
    page.get_by_role("button", name=re.compile("^Only prefix .*: show all")).click()
    page.wait_for_url(re.compile(r"/savings\?(?!.*prefix)"))


def test_the_blocks_of_a_hybrid_model_are_listed_by_kv_cache_group(page: playwright.Page, site: str) -> None:
    page.goto(f"{site}/request?id=hybrid-0123abcd")
    page.get_by_text("Its block tables, at the latest allocation: 5 blocks in 2 KV cache groups").click()
    see(page, "1 (sliding window)")
    see(page, "20-21")
    shoot(page, "blocks-by-group")
    page.goto(f"{site}/request?id=hybrid-0123abcd&tab=replay&step=3")
    page.get_by_text("Its blocks: 5 blocks in 2 KV cache groups").click()
    see(page, "0 (full attention)")

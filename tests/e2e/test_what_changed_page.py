"""What changed: from the first page's sentence to the requests that explain it, in a real Chromium over a real tracer."""

from __future__ import annotations

import re

import pytest
from browser import needs_chromium, open_row, playwright, query_of, see, shoot
from processes import SharedDashboard, Tracer
from stories import feed_over_time

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
HIT = "L 2500 c0 h2400 -> 2400\nA 2400\nS 2400+100\nend"
MISS = "L 2500 c0 h0 -> 0\nA 0\nS 0+2500\nend"


def test_from_a_sentence_to_the_cause_and_the_requests(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    feed_over_time(shown, "llama-a", "0.11", dict.fromkeys(range(40, 20, -1), HIT))
    feed_over_time(shown, "llama-b", "0.12", dict.fromkeys(range(20, 1, -1), MISS))
    page.goto(pages.url)
    sentence = page.get_by_role("button", name=re.compile("Hit rate beyond vLLM's cache fell"))
    playwright.expect(sentence).to_contain_text("as engine llama-b was started with vLLM 0.11 → 0.12")
    playwright.expect(page.locator("svg.marks path[aria-roledescription=point]")).to_have_count(2)
    page.locator("svg.marks path[aria-roledescription=point]").nth(1).hover(force=True)
    see(page, re.compile("llama-b was started with"))

    sentence.click()
    see(page, "What probably caused it")
    assert "at" in query_of(page)
    see(page, re.compile(r"Engine llama-b was started with vLLM 0\.11 → 0\.12 .* of its own requests"))
    see(page, re.compile("Prompt tokens computed went from"))
    shoot(page, "changed")
    open_row(page, "changed_computed")
    page.wait_for_url(re.compile(r"/requests\?.*on=llama-b"))
    see(page, re.compile("19 requests"))

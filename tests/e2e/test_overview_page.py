"""The first page, and what it says of engines: a real Chromium on a real dashboard over a real tracer.

The tracer is fed over OTLP/HTTP; nothing is mocked. Screenshots are left in test-artifacts/.
"""

from __future__ import annotations

import re
import shlex
import time
from urllib.parse import quote, urlsplit

import pytest
from browser import (
    SCHEMES,
    drawn,
    holds,
    needs_chromium,
    open_row,
    playwright,
    query_of,
    rows,
    see,
    shoot,
    switch_scheme,
)
from contrast import unreadable
from history import history
from live_traffic import goodbye, post
from processes import SharedDashboard, Tracer, until
from stories import HEALTHY, STALE, feed, now
from traffic import Engine
from wire import encoded

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
HEALED = "L 750 c384 h256 -> 0 healed 256\nA 0\nS 384+366\nend"
OPEN = "L 640 c0 h512 -> 512\nA 512\nS 512+48"
EMPTY = {"findings": "No findings from", "savings": "No lookup was traced"}
"""What pages show of an empty store."""
TEXTS = (
    "[data-testid=stCaptionContainer] p", "[data-testid=stMarkdownContainer] p", "[data-testid=stMetricLabel] p",
    "[data-testid=stMetricDelta] *", ".stMarkdownBadge", "[data-testid=stPageLink-NavLink] p", "button p", "code",
    "svg.marks text",
)  # fmt: skip


def end(tracer: Tracer, engine: str, *, ended_by: str | None = None) -> None:
    """Send the last heartbeat of an engine's recorder, and of what the engine ended."""
    recorded = {each["engine"]: each["received"] for each in tracer.get("/api/health")["recorders"]}[engine]
    post(tracer, [goodbye(Engine(engine), sequence=recorded, at_ns=time.time_ns(), ended_by=ended_by)])


def shown_as(sentence: playwright.Locator, level: str) -> playwright.Locator:
    """What gives a sentence on the first page the colour of this level."""
    return sentence.locator(f"xpath=ancestor::*[contains(@class, 'st-key-say-{level}')]")


def test_from_an_empty_store_to_a_finding(page: playwright.Page, pages: SharedDashboard, shown: Tracer) -> None:
    for path, text in EMPTY.items():
        page.goto(f"{pages.url}/{path}")
        see(page, text)
        shoot(page, f"{path}-empty")
    page.goto(pages.url)
    see(page, "No requests yet")
    playwright.expect(page.get_by_test_id("stCode")).to_have_count(3)
    endpoint, settings, demo = page.get_by_test_id("stCode").all()
    assert endpoint.inner_text().strip() == shown.url
    words = shlex.split(settings.inner_text().replace("\\\n", " "))
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={shown.url}" in words
    assert "--http-port 4318" not in demo.inner_text()
    shoot(page, "task-09-empty")

    # The page is open while the spans come: it must show them without a reload.
    feed(shown, STALE, request="chat-7-0123abcd", engine="engine-a")
    feed(shown, HEALTHY, request="chat-8-0123abcd", engine="engine-b")
    see(page, re.compile("1 finding of stale-lookup.*did harm"))
    see(page, "Click an engine")
    shoot(page, "overview")
    page.get_by_role("link", name=re.compile("1 finding of stale-lookup")).click()
    see(page, "Open request chat-7-0123abcd")

    page.get_by_role("link", name="Requests").click()
    see(page, "2 requests, latest first")
    page.get_by_role("searchbox", name="Search").fill("chat-7")
    see(page, "1 request, latest first")
    page.wait_for_url(re.compile("search=chat-7"))
    # The line above the table is drawn before the table.
    until(lambda: [cells[0] for cells in rows(page, "requests_table")] == ["chat-7-0123abcd"])
    shoot(page, "requests")

    open_row(page, "requests_table")
    see(page, "verdict: drift")
    assert "id=chat-7-0123abcd" in page.url
    see(page, "At L2")
    see(page, "The connector answered 256")
    see(page, "A call for this request raised. Mismatch in tokens to load")
    playwright.expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(2)
    shoot(page, "request")

    # What was opened by a click can be opened by its address.
    page.goto(page.url)
    see(page, "The connector answered 256")


def test_a_dead_engine_is_shown_at_once_and_all_texts_can_be_read(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    """An engine that had died of an assertion was `closed`. Captions had a contrast of 3.89, axes and legends of 3.72."""
    feed(shown, HEALTHY, request="chat-8-0123abcd", engine="llama-b")
    feed(shown, STALE, request="chat-7-0123abcd", engine="llama-a")
    page.goto(pages.url)
    see(page, "Click an engine")  # the page is open when it happens
    end(shown, "llama-a", ended_by="AssertionError: Mismatch in tokens to load")
    end(shown, "llama-b")
    died = page.get_by_role("link", name=re.compile(r"Engine llama-a died at .* of AssertionError with 1 open request"))
    playwright.expect(died).to_be_visible()
    playwright.expect(shown_as(died, "lost")).to_have_count(1)
    shoot(page, "engine-died")
    died.click()
    see(page, "chat-7")
    assert urlsplit(page.url).path == "/request"

    page.goto(pages.url)
    see(page, "1 died; 1 drained.")
    shoot(page, "engines-died")

    def all_can_be_read() -> None:
        assert unreadable(page, TEXTS) == {}, (page.url, scheme)

    for path, text in (
        ("", "Click an engine"),
        ("findings", "The latest in words"),
        ("savings", "By engine and connector"),
    ):
        page.goto(f"{pages.url}/{path}")
        see(page, text)
        drawn(page)
        for scheme in SCHEMES:
            switch_scheme(page, scheme)
            holds(all_can_be_read)
            shoot(page, f"contrast-{path or 'overview'}-{scheme}")


@pytest.mark.long
def test_a_lost_request_names_the_end_of_its_engine_and_leads_there(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    feed(shown, OPEN, request="chat-9-0123abcd", engine="llama-a")
    end(shown, "llama-a", ended_by="KeyError: 7")
    page.goto(f"{pages.url}/request?id=chat-9-0123abcd&engine=llama-a")
    see(page, re.compile(r"At .* UTC, engine llama-a died of KeyError: 7 with 1 open request"))
    page.get_by_role("link", name="What happened then").click()
    see(page, re.compile(r"Engine llama-a died at .* of KeyError with 1 open request"))
    assert "from" in query_of(page)


@pytest.mark.long
def test_findings_of_one_rule_are_one_row_and_only_what_is_lost_is_red(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    """There were five equal cards of one rule, sparklines without time, and `abandoned` in blue."""
    feed(shown, HEALED, request="healed-1-0123abcd", engine="llama-a")
    page.goto(pages.url)
    harmless = page.get_by_role("link", name=re.compile("healed by the guard"))
    playwright.expect(harmless).to_have_count(1)
    playwright.expect(shown_as(harmless, "warning")).to_have_count(1)
    playwright.expect(page.locator("[class*='st-key-say-lost']")).to_have_count(0)

    for number in range(6):
        feed(shown, STALE, request=f"chat-{number}-0123abcd", engine=f"engine-{number}")
    sentence = page.get_by_role("link", name=re.compile("6 findings of stale-lookup in 6 requests"))
    playwright.expect(sentence).to_have_count(1)
    playwright.expect(shown_as(sentence, "lost")).to_have_count(1)
    cards = page.get_by_test_id("stMetric")
    playwright.expect(cards.filter(has_text="Findings")).to_contain_text("7")
    playwright.expect(page.get_by_test_id("stMetricChart")).to_have_count(0)
    playwright.expect(page.get_by_text("worst case")).to_have_count(0)
    shoot(page, "by-rule")


@pytest.mark.long
def test_ids_are_no_links_and_lost_spans_are_shown(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    """An id is the text of whoever calls the engine."""
    id_ = "http://evil.test/a www.evil.test b@evil.test <a href='//evil.test'>c</a> [d](//evil.test)"
    events = now(history(HEALTHY, request="chat-8-0123abcd", engine="engine-b"))
    del events[2]
    shown.post(encoded(events))
    feed(shown, STALE, request=id_, engine="http://evil.test/engine")
    for path in ("", f"request?id={quote(id_)}", f"request?tab=replay&id={quote(id_)}", "findings"):
        page.goto(f"{pages.url}/{path}")
        playwright.expect(page.get_by_text("evil").first).to_be_attached()
        playwright.expect(page.locator("a[href*='//evil'], a[href^='mailto']")).to_have_count(0)

    see(page, "Spans are missing: 1 that have not arrived")
    page.goto(pages.url)
    see(page, re.compile("1 span of engine engine-b did not arrive"))
    page.goto(f"{pages.url}/request?id=chat-8")
    see(page, "1 event of this request is missing")
    playwright.expect(page.get_by_role("table").first).to_be_visible()
    shoot(page, "missing")

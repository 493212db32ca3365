"""The pages while no tracer answers: it was never there, or goes away and comes back. In test_live_demo.py it hangs."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from browser import needs_chromium, playwright, see, shoot
from connection import Connection
from live_page import facts, ready
from live_traffic import S, post
from processes import SharedDashboard, Tracer
from stories import STALE, feed
from traffic import Engine, served

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
STATE = re.compile(r"The tracer does not answer, since \d\d:\d\d:\d\d UTC")


@pytest.mark.costly("every page in a browser, without its sidecar and with it")
def test_what_was_known_stays_until_it_is_back(page: playwright.Page, pages: SharedDashboard, shown: Tracer) -> None:
    now_ns = time.time_ns()
    post(shown, served(Engine("llama-a"), from_ns=now_ns - 100 * S, to_ns=now_ns, every_ms=1500))
    feed(shown, STALE, request="chat-7-0123abcd", engine="engine-a")
    away = f"The tracer at {shown.url} does not answer. Start it with kvtrail serve. Trying again every 2 s."
    known: dict[str, str | re.Pattern[str]] = {
        "": re.compile("1 finding of stale-lookup"),
        "findings": "Open request chat-7-0123abcd",
        "savings": "By engine and connector",
    }
    tabs = {path: page.context.new_page() for path in known}
    connection = Connection(page)
    for path, tab in tabs.items():
        tab.goto(f"{pages.url}/{path}")
        see(tab, known[path])
    page.goto(f"{pages.url}/requests?view=lanes")
    ready(page)

    shown.kill()
    for path, tab in tabs.items():
        see(tab, away)
        see(tab, "Below is what was last known.")
        see(tab, known[path])  # readers keep what they were reading
        shoot(tab, f"{path or 'task-08'}-away")
    playwright.expect(page.locator(".state")).to_contain_text(STATE)
    text = facts(page)
    connection.wait_for_refreshes()
    assert facts(page) == text, "what was last known stays"
    shoot(page, "live-away")
    asked = page.context.new_page()
    for path in ("findings", "savings"):
        asked.goto(f"{pages.url}/{path}?from=now-6h&to=now")
        see(asked, "does not answer")
        assert asked.get_by_test_id("stException").count() == 0

    shown.restart()
    for path, tab in tabs.items():
        playwright.expect(tab.get_by_text("does not answer")).to_have_count(0)
        see(tab, known[path])
    shoot(tabs["findings"], "back")
    playwright.expect(page.locator(".state")).to_contain_text("Live")
    ready(page)


def test_a_tracer_that_was_never_there_is_named(page: playwright.Page, pages: SharedDashboard) -> None:
    for path in ("", "requests?view=lanes"):
        page.goto(f"{pages.url}/{path}")
        see(page, "Start it with kvtrail serve.")
    shoot(page, "live-no-tracer")


def test_runbooks_lead_to_one_another(page: playwright.Page, pages: SharedDashboard) -> None:
    """Alertmanager leads here. A runbook is wanted most of all when nothing answers."""
    page.goto(f"{pages.url}/findings?runbook=KvtrailSevereDrift")
    see(page, "In the last 15 minutes a rule of severity")
    shoot(page, "runbook-alert")
    links = page.get_by_test_id("stMarkdown").get_by_role("link")
    href = links.filter(has_text="stale-lookup").first.get_attribute("href")
    assert href is not None
    page.goto(str(httpx.URL(page.url).join(href)))
    see(page, "The connector repeated an earlier answer although")
    see(page, "Findings of this rule")
    shoot(page, "runbook-rule")
    page.get_by_role("button", name="All runbooks").click()
    see(page, "One page for each alert and each rule")
    shoot(page, "runbook-index")

    page.goto(f"{pages.url}/findings?runbook=KvtrailSevereDrft")
    see(page, "There is no runbook KvtrailSevereDrft")
    shoot(page, "runbook-unknown")
    page.get_by_role("button", name="Did you mean KvtrailSevereDrift?").click()
    see(page, "In the last 15 minutes a rule of severity")

"""What is chosen holds although the browser has not been told so yet: it says with each refresh what it showed before."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import REFRESH_MS, needs_chromium, playwright, see
from on_live import ready
from processes import Tracer
from slow_browser import Line
from traffic import Engine, served
from wire import encoded

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
S = 10**9


@pytest.fixture
def url(start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]) -> str:
    """A dashboard over half an hour of requests, some of them with findings."""
    tracer, now_ns = start_tracer(), time.time_ns()
    events = served(Engine("llama-a"), from_ns=now_ns - 1800 * S, to_ns=now_ns - S, every_ms=20_000, stale_every=4)
    for first in range(0, len(events), 500):
        tracer.post(encoded(events[first : first + 500]))
    return start_dashboard(tracer.url)


def query(page: playwright.Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def refreshes(page: playwright.Page) -> None:
    """Wait until the browser has said more than once what it shows."""
    page.wait_for_timeout(2 * REFRESH_MS)


def pick(page: playwright.Page, label: str, option: str) -> None:
    """Choose from a list."""
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()


def test_a_typed_range_is_not_undone(page: playwright.Page, url: str) -> None:
    """The quick choice showed an hour, and a refresh said so: that was taken for a click on it."""
    line = Line(page)
    page.goto(f"{url}/findings")
    see(page, "By rule")
    field = page.get_by_role("textbox", name="Time range")
    with line.held_up():
        field.fill("2020-11-20 20:11:25 to 2020-11-21 20:11:25")
        field.press("Enter")
        refreshes(page)
    see(page, "No findings from 2020-11-20 20:11:25 to 2020-11-21 20:11:25 UTC")
    refreshes(page)
    see(page, "No findings from 2020-11-20 20:11:25 to 2020-11-21 20:11:25 UTC")
    assert query(page) == {"from": ["2020-11-20T20:11:25Z"], "to": ["2020-11-21T20:11:25Z"]}
    playwright.expect(field).to_have_value("2020-11-20 20:11:25 to 2020-11-21 20:11:25")
    page.go_back()
    playwright.expect(field).to_have_value("now-1h to now")
    see(page, "By rule")


def test_each_of_two_choices_counts(page: playwright.Page, url: str) -> None:
    """The second was told with an address that did not have the first."""
    line = Line(page)
    page.goto(f"{url}/findings")
    see(page, "By rule")
    with line.held_up():
        pick(page, "Severity", "crash")
        refreshes(page)
        pick(page, "Engine", "llama-a")
        refreshes(page)
    playwright.expect(page).to_have_url(re.compile("engine="))
    refreshes(page)
    assert query(page) == {"severity": ["crash"], "engine": ["llama-a"]}
    page.go_back()
    playwright.expect(page).not_to_have_url(re.compile("engine="))
    see(page, "By rule")
    assert query(page) == {"severity": ["crash"]}


def test_each_of_three_presses_counts(page: playwright.Page, url: str) -> None:
    line = Line(page)
    page.goto(f"{url}/findings?from=2026-11-20T12:00:00Z&to=2026-11-20T14:00:00Z")
    see(page, "No findings from")
    with line.held_up():
        for _ in range(3):
            page.get_by_role("button", name="Half a range earlier").click()
            page.wait_for_timeout(REFRESH_MS / 5)
    playwright.expect(page).to_have_url(re.compile("from=2026-11-20T09"))
    refreshes(page)
    assert query(page) == {"from": ["2026-11-20T09:00:00Z"], "to": ["2026-11-20T11:00:00Z"]}


def test_what_is_shown_live_stays(page: playwright.Page, url: str) -> None:
    line = Line(page)
    page.goto(f"{url}/live?from=now-1h&to=now")
    ready(page)
    with line.held_up():
        page.keyboard.press("+")
        refreshes(page)
        page.keyboard.press("+")
        refreshes(page)
    page.wait_for_url(re.compile("from=now-1296s"))
    refreshes(page)
    assert query(page)["from"] == ["now-1296s"]


def test_a_filter_leaves_the_search_alone(page: playwright.Page, url: str) -> None:
    """Streamlit writes the search into the address by itself, and lets nobody else write it."""
    page.goto(f"{url}/requests")
    page.get_by_role("searchbox", name="Search").fill("r1")
    page.wait_for_url(re.compile("search=r1"))
    pick(page, "Sort by", "longest")
    page.wait_for_url(re.compile("sort="))
    pick(page, "Sort by", "latest first")
    playwright.expect(page).not_to_have_url(re.compile("sort="))
    assert query(page) == {"search": ["r1"]}


def test_a_page_that_comes_late_is_not_gone_to(page: playwright.Page, url: str) -> None:
    """Who went back twice was on the page between, with the address of the other one, and had it twice in the history."""
    line = Line(page)
    page.goto(f"{url}/findings")
    see(page, "By rule")
    for name, shown in (("Requests", "Click a row"), ("Fleet", "Recorders"), ("Efficiency", "What more memory")):
        page.get_by_role("link", name=name, exact=True).click()
        page.wait_for_url(f"{url}/{name.lower()}")
        see(page, shown)
    with line.held_up():
        for _ in range(2):
            page.go_back()
            page.wait_for_timeout(REFRESH_MS / 2)
    see(page, "Click a row")
    refreshes(page)
    assert page.url == f"{url}/requests"
    page.go_back()
    see(page, "By rule")
    assert page.url == f"{url}/findings"
    page.get_by_role("link", name="Fleet", exact=True).click()
    page.wait_for_url(f"{url}/fleet")
    page.go_back()
    see(page, "By rule")

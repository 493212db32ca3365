"""What a page shows is in its address: ranges of time, filters, the browser's history.

It holds although the browser has not been sent it yet: with each refresh a page reports what it showed before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import httpx
import pytest
from browser import drag, drawn, needs_chromium, playwright, query_of, see, shoot
from connection import Connection
from live_page import ready
from live_traffic import S, post
from processes import SharedDashboard
from traffic import Engine, served

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
DAY = "2020-11-20 20:11:25 to 2020-11-21 20:11:25"


@pytest.fixture(scope="module")
def url(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard over half an hour of requests, some of them with findings."""
    with pages.showing(tmp_path_factory.mktemp("half-an-hour")) as tracer:
        now_ns = time.time_ns()
        post(
            tracer,
            served(Engine("llama-a"), from_ns=now_ns - 1800 * S, to_ns=now_ns - S, every_ms=20_000, stale_every=4),
        )
        yield pages.url


def ends(page: playwright.Page) -> dict[str, list[str]]:
    """The range in the page's address."""
    return {name: ends for name, ends in query_of(page).items() if name in ("from", "to")}


def pick(page: playwright.Page, label: str, option: str) -> None:
    """Choose from a list."""
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()


@pytest.mark.long
def test_a_range_of_days_has_both_dates_and_can_be_typed_drawn_and_undone(page: playwright.Page, url: str) -> None:
    """24 hours read `2026-11-20 20:11:25 to 20:11:25`. And no range could be typed or drawn."""
    connection = Connection(page)
    page.goto(f"{url}/findings")
    field = page.get_by_role("textbox", name="Time range")
    playwright.expect(field).to_have_value("now-1h to now")
    see(page, "By rule")

    field.fill(DAY)
    field.press("Enter")
    see(page, f"No findings from {DAY} UTC")
    assert ends(page) == {"from": ["2020-11-20T20:11:25Z"], "to": ["2020-11-21T20:11:25Z"]}
    shoot(page, "both-dates")
    page.go_back()
    playwright.expect(field).to_have_value("now-1h to now")
    see(page, "By rule")
    page.go_forward()
    playwright.expect(field).to_have_value(DAY)

    field.fill("soon")
    field.press("Enter")
    see(page, "is no time range. Type for example")
    playwright.expect(field).to_have_value("soon")

    page.get_by_role("radio", name="1 h", exact=True).click()
    playwright.expect(field).to_have_value("now-1h to now")
    see(page, "By rule")
    drawn(page)
    connection.repeat(lambda: drag(page.locator("[class*='st-key-findings_trend'] svg.marks"), 0.6, 0.8, height=0.6))
    playwright.expect(field).to_have_value(re.compile(r"^\d{4}-.* to \d{4}-"))
    page.wait_for_url(re.compile(r"from=\d{4}-.*to=\d{4}-"))
    begin, end = (ends(page)[name][0] for name in ("from", "to"))
    assert begin < end
    see(page, "By rule")
    overview = page.get_by_role("link", name="Overview")  # which takes the range along, from its next refresh on
    playwright.expect(overview).to_have_attribute("href", re.compile(r"from=\d{4}-"))
    overview.click()
    playwright.expect(page).to_have_url(re.compile(re.escape(f"{url}/?from=")))
    assert ends(page) == {"from": [begin], "to": [end]}
    page.go_back()
    see(page, "By rule")
    page.go_back()
    playwright.expect(field).to_have_value("now-1h to now")


def test_a_link_is_copied_with_both_ends(page: playwright.Page, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
    page.goto(f"{url}/findings?from=now-6h&to=now&severity=leak")
    see(page, "No finding matches")
    page.get_by_role("button", name="Copy link").click()
    see(page, "Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    query = httpx.URL(copied).params
    assert query["severity"] == "leak"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", query[name]) for name in ("from", "to")), "no end moves"
    page.goto(copied)
    see(page, "No finding matches")


def test_a_typed_range_is_not_undone(page: playwright.Page, url: str) -> None:
    """The quick choice showed an hour, and a refresh reported it: that was taken for a click on it."""
    connection = Connection(page)
    page.goto(f"{url}/findings")
    see(page, "By rule")
    field = page.get_by_role("textbox", name="Time range")
    with connection.held_up():
        field.fill("now-3h to now-2h")
        field.press("Enter")
        connection.wait_for_refreshes()
    see(page, "No findings from")
    connection.wait_for_refreshes()
    see(page, "No findings from")
    assert query_of(page) == {"from": ["now-3h"], "to": ["now-2h"]}
    playwright.expect(field).to_have_value("now-3h to now-2h")
    page.go_back()
    playwright.expect(field).to_have_value("now-1h to now")
    see(page, "By rule")


@pytest.mark.long
def test_each_of_two_choices_counts(page: playwright.Page, url: str) -> None:
    """The second was sent with an address that did not have the first."""
    connection = Connection(page)
    page.goto(f"{url}/findings")
    see(page, "By rule")
    with connection.held_up():
        pick(page, "Severity", "crash")
        connection.wait_for_refreshes()
        pick(page, "Engine", "llama-a")
        connection.wait_for_refreshes()
    playwright.expect(page).to_have_url(re.compile("engine="))
    connection.wait_for_refreshes()
    assert query_of(page) == {"severity": ["crash"], "engine": ["llama-a"]}
    page.go_back()
    playwright.expect(page).not_to_have_url(re.compile("engine="))
    see(page, "By rule")
    assert query_of(page) == {"severity": ["crash"]}


@pytest.mark.long
def test_each_of_three_presses_counts(page: playwright.Page, url: str) -> None:
    connection = Connection(page)
    page.goto(f"{url}/findings?from=2026-11-20T12:00:00Z&to=2026-11-20T14:00:00Z")
    see(page, "No findings from")
    with connection.held_up():
        for _ in range(3):
            with connection.handles_input():
                page.get_by_role("button", name="Half a range earlier").click()
    playwright.expect(page).to_have_url(re.compile("from=2026-11-20T09"))
    see(page, re.compile("No findings from 2026-11-20 09:00:00"))
    assert query_of(page) == {"from": ["2026-11-20T09:00:00Z"], "to": ["2026-11-20T11:00:00Z"]}


@pytest.mark.long
def test_what_is_shown_live_stays(page: playwright.Page, url: str) -> None:
    connection = Connection(page)
    page.goto(f"{url}/requests?view=lanes&from=now-1h&to=now")
    ready(page)
    with connection.held_up():
        for _ in range(2):
            page.keyboard.press("+")
            connection.wait_for_refreshes()
    page.wait_for_url(re.compile("from=now-1296s"))
    connection.wait_for_refreshes()
    assert query_of(page)["from"] == ["now-1296s"]


@pytest.mark.long
def test_a_filter_leaves_the_search_alone(page: playwright.Page, url: str) -> None:
    """Streamlit writes the search into the address itself, and lets nothing else write it."""
    page.goto(f"{url}/requests")
    page.get_by_role("searchbox", name="Search").fill("r1")
    page.wait_for_url(re.compile("search=r1"))
    pick(page, "Sort by", "longest")
    page.wait_for_url(re.compile("sort="))
    pick(page, "Sort by", "latest first")
    playwright.expect(page).not_to_have_url(re.compile("sort="))
    assert query_of(page) == {"search": ["r1"]}


@pytest.mark.long
def test_a_page_that_comes_late_is_not_gone_to(page: playwright.Page, url: str) -> None:
    """Who went back twice was on the page between, with the address of the other one, and had it twice in the history."""
    connection = Connection(page)
    page.goto(f"{url}/findings")
    see(page, "By rule")
    for name, shown in (("Requests", "Click a row"), ("Savings", "What more memory")):
        page.get_by_role("link", name=name, exact=True).click()
        page.wait_for_url(f"{url}/{name.lower()}")
        see(page, shown)
    with connection.held_up(), connection.handles_input():
        page.go_back()
    see(page, "Click a row")
    connection.wait_for_refreshes()
    assert page.url == f"{url}/requests"
    page.go_back()
    see(page, "By rule")
    assert page.url == f"{url}/findings"
    page.get_by_role("link", name="Savings", exact=True).click()
    page.wait_for_url(f"{url}/savings")
    page.go_back()
    see(page, "By rule")


@pytest.mark.long
def test_a_page_that_is_opened_by_its_address_looks_for_nothing_in_vain(page: playwright.Page, url: str) -> None:
    """The browser looked for the server below the page's address, and drew the page before it had its styles."""
    failed: list[str] = []
    page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
    page.goto(f"{url}/findings?from=now-2h&to=now")
    see(page, "By rule")
    assert failed == []
    size = page.locator(".stHeading h2").first.evaluate("heading => getComputedStyle(heading).fontSize")
    assert size == "22.4px", "Streamlit's own styles come first"

"""A click on a row of a table: it opens what was under the pointer, whatever comes in between, and says so at once."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest
from browser import needs_chromium, open_row, playwright, query_of, rows, see, see_table, shoot, table
from connection import Connection
from live_traffic import chatting
from processes import SharedDashboard, Tracer

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
TABLE = "requests_table"
NEW = re.compile(r"^.*\d+ new$")


@pytest.fixture(scope="module")
def tracer(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    """A tracer with traffic of two engines."""
    with (
        pages.showing(tmp_path_factory.mktemp("clicks")) as tracer,
        chatting(tracer, "llama-a", "llama-b"),
    ):
        yield tracer


@pytest.fixture
def url(tracer: Tracer, pages: SharedDashboard) -> str:
    """The address of the dashboard, which shows it."""
    return pages.url


def ids(page: playwright.Page) -> list[str]:
    """The requests that the page shows."""
    return [cells[0] for cells in rows(page, TABLE)]


def test_a_click_while_new_rows_are_on_their_way_opens_the_row_that_was_there(page: playwright.Page, url: str) -> None:
    """Streamlit reported a click 150 ms later, by the row's number, and not at all if its table had been replaced."""
    connection = Connection(page)
    page.goto(f"{url}/requests")
    see_table(page, TABLE)
    new = page.get_by_role("button", name=NEW)
    new.wait_for()
    with connection.held_up():
        before = ids(page)
        with connection.handles_input():
            new.click()  # the server shows the new rows now, and the page still the old ones
        assert ids(page) == before
        with connection.handles_input():
            open_row(page, TABLE, 3)
    see(page, "Every step")
    assert query_of(page)["id"] == [before[3]]


def test_a_click_just_after_new_rows_have_come_opens_one_of_them(page: playwright.Page, url: str) -> None:
    page.goto(f"{url}/requests")
    before = {cells[0] for cells in see_table(page, TABLE)}
    page.get_by_role("button", name=NEW).click()
    # The first row that was not there before is clicked as it comes: in one task of the browser, so that nothing is between.
    clicked = page.wait_for_function(
        """([key, before]) => {
          const row = document.querySelector(`.st-key-${key} tbody tr`), name = row.cells[0].innerText.trim();
          if (before.includes(name)) return null;
          row.cells[1].click();
          return name;
        }""",
        arg=[TABLE, [*before]],
    ).json_value()
    see(page, "Every step")
    assert query_of(page)["id"] == [clicked]


@pytest.mark.long
def test_a_click_is_followed_though_refreshes_come_before_the_browser_has_seen_where_it_leads(
    page: playwright.Page, url: str
) -> None:
    """The run after the click drew the link that the browser follows, and the next run removed it: now and then both came to
    the browser at once, and the page stayed."""
    connection = Connection(page)
    page.goto(f"{url}/requests")
    wanted = see_table(page, TABLE)[2][0]
    with connection.held_up():
        with connection.handles_input():
            open_row(page, TABLE, 2)
        see(page, f"Opening {wanted}")  # at once, without an answer
        connection.wait_for_refreshes(2)
    see(page, "Every step")
    assert query_of(page)["id"] == [wanted]


@pytest.mark.long
def test_rows_stay_under_a_button_that_is_pressed(page: playwright.Page, url: str) -> None:
    """Rows that move between the press and its release would make the click one on no row."""
    connection = Connection(page)
    page.goto(f"{url}/requests")
    see_table(page, TABLE)
    page.get_by_role("button", name=NEW).wait_for()
    before = ids(page)
    cell = table(page, TABLE).locator("tbody tr").nth(1)
    cell.hover()
    page.mouse.down()
    with connection.handles_input():
        page.get_by_role("button", name=NEW).dispatch_event("click")
    connection.wait_for_refreshes(1)
    assert ids(page) == before
    page.mouse.up()
    see(page, "Every step")
    assert query_of(page)["id"] == [before[1]]


@pytest.mark.long
def test_a_row_is_a_link_also_for_keys_and_other_tabs(page: playwright.Page, url: str) -> None:
    page.goto(f"{url}/requests")
    first, second = (cells[0] for cells in see_table(page, TABLE)[:2])
    link = table(page, TABLE).get_by_role("link", name=first)
    address = str(link.get_attribute("href"))
    assert address.startswith(f"request?id={first}")
    with page.context.expect_page() as opened:
        table(page, TABLE).locator("tbody tr").first.locator("td").nth(3).click(modifiers=["Control"])
    see(opened.value, "Every step")
    assert query_of(opened.value)["id"] == [first]
    opened.value.close()
    heads = table(page, TABLE).locator("th button")
    assert heads.evaluate_all("all => all.filter(each => each.tabIndex === 0).length") == 1, "of 45 stops 17 were heads"
    heads.first.focus()
    page.keyboard.press("ArrowRight")
    playwright.expect(heads.nth(1)).to_be_focused()
    link.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    see(page, "Every step")
    assert query_of(page)["id"] == [second]


def test_a_click_while_the_tracer_hangs_says_that_it_opens_and_then_what_is_wrong(
    page: playwright.Page, tracer: Tracer, url: str
) -> None:
    page.goto(f"{url}/requests")
    wanted = see_table(page, TABLE)[1][0]
    tracer.process.send_signal(signal.SIGSTOP)
    try:
        open_row(page, TABLE, 1)
        playwright.expect(page.locator(".kvtable").get_by_role("status")).to_have_text(f"Opening {wanted} …")
        page.wait_for_url(re.compile("/request[?]"))
        see(page, re.compile("does not answer|hangs"))
        shoot(page, "click-hung", at_rest=False)
    finally:
        tracer.process.send_signal(signal.SIGCONT)
    see(page, "Every step")
    assert query_of(page)["id"] == [wanted]

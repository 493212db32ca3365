"""What went wrong on the pages about requests while spans arrived: each once, in a real browser, with live traffic."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import (
    HEAD_PX,
    REFRESH_MS,
    box_of,
    drawn,
    holds,
    needs_chromium,
    open_row,
    playwright,
    rows,
    see,
    see_table,
    shoot,
)  # fmt: skip
from coming import chatting
from processes import Tracer, dashboard, serve, until
from slow_browser import Line, tell_late
from test_dashboard_page import feed

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
HEALED = """
L 750 c0 h256 -> 256
A 256
S 256+494
P
L 750 c384 h256 -> 0 cached healed 256
L 750 c384 h256 -> 0 cached healed 256
A 0
S 384+366
end
"""
LONGER = """
L 760 c0 h256 -> 256
A 256
S 256+504
end
"""
WITH_OUTPUT = """
L 750 c128 h512 -> 384
A 384
S 512+238
S 750+1
S 751+1
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tracer, str]]:
    """A tracer, with traffic of two engines and some requests that are told apart, and the dashboard's address."""
    folder = tmp_path_factory.mktemp("faults")
    tracer = serve(folder)
    try:
        feed(tracer, HEALED, request="healed-1-0123abcd", engine="engine-x")
        feed(tracer, LONGER, request="longer-1-0123abcd", engine="engine-z")
        feed(tracer, WITH_OUTPUT, request="output-1-0123abcd", engine="engine-y")
        with chatting(tracer, "llama-a", "llama-b"), dashboard(folder, tracer.url) as url:
            yield tracer, url
    finally:
        tracer.end()


def named(page: playwright.Page) -> dict[str, Any]:
    return parse_qs(urlsplit(page.url).query)


def test_a_click_opens_the_row_that_is_shown(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """Fault 1: the row's number was looked up among newer rows."""
    _, url = site
    for row in (0, 3):
        page.goto(f"{url}/requests")
        before = [cells[0] for cells in see_table(page, "requests_table")]
        page.get_by_role("button", name=re.compile(r"^.*\d+ new$")).wait_for()  # others have come meanwhile
        page.wait_for_timeout(REFRESH_MS)
        shown = [cells[0] for cells in see_table(page, "requests_table")]
        assert shown[: len(before)] == before[: len(shown)], "rows stay where they are while one reads"
        open_row(page, "requests_table", row)
        see(page, "Every step")
        assert named(page)["id"] == [shown[row]]
        page.go_back()
        playwright.expect(page).to_have_url(f"{url}/requests")  # one step back, to the list as it was
    page.goto(f"{url}/requests")
    known = {cells[0] for cells in see_table(page, "requests_table")}
    page.get_by_role("button", name=re.compile(r"^.*\d+ new$")).click()
    until(lambda: {cells[0] for cells in rows(page, "requests_table")} - known)


def test_a_search_that_is_told_late_keeps_no_other_rows(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """The browser writes the search into its address at once, and sends it a moment later. A refresh in between asked for the
    old search under the new address, and its rows stayed."""
    _, url = site
    page.goto(f"{url}/requests")
    see_table(page, "requests_table")
    tell_late(page)
    page.get_by_role("searchbox", name="Search").fill("healed-1")
    see(page, "1 request, latest first")
    until(lambda: [cells[0] for cells in rows(page, "requests_table")] == ["healed-1-0123abcd"])


def test_what_is_typed_and_picked_in_compare_stays(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """Fault 2: an id that was typed was lost with the next requests, and one that was picked reset the page."""
    _, url = site
    page.goto(f"{url}/compare?id=healed-1-0123abcd")
    see_table(page, "offers")
    field = page.get_by_role("searchbox", name="Compare with")
    field.press_sequentially("longer-1-0123abcd", delay=250)  # over two refreshes
    field.press("Enter")
    see(page, "B: longer-1")
    page.wait_for_timeout(REFRESH_MS)
    see(page, "B: longer-1")
    assert named(page)["with"] == ["longer-1-0123abcd"]

    page.get_by_role("link", name="Near in time and alike").click()
    see_table(page, "offers")
    page.wait_for_timeout(2 * REFRESH_MS)
    picked = see_table(page, "offers")[1][0]
    open_row(page, "offers", 1)
    see(page, "What differs")
    assert named(page)["with"] == [picked]
    page.wait_for_timeout(REFRESH_MS)
    assert named(page)["with"] == [picked]
    see(page, "What differs")


def test_what_a_refresh_tells_before_its_time_is_not_lost(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """A refresh brought the id that was typed, and it was written into the address; the run of the page that came after it
    brought the address from before."""
    _, url = site
    line = Line(page)
    page.goto(f"{url}/compare?id=healed-1-0123abcd")
    see_table(page, "offers")
    tell_late(page)
    with line.held_up():
        field = page.get_by_role("searchbox", name="Compare with")
        field.fill("longer-1-0123abcd")
        field.press("Enter")
        page.wait_for_timeout(3 * REFRESH_MS)
    see(page, "B: longer-1")
    assert named(page)["with"] == ["longer-1-0123abcd"]


def test_a_part_of_an_id_is_enough_in_compare(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    _, url = site
    page.goto(f"{url}/compare?id=healed-1-0123abcd")
    field = page.get_by_role("searchbox", name="Compare with")
    field.fill("onger-1")
    field.press("Enter")
    until(lambda: [cells[0] for cells in rows(page, "offers")] == ["longer-1-0123abcd"])
    assert named(page)["search"] == ["onger-1"]


def test_the_tokens_of_a_request_are_one_sum(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """Fault 5: computed tokens were more than all, and counted the loaded ones on one page only."""
    _, url = site
    page.goto(f"{url}/request?id=output-1-0123abcd")
    see(page, "Where its tokens came from")
    numbers = [metric(page, name) for name in ("Prompt", "vLLM's cache", "Loaded", "Computed")]
    assert numbers == [750, 128, 384, 238]
    assert numbers[0] == sum(numbers[1:])
    assert metric(page, "Output") == 1
    for name in ("Prompt", "vLLM's cache", "Loaded", "Computed", "Output", "Waited for KV"):
        has_help = card(page, name).get_by_test_id("stTooltipIcon")
        playwright.expect(has_help).to_have_count(1)
    page.goto(f"{url}/replay?id=output-1-0123abcd&step=900")
    see(page, "tokens of the request")
    total, computed = (
        int(
            page.get_by_role("row", name=re.compile(f"^{name}"))
            .get_by_role("cell")
            .nth(1)
            .inner_text()
            .replace(",", "")
        )
        for name in ("tokens of the request", "of these in vLLM")
    )
    assert computed <= total


def card(page: playwright.Page, name: str) -> playwright.Locator:
    return page.get_by_test_id("stMetric").filter(has=page.get_by_text(name, exact=True)).first


def metric(page: playwright.Page, name: str) -> int:
    value = card(page, name).get_by_test_id("stMetricValue")
    value.wait_for()
    return int(value.inner_text().replace(",", ""))


def test_what_a_fault_can_do_and_what_it_did_are_two_words(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """Fault 6: `crash` stood on a request that the guard had healed and that had finished."""
    _, url = site
    page.goto(f"{url}/request?id=healed-1-0123abcd")
    see(page, "could: crash")
    see(page, "did: healed")
    see(page, "finished")
    see(page, "Every step")
    drawn(page)
    told = page.get_by_test_id("stMain").inner_text()
    assert "epoch" not in told
    assert "witness" not in told
    page.get_by_text("What to do, and the exact numbers").first.click()
    see(page, "at most")


def test_nothing_covers_the_switch_and_no_legend_is_cut(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """Fault 7: the chart's toolbar lay on the switch, and on a phone the legends were cut."""
    _, url = site
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/request?id=healed-1-0123abcd")
    switch = page.get_by_role("radio", name="steps")

    def the_toolbar_lies_beside_the_switch() -> None:
        page.get_by_test_id("stVegaLiteChart").first.hover()
        toolbar = box_of(page.get_by_test_id("stElementToolbar").first)
        switch.scroll_into_view_if_needed()
        box = box_of(switch)
        assert box["x"] + box["width"] < toolbar["x"]

    holds(the_toolbar_lies_beside_the_switch)
    switch.click()
    page.wait_for_url(re.compile("axis=steps"))

    def no_legend_is_cut() -> None:
        ends = page.evaluate("[...document.querySelectorAll('.legend li')].map(li => li.getBoundingClientRect().right)")
        assert len(ends) >= 6
        assert max(ends) <= 390
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("request?id=healed-1-0123abcd", "replay?id=healed-1-0123abcd&step=5"):
        page.goto(f"{url}/{path}")
        playwright.expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(2)
        drawn(page)
        holds(no_legend_is_cut)
    shoot(page, "replay-phone")


def test_a_mark_says_what_it_is(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """Fault 7: the mark's tooltip was empty."""
    _, url = site
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/request?id=healed-1-0123abcd")
    marks = page.get_by_test_id("stVegaLiteChart").first.locator(".mark-symbol path")
    marks.first.hover()
    said = page.locator("#vg-tooltip-element")
    playwright.expect(said).to_contain_text(re.compile(r"says.*arrived with 750 tokens", re.DOTALL))


def test_the_replay_fits_on_a_screen(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """Fault 11: the first account and the charts began where a laptop's screen ends."""
    _, url = site
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/replay?id=healed-1-0123abcd&step=2")
    see(page, "Account after it")
    charts = page.get_by_test_id("stVegaLiteChart")
    playwright.expect(charts).to_have_count(2)

    def all_is_seen() -> None:
        account, timeline, tokens = map(box_of, (page.get_by_test_id("stTable").first, charts.nth(0), charts.nth(1)))
        assert account["y"] + 200 < 900
        assert timeline["y"] + timeline["height"] < 900
        assert tokens["y"] + tokens["height"] < 900

    holds(all_is_seen)
    shoot(page, "replay-laptop")


def test_compare_says_what_matters_on_the_same_axes(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """Fault 12: the axes differed, and the prompt's length was said instead of the refused answers."""
    _, url = site
    page.goto(f"{url}/compare?id=healed-1-0123abcd&with=longer-1-0123abcd&axis=steps")
    until(lambda: "Refused answers" in (cells[0] for cells in rows(page, "differences")))
    shown = rows(page, "differences")
    names = [cells[0] for cells in shown]
    assert names.index("Refused answers") < names.index("Prompt's length") == len(names) - 1
    assert "2 answers refused by the guard" in " ".join(shown[names.index("Refused answers")])
    charts = page.get_by_test_id("stVegaLiteChart")
    playwright.expect(charts).to_have_count(4)

    def both_are_alike() -> None:
        heights = [box_of(charts.nth(n))["height"] for n in (0, 1)]
        assert heights[0] == heights[1]
        ends = [charts.nth(n).locator(".role-axis-label text").all_text_contents() for n in (0, 1)]
        assert ends[0] == ends[1]
        steps = [int(text) for text in ends[0] if text.isdecimal()]
        assert max(steps, default=0) > 1, "the steps' numbers are among them"

    holds(both_are_alike)
    shoot(page, "compare-fault")


def test_a_screen_shows_eight_rows_more_and_a_phone_some(page: playwright.Page, site: tuple[Tracer, str]) -> None:
    """Sixteen rows fitted a laptop's screen, and on a phone none: the filters took it."""
    tracer, url = site
    most = 30
    until(lambda: len(tracer.get("/api/requests", limit=most)) == most)
    table = page.locator(".st-key-requests_table").get_by_test_id("stDataFrame")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/requests")
    until(lambda: len(rows(page, "requests_table")) >= 20)

    def many_are_seen() -> None:
        box = box_of(table)
        row_px = (box["height"] - HEAD_PX) / most
        assert (900 - box["y"] - HEAD_PX) // row_px >= 16 + 8
        fields = [box_of(field) for field in page.locator(".st-key-filters > *").all()]
        assert len({round(field["y"] + field["height"]) for field in fields}) == 1, "the filters are one line"

    def some_are_seen() -> None:
        assert box_of(table)["y"] < 844 * 0.7

    holds(many_are_seen)
    page.set_viewport_size({"width": 390, "height": 844})
    holds(some_are_seen)

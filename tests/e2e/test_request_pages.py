"""The pages about requests, beside live traffic: the list, one request, its replay, two compared, and the ways to them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from browser import (
    HEAD_PX,
    box_of,
    drawn,
    holds,
    needs_chromium,
    open_row,
    playwright,
    query_of,
    rows,
    see,
    see_table,
    shoot,
    switch_scheme,
)  # fmt: skip
from connection import Connection, delay_input
from history import START_NS, history
from live_traffic import chatting
from msgspec.structs import replace
from processes import SharedDashboard, Tracer, until
from stories import HEALED, HEALTHY, STALE, feed, now
from wire import as_request, encoded

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
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
def tracer(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    """A tracer with traffic of two engines, and some requests of others."""
    with pages.showing(tmp_path_factory.mktemp("requests")) as tracer:
        feed(tracer, HEALED, request="healed-1-0123abcd", engine="engine-x")
        feed(tracer, LONGER, request="longer-1-0123abcd", engine="engine-z")
        feed(tracer, WITH_OUTPUT, request="output-1-0123abcd", engine="engine-y")
        with chatting(tracer, "llama-a", "llama-b"):
            yield tracer


@pytest.fixture
def url(tracer: Tracer, pages: SharedDashboard) -> str:
    """The address of the dashboard, which shows it."""
    return pages.url


def tab(page: playwright.Page, name: str) -> None:
    page.get_by_role("radio", name=name, exact=True).click()


def feed_trace(tracer: Tracer, text: str, *, request: str, trace_id: str) -> None:
    """A request within somebody's trace, of an engine of its own."""
    engine = f"engine-of-{request}"
    sent = as_request(now(history(text, request=request, engine=engine, recorder=f"recorder-of-{request}")))
    for spans in sent.resource_spans:
        for span in (span for scope in spans.scope_spans for span in scope.spans):
            span.trace_id = bytes.fromhex(trace_id)
    tracer.post(sent.SerializeToString())


def test_a_click_opens_the_row_that_is_shown(page: playwright.Page, url: str) -> None:
    """The row's number was looked up among newer rows."""
    connection = Connection(page)
    for row in (0, 3):
        page.goto(f"{url}/requests")
        before = [cells[0] for cells in see_table(page, "requests_table")]
        page.get_by_role("button", name=re.compile(r"^.*\d+ new$")).wait_for()  # others have come meanwhile
        connection.wait_for_refreshes(1)
        shown = [cells[0] for cells in see_table(page, "requests_table")]
        assert shown[: len(before)] == before[: len(shown)], "rows stay where they are while one reads"
        open_row(page, "requests_table", row)
        see(page, "Every step")
        assert query_of(page)["id"] == [shown[row]]
        page.go_back()
        playwright.expect(page).to_have_url(f"{url}/requests")  # one step back, to the list as it was
    page.goto(f"{url}/requests")
    known = {cells[0] for cells in see_table(page, "requests_table")}
    page.get_by_role("button", name=re.compile(r"^.*\d+ new$")).click()
    until(lambda: {cells[0] for cells in rows(page, "requests_table")} - known)


def test_a_search_that_is_sent_late_keeps_no_other_rows(page: playwright.Page, url: str) -> None:
    """The browser writes the search into its address at once, and sends it a moment later. A refresh in between asked for the
    old search under the new address, and its rows stayed."""
    page.goto(f"{url}/requests")
    see_table(page, "requests_table")
    delay_input(page)
    page.get_by_role("searchbox", name="Search").fill("healed-1")
    see(page, "1 request, latest first")
    until(lambda: [cells[0] for cells in rows(page, "requests_table")] == ["healed-1-0123abcd"])


@pytest.mark.long
def test_a_tab_of_what_is_over_asks_for_nothing(page: playwright.Page, tracer: Tracer, url: str) -> None:
    """A finished request that was left open cost as much as a running one."""
    long_ago_ns = time.time_ns() - 3600 * 10**9 - START_NS
    ended = history(HEALTHY, request="ended-1-0123abcd", engine="engine-of-old", recorder="recorder-of-old")
    tracer.post(encoded([replace(e, start_ns=e.start_ns + long_ago_ns, end_ns=e.end_ns + long_ago_ns) for e in ended]))
    over = Connection(page)
    for path in ("request?id=ended-1-0123abcd", "request?id=ended-1-0123abcd&tab=replay"):
        page.goto(f"{url}/{path}")
        see(page, "Step 1 of" if "replay" in path else "Every step")
        drawn(page)
        before = over.refreshes
        with closing(page.context.new_page()) as other:
            live = Connection(other)
            other.goto(f"{url}/requests")
            live.wait_for_refreshes(3)
        assert over.refreshes == before, "meanwhile another tab refreshed"


@pytest.mark.long
def test_the_way_back_from_a_replay_is_one_step(page: playwright.Page, url: str) -> None:
    """The replay wrote its first step into the address, which was a step of the browser's history."""
    page.goto(f"{url}/request?id=healed-1-0123abcd")
    tab(page, "Replay")
    see(page, "Step 1 of")
    drawn(page)
    page.go_back()
    see(page, "Every step")
    page.goto(f"{url}/request?id=healed-1-0123abcd&tab=replay")  # as from a bookmark, without a step
    see(page, "Step 1 of")
    page.locator("[data-listens]").wait_for(state="attached")
    for step in (2, 3, 4):  # each was a step of the history
        page.keyboard.press("n")
        see(page, f"Step {step} of")
    page.wait_for_url(re.compile("step=4"))
    page.go_back()
    see(page, "Every step")


@pytest.mark.long
def test_what_is_typed_and_picked_in_compare_stays(page: playwright.Page, url: str) -> None:
    """An id that was typed was lost with the next requests, and one that was picked reset the page."""
    connection = Connection(page)
    page.goto(f"{url}/request?id=healed-1-0123abcd&tab=compare")
    see_table(page, "offers")
    field = page.get_by_role("searchbox", name="Compare with")
    for part in ("longer", "-1-0123", "abcd"):
        field.press_sequentially(part)
        connection.wait_for_refreshes(1)
    field.press("Enter")
    see(page, "B: longer-1")
    connection.wait_for_refreshes(1)
    see(page, "B: longer-1")
    assert query_of(page)["with"] == ["longer-1-0123abcd"]

    page.get_by_role("button", name="Near in time and alike").click()
    page.wait_for_url(re.compile(r"/request\?(?!.*with=)"))  # reloaded, it shows the same
    see_table(page, "offers")
    connection.wait_for_refreshes()
    picked = see_table(page, "offers")[1][0]
    open_row(page, "offers", 1)
    see(page, "What differs")
    assert query_of(page)["with"] == [picked]
    connection.wait_for_refreshes(1)
    assert query_of(page)["with"] == [picked]
    see(page, "What differs")


@pytest.mark.long
def test_what_a_refresh_sends_early_is_not_lost(page: playwright.Page, url: str) -> None:
    """A refresh brought the id that was typed, and it was written into the address; the run of the page that came after it
    brought the address from before."""
    connection = Connection(page)
    page.goto(f"{url}/request?id=healed-1-0123abcd&tab=compare")
    see_table(page, "offers")
    delay_input(page)
    with connection.held_up():
        field = page.get_by_role("searchbox", name="Compare with")
        field.fill("longer-1-0123abcd")
        field.press("Enter")
        connection.wait_for_refreshes(3)
    see(page, "B: longer-1")
    assert query_of(page)["with"] == ["longer-1-0123abcd"]


@pytest.mark.long
def test_a_part_of_an_id_is_enough_in_compare(page: playwright.Page, url: str) -> None:
    page.goto(f"{url}/request?id=healed-1-0123abcd&tab=compare")
    field = page.get_by_role("searchbox", name="Compare with")
    field.fill("onger-1")
    field.press("Enter")
    until(lambda: [cells[0] for cells in rows(page, "offers")] == ["longer-1-0123abcd"])
    assert query_of(page)["search"] == ["onger-1"]


def test_the_tokens_of_a_request_are_one_sum(page: playwright.Page, url: str) -> None:
    """Computed tokens were more than all, and counted the loaded ones on one page only."""
    page.goto(f"{url}/request?id=output-1-0123abcd")
    see(page, "Where its tokens came from")
    numbers = [metric(page, name) for name in ("Prompt", "vLLM's cache", "Loaded", "Computed")]
    assert numbers == [750, 128, 384, 238]
    assert numbers[0] == sum(numbers[1:])
    assert metric(page, "Output") == 1
    for name in ("Prompt", "vLLM's cache", "Loaded", "Computed", "Output"):
        has_help = card(page, name).get_by_test_id("stTooltipIcon")
        playwright.expect(has_help).to_have_count(1)
    page.goto(f"{url}/request?id=output-1-0123abcd&tab=replay&step=900")
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


@pytest.mark.long
def test_what_a_fault_can_do_and_what_it_did_are_two_words(page: playwright.Page, url: str) -> None:
    """`crash` stood on a request that the guard had healed and that had finished."""
    page.goto(f"{url}/request?id=healed-1-0123abcd")
    see(page, "severity: crash")
    see(page, "impact: healed")
    see(page, "finished")
    see(page, "Every step")
    drawn(page)
    text = page.get_by_test_id("stMain").inner_text()
    assert "epoch" not in text
    assert "witness" not in text
    see(page, "What to do.")
    page.get_by_text("The events that prove it, and the exact numbers").first.click()
    see(page, "at most")


@pytest.mark.long
def test_nothing_covers_the_switch_and_no_legend_is_cut(page: playwright.Page, url: str) -> None:
    """The chart's toolbar lay on the switch, and on a phone the legends were cut."""
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
        nav, last = box_of(page.locator(".st-key-nav")), box_of(page.get_by_role("link", name="Savings", exact=True))
        assert last["x"] + last["width"] <= nav["x"] + nav["width"], "all pages are in the bar on top"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("request?id=healed-1-0123abcd", "request?id=healed-1-0123abcd&tab=replay&step=5"):
        page.goto(f"{url}/{path}")
        playwright.expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(2)
        drawn(page)
        holds(no_legend_is_cut)
    shoot(page, "replay-phone")


@pytest.mark.long
def test_a_mark_says_what_it_is(page: playwright.Page, url: str) -> None:
    """The mark's tooltip was empty."""
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/request?id=healed-1-0123abcd")
    marks = page.get_by_test_id("stVegaLiteChart").first.locator(".mark-symbol path")
    marks.first.hover()
    said = page.locator("#vg-tooltip-element")
    playwright.expect(said).to_contain_text(re.compile(r"says.*arrived with 750 tokens", re.DOTALL))


@pytest.mark.long
def test_the_replay_fits_on_a_screen(page: playwright.Page, url: str) -> None:
    """The first account and the charts began where a laptop's screen ends."""
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/request?id=healed-1-0123abcd&tab=replay&step=2")
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


@pytest.mark.long
def test_compare_says_what_matters_on_the_same_axes(page: playwright.Page, url: str) -> None:
    """The axes differed, and the prompt's length was said instead of the refused answers."""
    page.goto(f"{url}/request?id=healed-1-0123abcd&tab=compare&with=longer-1-0123abcd&axis=steps")
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


@pytest.mark.long
def test_a_screen_shows_eight_rows_more_and_a_phone_some(page: playwright.Page, tracer: Tracer, url: str) -> None:
    """Sixteen rows fitted a laptop's screen, and on a phone none: the filters took it."""
    most = 30
    until(lambda: len(tracer.get("/api/requests", limit=most)) == most)
    table = page.locator(".st-key-requests_table .frame")
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


@pytest.mark.costly("a browser draws every step")
def test_a_request_is_replayed_step_by_step(page: playwright.Page, tracer: Tracer, url: str) -> None:
    connection = Connection(page)
    feed(tracer, STALE, request="chat-7-0123abcd", engine="engine-a")
    page.goto(f"{url}/request?id=chat-7-0123abcd")
    tab(page, "Replay")
    see(page, "Step 1 of 8: arrival")
    expect_step(page, url, 1)
    playwright.expect(page.get_by_text("The connector answered 256")).to_have_count(0)
    shoot(page, "replay-begin")

    page.locator(".st-key-after button").click()
    see(page, "Step 2 of 8: lookup")
    see(page, "0 of 750 computed, 0 matched; answered 0")
    page.locator("[data-listens]").wait_for(state="attached")
    page.keyboard.press("n")
    see(page, "Step 3 of 8: allocation")
    page.keyboard.press("p")
    see(page, "Step 2 of 8: lookup")

    for key in "nnnpnp":  # as fast as they come: none of them is lost to the drawing of another
        page.keyboard.press(key)
    see(page, "Step 4 of 8")
    connection.wait_for_refreshes(1)  # nor to an echo of where the slider was
    see(page, "Step 4 of 8")

    page.locator(".st-key-finding_after button").click()
    see(page, "Step 7 of 8: lookup")
    see(page, "The connector answered 256")
    playwright.expect(page.get_by_role("row", name="answer to the lookup 256 0")).to_be_visible()
    expect_step(page, url, 7)
    playwright.expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(2)
    shoot(page, "replay-finding")

    slider = page.get_by_role("slider", name="Step")
    slider.focus()
    slider.press("ArrowRight")
    see(page, "Step 8 of 8: allocation")
    see(page, "It raised. Mismatch in tokens to load")
    see(page, "1 finding before this step.")
    playwright.expect(page.locator(".st-key-after button")).to_be_disabled()

    # A request that goes on gets more steps, and the page stays where it is.
    feed(tracer, f"{STALE}\nS 384+48", request="chat-7-0123abcd", engine="engine-a")
    see(page, "Step 8 of 9: allocation")

    # A link to a step means this step, wherever one was before.
    tab(page, "What happened")
    page.get_by_role("button", name="Replay from step 7, where it shows").click()
    see(page, "Step 7 of 9: lookup")

    # The address names the step; dark is as good as light.
    switch_scheme(page, "dark")
    page.goto(f"{url}/request?id=chat-7-0123abcd&engine=engine-a&tab=replay&step=7")
    see(page, "Step 7 of 9: lookup")
    see(page, "The connector answered 256")
    playwright.expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(2)
    shoot(page, "replay-dark")
    page.set_viewport_size({"width": 420, "height": 1400})
    see(page, "Step 7 of 9: lookup")
    shoot(page, "replay-narrow")
    page.goto(f"{url}/request?id=chat-7-0123abcd&tab=replay&step=900")
    see(page, "Step 9 of 9")


@pytest.mark.long
def test_a_browser_that_is_behind_takes_no_step_back(page: playwright.Page, tracer: Tracer, url: str) -> None:
    """It reports with each refresh where its slider is, also while it has not yet drawn the step that a key led to."""
    feed(tracer, STALE, request="behind-1-0123abcd", engine="engine-b")
    connection = Connection(page)
    page.goto(f"{url}/request?id=behind-1-0123abcd&tab=replay")
    see(page, "Step 1 of 8")
    page.locator("[data-listens]").wait_for(state="attached")
    with connection.held_up():
        page.keyboard.press("n")
        connection.wait_for_refreshes()
    see(page, "Step 2 of 8")
    connection.wait_for_refreshes(1)
    see(page, "Step 2 of 8")
    expect_step(page, url, 2, request="behind-1")


def expect_step(page: playwright.Page, url: str, step: int, *, request: str = "chat-7") -> None:
    address = re.compile(rf"{re.escape(url)}/request\?(?=.*tab=replay)(?=.*id={request}-0123abcd).*step={step}(&|$)")
    playwright.expect(page).to_have_url(address)


def test_an_unknown_request_and_a_missing_id_are_sentences(page: playwright.Page, tracer: Tracer, url: str) -> None:
    page.goto(f"{url}/request?id=chat-9-0123abcd")
    see(page, "The tracer knows no request chat-9-0123abcd")
    page.goto(f"{url}/request")
    see(page, "Which request?")


def test_a_trace_leads_to_its_request(page: playwright.Page, tracer: Tracer, url: str) -> None:
    """As exemplars in Grafana lead here."""
    one, two = "1a" * 16, "2b" * 16
    feed_trace(tracer, STALE, request="traced-7-0123abcd", trace_id=one)
    page.goto(f"{url}/request?trace={one.upper()}")
    see(page, "Request traced-7")
    see(page, "The connector answered 256")

    page.goto(f"{url}/request?trace={two}")
    see(page, f"The tracer knows no request of trace {two}")
    feed_trace(tracer, HEALTHY, request="traced-8-0123abcd", trace_id=two)
    see(page, "Request traced-8")  # its spans were still on their way
    feed_trace(tracer, STALE, request="traced-9-0123abcd", trace_id=two)
    see(page, f"2 requests of trace {two}")
    shoot(page, "requests-of-one-trace")
    open_row(page, "of_trace")
    playwright.expect(page).to_have_url(re.compile(r"/request\?id=traced-[89]-0123abcd"))
    see(page, "Every step")

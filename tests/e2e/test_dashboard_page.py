"""The dashboard as a person meets it: a real Chromium on a real dashboard, which reads a real tracer.

The tracer is fed over OTLP/HTTP; nothing is mocked. Screenshots are left in test-artifacts/.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

import pytest
from browser import REFRESH_MS, needs_chromium, open_row, playwright, rows, see, shoot
from history import START_NS, history
from msgspec.structs import replace
from processes import Tracer, until
from slow_browser import Line
from wire import encoded

from kvtrail.tracer.events.events import Event

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
STALE = """
L 750 c0 h0 -> 0
A 0
S 0+35
P
L 750 c384 h256 -> 0
L 750 c384 h256 -> 256 cached
A 256 !Mismatch in tokens to load
"""
HEALTHY = """
L 640 c0 h512 -> 512
A 512
S 512+48
end
"""


def now(events: Sequence[Event]) -> list[Event]:
    """The same history, begun a second ago: the tracer deletes what is old."""
    later_ns = time.time_ns() - 10**9 - START_NS
    return [replace(e, start_ns=e.start_ns + later_ns, end_ns=e.end_ns + later_ns) for e in events]


def feed(tracer: Tracer, text: str, *, request: str, engine: str) -> None:
    events = now(history(text, request=request, engine=engine, recorder=f"recorder-of-{engine}"))
    tracer.post(encoded(events))


def test_from_the_overview_to_a_finding(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    url = start_dashboard(tracer.url)

    page.goto(url)
    see(page, "No requests yet")

    # The page is open while the spans come: it must show them without a reload.
    feed(tracer, STALE, request="chat-7-0123abcd", engine="engine-a")
    feed(tracer, HEALTHY, request="chat-8-0123abcd", engine="engine-b")
    see(page, re.compile("1 finding of stale-lookup.*did harm"))
    see(page, "Findings by rule")
    shoot(page, "overview")
    page.get_by_role("link", name=re.compile("1 finding of stale-lookup")).click()
    see(page, "Open request chat-7-0123abcd")

    page.get_by_role("link", name="Requests").click()
    see(page, "2 requests, latest first")
    page.get_by_role("searchbox", name="Search").fill("chat-7")
    see(page, "1 request, latest first")
    assert "search=chat-7" in page.url
    # The line above the table is drawn before the table.
    until(lambda: [cells[0] for cells in rows(page, "requests_table")] == ["chat-7-0123abcd"])
    shoot(page, "requests")

    open_row(page, "requests_table")
    see(page, "verdict: drift")
    assert "id=chat-7-0123abcd" in page.url
    see(page, "At L2")
    see(page, "The connector answered 256")
    see(page, "A call about this request raised. Mismatch in tokens to load")
    playwright.expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(2)
    shoot(page, "request")

    # What was opened by a click can be opened by its address.
    page.goto(page.url)
    see(page, "The connector answered 256")


def test_ids_are_no_links(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    """They are the text of whoever calls the engine."""
    tracer = start_tracer()
    id_ = "http://evil.test/a www.evil.test b@evil.test <a href='//evil.test'>c</a> [d](//evil.test)"
    feed(tracer, STALE, request=id_, engine="http://evil.test/engine")
    url = start_dashboard(tracer.url)
    for path in ("", f"request?id={quote(id_)}", f"replay?id={quote(id_)}", "findings", "fleet"):
        page.goto(f"{url}/{path}")
        playwright.expect(page.get_by_text("evil").first).to_be_attached()
        playwright.expect(page.locator("a[href*='//evil'], a[href^='mailto']")).to_have_count(0)


def test_a_request_is_replayed_step_by_step(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    feed(tracer, STALE, request="chat-7-0123abcd", engine="engine-a")
    url = start_dashboard(tracer.url)
    page.goto(f"{url}/request?id=chat-7-0123abcd")
    page.get_by_role("link", name="Replay", exact=True).click()
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
    page.wait_for_timeout(REFRESH_MS)  # nor to an echo of where the slider was
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
    page.get_by_role("link", name="All of it at once").click()
    page.get_by_role("link", name="Replay from step 7, where it shows").click()
    see(page, "Step 7 of 9: lookup")

    # The address names the step; dark is as good as light.
    page.emulate_media(color_scheme="dark")
    page.goto(f"{url}/replay?id=chat-7-0123abcd&engine=engine-a&step=7")
    see(page, "Step 7 of 9: lookup")
    see(page, "The connector answered 256")
    playwright.expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(2)
    shoot(page, "replay-dark")
    page.set_viewport_size({"width": 420, "height": 1400})
    see(page, "Step 7 of 9: lookup")
    shoot(page, "replay-narrow")
    page.goto(f"{url}/replay?id=chat-7-0123abcd&step=900")
    see(page, "Step 9 of 9")


def test_a_browser_that_is_behind_takes_no_step_back(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    """It tells with each refresh where its slider is, also while it has not yet drawn the step that a key led to."""
    tracer = start_tracer()
    feed(tracer, STALE, request="chat-7-0123abcd", engine="engine-a")
    url = start_dashboard(tracer.url)
    line = Line(page)
    page.goto(f"{url}/replay?id=chat-7-0123abcd")
    see(page, "Step 1 of 8")
    page.locator("[data-listens]").wait_for(state="attached")
    with line.held_up():
        page.keyboard.press("n")
        page.wait_for_timeout(2 * REFRESH_MS)
    see(page, "Step 2 of 8")
    page.wait_for_timeout(REFRESH_MS)
    see(page, "Step 2 of 8")
    expect_step(page, url, 2)


def expect_step(page: playwright.Page, url: str, step: int) -> None:
    address = re.compile(rf"{re.escape(url)}/replay\?(?=.*id=chat-7-0123abcd).*step={step}(&|$)")
    playwright.expect(page).to_have_url(address)


def test_an_unknown_request_and_a_missing_id_are_sentences(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    url = start_dashboard(start_tracer().url)
    page.goto(f"{url}/request?id=chat-9-0123abcd")
    see(page, "The tracer knows no request chat-9-0123abcd")
    page.goto(f"{url}/request")
    see(page, "Which request?")
    page.goto(f"{url}/replay?id=chat-9-0123abcd")
    see(page, "The tracer knows no request chat-9-0123abcd")
    page.goto(f"{url}/replay")
    see(page, "Which request?")


def test_lost_spans_are_said(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    events = now(history(HEALTHY, request="chat-8-0123abcd", engine="engine-b"))
    del events[2]
    tracer.post(encoded(events))
    url = start_dashboard(tracer.url)
    page.goto(f"{url}/fleet")
    see(page, "Spans are missing: 1 that have not arrived")
    page.goto(url)
    see(page, re.compile("1 span of engine engine-b did not arrive"))
    page.goto(f"{url}/request?id=chat-8")
    see(page, "1 event of this request is missing")
    playwright.expect(page.locator("canvas").first).to_be_visible()
    shoot(page, "missing")


def test_a_tracer_that_goes_away_is_said_and_its_return_is_seen(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    feed(tracer, STALE, request="chat-7-0123abcd", engine="engine-a")
    page.goto(f"{start_dashboard(tracer.url)}/findings")
    see(page, "Open request chat-7-0123abcd")

    tracer.kill()
    see(page, f"The tracer at {tracer.url} does not answer. Start it with kvtrail serve. Trying again every 2 s.")
    see(page, "Open request chat-7-0123abcd")  # nobody loses what they were reading
    shoot(page, "away")

    # The same command line: the same ports and the same store. The fixture ends whichever process is set here.
    with tracer.log.open("ab") as log:
        tracer.process = subprocess.Popen(tracer.process.args, stdout=log, stderr=log)
    playwright.expect(page.get_by_text("does not answer")).to_have_count(0)
    see(page, "Open request chat-7-0123abcd")
    shoot(page, "back")

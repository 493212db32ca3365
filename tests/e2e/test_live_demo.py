"""A running `kvtrail demo` with LMCache #2158's bug, and every view of its dashboard, in a real Chromium.

It is the one of the story whose engine lives. The screenshots are left in test-artifacts/, for people to look at.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from browser import SCHEMES, drag, needs_chromium, open_row, playwright, rows, see, shoot, switch_scheme
from connection import Connection
from demos import Demo, total
from live_page import address_at_rest, facts, pixels, ready, repeat, selected, shown_range, wait_for_answers
from processes import until

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytest.importorskip("vllm", reason="the demo runs vLLM")
TITLE = "A cached lookup answer was handed out without regard to the computed tokens"
SIZES = [
    pytest.param("wide", {"width": 1400, "height": 1500}, marks=pytest.mark.long),
    pytest.param("narrow", {"width": 760, "height": 1400}),
]
VIEWS = {
    "lanes": ("requests?view=lanes", "Drag along the time axis"),
    "heat-map": ("requests?view=heat", "Where the time went"),
    "overview": ("", "Click an engine"),
    "requests": ("requests", "Click a row to open it"),
    "findings": ("findings", "The latest in words"),
    "rule": ("findings?rule=stale-lookup", "What to do."),
    "savings": ("savings", "By engine and connector"),
    "request": ("request?{request}", "Every step"),
    "compare": ("request?{request}&tab=compare&with={other}", "Step by step"),
    "runbook": ("findings?runbook=KvtrailSevereDrift", "What it means."),
    "replay": ("request?{request}&tab=replay&step=5", "The line marks the step."),
}
"""The pages, by name: the address of each, and a text on it."""


def a_finding(run: Demo) -> Any:
    return run.get("/api/findings", rule="stale-lookup")[0]


def test_healed_the_workload_finishes_and_repeats(living_demo: Demo) -> None:
    output = living_demo.output()
    assert "The generated tokens are the same as those of an engine without a connector." in output
    assert re.search(r"^stale-lookup, .* times: A cached lookup answer", output, flags=re.MULTILINE), output
    assert "  It could: crash. It did: healed.\n" in output
    assert total(output, "requests") == 16
    assert total(output, "tokens loaded") > 0
    wait_for_requests(living_demo)


def test_a_second_one_in_its_folder_is_refused(living_demo: Demo, tmp_path: Path) -> None:
    folder = living_demo.out.parent / ".demo"
    second = Demo(tmp_path, "--folder", str(folder))
    assert second.finish() == 1
    assert f"Error: another demo is running in {folder}" in second.output()


def wait_for_requests(run: Demo) -> None:
    """Wait until it has served more requests."""
    served = run.get("/api/totals")["requests"]
    until(lambda: run.get("/api/totals")["requests"] > served)


@pytest.mark.costly("a browser follows live traffic")
@needs_chromium
def test_search_and_deep_links(page: playwright.Page, living_demo: Demo) -> None:
    finding = a_finding(living_demo)
    page.goto(f"{living_demo.page}/requests")
    see(page, "Click a row to open it")
    page.get_by_role("searchbox", name="Search").fill(finding["external"])
    see(page, "1 request, latest first")
    until(lambda: len(rows(page, "requests_table")) == 1)
    open_row(page, "requests_table")
    matched, computed = (finding["numbers"][name] for name in ("matched", "computed"))
    see(page, f"so at most max(0, {matched} - {computed}) = {max(0, matched - computed)} can be new")
    page.goto(page.url)  # what was opened by a click can be opened by its address
    see(page, TITLE)
    see(page, f"Request {finding['external']}")
    page.goto(f"{living_demo.page}/request?trace={finding['trace_id']}")  # as Grafana's exemplars lead here
    see(page, f"Request {finding['external']}")

    page.goto(f"{living_demo.page}/requests?view=lanes")
    ready(page)
    page.get_by_role("searchbox", name="Search").fill(finding["request"])
    playwright.expect(page.locator(".facts")).to_contain_text("· 1 request ·")
    page.wait_for_url(re.compile(f"search={finding['request']}"))
    page.goto(page.url)
    playwright.expect(page.locator(".facts")).to_contain_text("· 1 request ·")


@pytest.mark.long
@needs_chromium
def test_zoom_and_selection_are_kept_over_ten_updates(page: playwright.Page, living_demo: Demo) -> None:
    page.goto(f"{living_demo.page}/requests?view=lanes")
    ready(page)
    page.keyboard.press("n")
    for _ in range(3):
        page.keyboard.press("+")
    page.keyboard.press("Escape")
    axis = page.locator(".field canvas"), 0.6, 0.9
    unselected = selected(page)
    repeat(page, lambda: drag(*axis, height=0.02), lambda: selected(page) != unselected)
    page.wait_for_url(re.compile("select="))
    kept = address_at_rest(page)
    shown, chosen = shown_range(page), selected(page)
    assert "from=" in kept
    wait_for_answers(page, 10)
    assert (page.url, shown_range(page), selected(page)) == (kept, shown, chosen)
    shoot(page, "live-selected")

    # The address is enough: somebody else sees the same.
    page.goto(kept)
    ready(page)
    assert (shown_range(page), selected(page)) == (shown, chosen)

    # And back to the present, which moves on.
    page.keyboard.press("l")
    before = shown_range(page)
    wait_for_answers(page, 2)
    until(lambda: shown_range(page) != before)


def settled(page: playwright.Page, connection: Connection) -> tuple[str, str]:
    """The facts and the picture, once refreshes do not change them."""
    seen = [(facts(page), pixels(page))]

    def unchanged() -> bool:
        connection.wait_for_refreshes()
        seen.append((facts(page), pixels(page)))
        return seen[-1] == seen[-2]

    until(unchanged)
    return seen[-1]


@pytest.mark.long
@needs_chromium
def test_paused_nothing_changes_until_it_goes_on(page: playwright.Page, living_demo: Demo) -> None:
    connection = Connection(page)
    page.goto(f"{living_demo.page}/requests?view=lanes&from=now-1m&to=now")
    ready(page)
    page.keyboard.press("Space")
    see(page, "Paused at")
    page.wait_for_url(re.compile("paused="))
    text, picture = settled(page, connection)
    wait_for_requests(living_demo)
    connection.wait_for_refreshes()
    assert facts(page) == text
    assert pixels(page) == picture
    shoot(page, "live-paused")

    # Zoom works all the same, and a paused address is paused for everybody who opens it.
    was = page.url
    page.keyboard.press("+")
    until(lambda: facts(page) != text and page.url != was)  # the address follows the picture
    page.goto(page.url)
    see(page, "Paused at")
    page.get_by_role("button", name="Resume").click()
    see(page, "The range is fixed")
    page.get_by_role("button", name="Now").click()
    playwright.expect(page.locator(".state")).to_have_text("Live")


@pytest.mark.long
@needs_chromium
def test_from_a_finding_to_its_request_to_its_replay_and_back(page: playwright.Page, living_demo: Demo) -> None:
    connection = Connection(page)
    page.goto(f"{living_demo.page}/requests?view=lanes")
    ready(page)
    page.get_by_role("button", name="Next finding").click()
    see(page, TITLE)
    page.wait_for_url(re.compile("from="))
    shoot(page, "live-finding")
    was = page.url
    # Pressed for long, while the picture is drawn again: the button must be the same when it is let go.
    page.get_by_role("button", name="Open the request").hover()
    page.mouse.down()
    connection.wait_for_refreshes()
    page.mouse.up()
    see(page, "verdict: drift")
    see(page, "impact: healed")
    page.get_by_role("button", name=re.compile("Replay from step")).first.click()
    see(page, "The connector answered 256")
    playwright.expect(page).to_have_url(re.compile(r"/request\?.*tab=replay.*step=\d+"))
    page.get_by_role("radio", name="What happened").click()
    page.wait_for_url(re.compile(r"/request\?(?!.*tab=)"))
    see(page, "impact: healed")
    page.go_back()
    page.go_back()
    page.go_back()
    see(page, "The range is fixed")
    playwright.expect(page).to_have_url(was)

    # The keyboard does it as well.
    page.keyboard.press("n")
    see(page, TITLE)
    page.locator(".detail").wait_for()
    page.keyboard.press("Enter")
    see(page, "verdict: drift")
    page.get_by_role("link", name="Runbook").first.click()
    see(page, "The connector repeated an earlier answer although")
    see(page, "What to do.")


@needs_chromium
def test_the_tracer_goes_away_and_comes_back(page: playwright.Page, living_demo: Demo) -> None:
    """It hangs: the demo itself would end with a tracer that died."""
    page.goto(f"{living_demo.page}/requests?view=lanes")
    ready(page)
    findings = page.context.new_page()
    findings.goto(f"{living_demo.page}/findings")
    see(findings, "findings, latest first")
    living_demo.tracer().send_signal(signal.SIGSTOP)
    try:
        see(page, re.compile(r"The tracer does not answer, since \d\d:\d\d:\d\d UTC"))
        see(findings, "does not answer")
        see(findings, "findings, latest first")  # what was known stays
        shoot(page, "live-away", at_rest=False)
        shoot(findings, "findings-away", at_rest=False)
    finally:
        living_demo.tracer().send_signal(signal.SIGCONT)
    playwright.expect(page.locator(".state")).to_have_text("Live")
    playwright.expect(findings.get_by_text("does not answer")).to_have_count(0)
    wait_for_requests(living_demo)
    assert living_demo.get("/api/health")["events_missing"] == 0, "what was recorded in between has come"


@pytest.mark.long
@needs_chromium
@pytest.mark.parametrize(("size", "viewport"), SIZES)
@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_looked_at_light_and_dark(
    page: playwright.Page, living_demo: Demo, name: str, size: str, viewport: playwright.ViewportSize
) -> None:
    """Nothing is wider than the window; how it looks is for a person to say, who has the screenshots."""
    finding = a_finding(living_demo)
    request = f"id={finding['request']}&engine={finding['engine']}"
    other = next(each["request"] for each in living_demo.get("/api/requests", verdict="ok"))
    path, text = VIEWS[name]
    page.set_viewport_size(viewport)
    page.goto(f"{living_demo.page}/{path.format(request=request, other=other)}")
    see(page, text)
    page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")
    for scheme in SCHEMES:
        switch_scheme(page, scheme)
        shoot(page, f"{name}-{scheme}-{size}")
    assert page.get_by_test_id("stException").count() == 0

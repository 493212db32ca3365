"""Every view of the dashboard over a running `kvtrail demo` with LMCache #2158's bug, in a real Chromium.

The guard heals the bug, so that the engine lives and its workload repeats: there is always something new, and always
something wrong. The screenshots are left in test-artifacts/, for people to look at.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from browser import SLOW_MS, needs_chromium, open_row, playwright, rows, see, shoot
from demos import Demo, demo
from on_live import address_at_rest, drag, facts, pixels, ready, selected, shown_range, wait_for_answers
from processes import until

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytest.importorskip("vllm", reason="the demo runs vLLM")
pytestmark = needs_chromium
TITLE = "A cached lookup answer was handed out without regard to the computed tokens"
REFRESHES_MS = 6_000
"""The page asks every two seconds."""
SIZES = {"wide": {"width": 1400, "height": 1500}, "narrow": {"width": 760, "height": 1400}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("live"), "--bug", "stale-lookup", "--guard", "heal") as run:
        run.wait_for_output("The workload repeats gently until Ctrl-C.")
        # The second round finds what the first has stored: only then is there something to load.
        until(lambda: run.get("/api/overview")["totals"]["loaded"] > 0)
        yield run


def a_finding(run: Demo) -> Any:
    return run.get("/api/findings", rule="stale-lookup")[0]


def test_search_and_deep_links(page: playwright.Page, live: Demo) -> None:
    finding = a_finding(live)
    page.goto(f"{live.page}/requests")
    see(page, "Click a row to open it")
    page.get_by_role("searchbox", name="Search").fill(finding["external"])
    see(page, "1 request, latest first")
    until(lambda: len(rows(page, "requests_table")) == 1)
    open_row(page, "requests_table")
    see(page, f"so at most max(0, 256 - {finding['numbers']['computed']}) = 0 can be new")
    page.goto(page.url)  # what was opened by a click can be opened by its address
    see(page, TITLE)
    see(page, f"Request {finding['external']}")
    page.goto(f"{live.page}/request?trace={finding['trace_id']}")  # as Grafana's exemplars lead here
    see(page, f"Request {finding['external']}")

    page.goto(f"{live.page}/live")
    ready(page)
    page.keyboard.press("/")
    page.keyboard.type(finding["request"])
    playwright.expect(page.locator(".facts")).to_contain_text("· 1 request ·")
    page.wait_for_url(re.compile(f"q={finding['request']}"))
    page.goto(page.url)
    playwright.expect(page.locator(".facts")).to_contain_text("· 1 request ·")


def test_zoom_and_selection_are_kept_over_ten_updates(page: playwright.Page, live: Demo) -> None:
    page.goto(f"{live.page}/live")
    ready(page)
    page.keyboard.press("n")
    for _ in range(3):
        page.keyboard.press("+")
    page.keyboard.press("Escape")
    drag(page, (800, 12), (1220, 12))
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


def settled(page: playwright.Page) -> tuple[str, str]:
    """The facts and the picture, once they are the same for a while."""
    seen = [(facts(page), pixels(page))]

    def unchanged() -> bool:
        page.wait_for_timeout(1500)
        seen.append((facts(page), pixels(page)))
        return seen[-1] == seen[-2]

    until(unchanged)
    return seen[-1]


def test_paused_nothing_changes_until_it_goes_on(page: playwright.Page, live: Demo) -> None:
    page.goto(f"{live.page}/live?from=now-1m&to=now")
    ready(page)
    page.keyboard.press("Space")
    see(page, "Paused at")
    page.wait_for_url(re.compile("paused="))
    said, picture = settled(page)
    served = live.get("/api/overview")["totals"]["requests"]
    until(lambda: live.get("/api/overview")["totals"]["requests"] > served)
    page.wait_for_timeout(3000)
    assert facts(page) == said
    assert pixels(page) == picture
    shoot(page, "live-paused")

    # Zoom works all the same, and a paused address is paused for everybody who opens it.
    was = page.url
    page.keyboard.press("+")
    until(lambda: facts(page) != said and page.url != was)  # the address follows the picture
    page.goto(page.url)
    see(page, "Paused at")
    page.get_by_role("button", name="Resume").click()
    see(page, "The range is fixed")
    page.get_by_role("button", name="Now").click()
    playwright.expect(page.locator(".state")).to_have_text("Live")


def test_from_a_finding_to_its_request_to_its_replay_and_back(page: playwright.Page, live: Demo) -> None:
    page.goto(f"{live.page}/live")
    ready(page)
    page.get_by_role("button", name="Next finding").click()
    see(page, TITLE)
    page.wait_for_url(re.compile("from="))
    shoot(page, "live-finding")
    was = page.url
    # Pressed for long, while the picture is drawn anew: the button must be the same when it is let go.
    page.get_by_role("button", name="Open the request").click(delay=REFRESHES_MS)
    see(page, "verdict: drift")
    see(page, "did: healed")
    page.get_by_role("link", name=re.compile("Replay from step")).first.click()
    see(page, "The connector answered 256")
    playwright.expect(page).to_have_url(re.compile(r"/replay\?.*step=\d+"))
    page.get_by_role("link", name="All of it at once").click()
    page.wait_for_url(re.compile(r"/request\?"))
    see(page, "did: healed")
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
    page.get_by_role("link", name="Findings of this rule").click()
    see(page, "What to do.")


def test_the_tracer_goes_away_and_comes_back(page: playwright.Page, live: Demo) -> None:
    """It hangs: the demo itself would end with a tracer that died."""
    page.goto(f"{live.page}/live")
    ready(page)
    browser = page.context.browser
    assert browser is not None
    findings = browser.new_page()
    findings.set_default_timeout(SLOW_MS)
    findings.goto(f"{live.page}/findings")
    see(findings, "findings, latest first")
    live.tracer().send_signal(signal.SIGSTOP)
    try:
        see(page, re.compile(r"The tracer does not answer, since \d\d:\d\d:\d\d UTC"))
        see(findings, "does not answer")
        see(findings, "findings, latest first")  # what was known stays
        shoot(page, "live-away", at_rest=False)
        shoot(findings, "findings-away", at_rest=False)
    finally:
        live.tracer().send_signal(signal.SIGCONT)
    playwright.expect(page.locator(".state")).to_have_text("Live")
    playwright.expect(findings.get_by_text("does not answer")).to_have_count(0)
    served = live.get("/api/overview")["totals"]["requests"]
    until(lambda: live.get("/api/overview")["totals"]["requests"] > served)
    assert live.get("/api/health")["events_missing"] == 0, "what was recorded in between has come"


@pytest.mark.parametrize("size", SIZES)
def test_every_view_is_looked_at_light_and_dark(page: playwright.Page, live: Demo, size: str) -> None:
    """Nothing is wider than the window; how it looks is for a person to say, who has the screenshots."""
    finding = a_finding(live)
    request = f"id={finding['request']}&engine={finding['engine']}"
    other = next(each["request"] for each in live.get("/api/requests", verdict="ok"))
    views = {
        "live": ("live", "Drag along the time axis"),
        "overview": ("", "Findings by rule"),
        "requests": ("requests", "Click a row to open it"),
        "findings": ("findings", "The latest in words"),
        "rule": ("findings?rule=stale-lookup", "What to do."),
        "efficiency": ("efficiency", "By engine and connector"),
        "fleet": ("fleet", "one for each process of an engine"),
        "request": (f"request?{request}", "Every step"),
        "compare": (f"compare?{request}&with={other}", "Step by step"),
        "runbook": ("runbook?name=KvtrailSevereDrift", "What it means."),
        "replay": (f"replay?{request}&step=5", "The line marks the step."),
    }
    page.set_viewport_size(SIZES[size])  # type: ignore[arg-type]
    for name, (path, text) in views.items():
        page.goto(f"{live.page}/{path}")
        see(page, text)
        page.wait_for_function('!document.querySelector(\'[data-stale="true"], [data-testid="stSkeleton"]\')')
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        assert page.get_by_test_id("stException").count() == 0
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.wait_for_timeout(500)  # charts are drawn anew
            shoot(page, f"{name}-{scheme}-{size}")

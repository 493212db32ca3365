"""States of the live view that a demo does not show: empty, incomplete, away, nothing that fits. See also test_live_demo.py.

Nothing is mocked. Screenshots are left in test-artifacts/, for people to look at.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from browser import SLOW_MS, box_of, needs_chromium, playwright, see, shoot
from coming import S, post
from on_live import facts, ready, shown_range, span_s, wait_for_answers
from processes import Tracer, until
from traffic import Engine, served

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
PHONE: playwright.ViewportSize = {"width": 412, "height": 840}


def busy(tracer: Tracer, *, seconds: int = 120) -> None:
    """Two engines of the last minutes, a stale answer in the first."""
    now_ns = time.time_ns()
    first, second = Engine("engine-a"), Engine("engine-b")
    post(tracer, served(first, from_ns=now_ns - seconds * S, to_ns=now_ns, every_ms=1200, stale_every=30))
    post(tracer, served(second, from_ns=now_ns - seconds * S, to_ns=now_ns, every_ms=2500))


def test_search_filters_and_help(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    busy(tracer)
    url = start_dashboard(tracer.url)
    page.goto(f"{url}/live")
    ready(page)
    wait_for_answers(page, 1)
    page.keyboard.press("?")
    see(page, "zoom to the selection")
    shoot(page, "live-help")
    page.keyboard.press("Escape")
    playwright.expect(page.locator(".help")).to_be_hidden()

    page.keyboard.press("/")
    page.keyboard.type("chat-0030")
    page.wait_for_url(re.compile("q=chat-0030"))
    playwright.expect(page.locator(".facts")).to_contain_text("· 2 requests")
    page.get_by_label("Engine", exact=True).select_option("engine-b")
    playwright.expect(page.locator(".facts")).to_contain_text("· 1 request ·")
    page.get_by_role("searchbox").fill("nobody")
    see(page, "Neither in this time nor at any other.")
    shoot(page, "live-nothing-fits")
    page.get_by_role("button", name="Clear search and filters").click()
    ready(page)


def test_fingers_move_and_zoom(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    busy(tracer)
    chromium = page.context.browser
    assert chromium is not None
    phone = chromium.new_context(has_touch=True, viewport=PHONE).new_page()
    phone.set_default_timeout(SLOW_MS)
    now = datetime.now(UTC)
    begin, end = (f"{now - timedelta(seconds=ago):%Y-%m-%dT%H:%M:%SZ}" for ago in (100, 20))
    phone.goto(f"{start_dashboard(tracer.url)}/live?from={begin}&to={end}")
    ready(phone)
    until(lambda: span_s(phone) == 80)
    shoot(phone, "live-phone")
    for name in ("Help", "Copy link", "Zoom in"):
        button = box_of(phone.get_by_role("button", name=name))
        assert button["x"] + button["width"] <= PHONE["width"], name
    swipe(phone, [(150, 150), (200, 150)], [(100, 150), (250, 150)])
    until(lambda: span_s(phone) < 30)
    zoomed, was = span_s(phone), shown_range(phone)
    swipe(phone, [(100, 150)], [(250, 150)])
    until(lambda: shown_range(phone) != was)
    assert shown_range(phone) < was, "dragged to the right: what was before"
    assert abs(span_s(phone) - zoomed) <= 1
    assert "/request" not in phone.url, "no tap"


def swipe(page: playwright.Page, begin: list[tuple[int, int]], end: list[tuple[int, int]], steps: int = 8) -> None:
    """Fingers go down on the canvas, move, and are lifted."""
    box = box_of(page.locator(".field canvas"))
    session = page.context.new_cdp_session(page)
    for step in range(steps + 1):
        share = step / steps
        points = [
            {"x": box["x"] + x1 + (x2 - x1) * share, "y": box["y"] + y1 + (y2 - y1) * share, "id": number}
            for number, ((x1, y1), (x2, y2)) in enumerate(zip(begin, end, strict=True))
        ]
        kind = "touchMove" if step else "touchStart"
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


def test_empty_incomplete_and_away(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    url = start_dashboard(tracer.url)
    page.goto(f"{url}/live")
    see(page, "No requests yet")
    shoot(page, "live-empty")

    now_ns = time.time_ns()
    events = served(Engine("engine-a"), from_ns=now_ns - 100 * S, to_ns=now_ns, every_ms=1500)
    post(tracer, events[:150] + events[190:])
    see(page, re.compile(r"40 spans missing between \d\d:\d\d:\d\d"))
    shoot(page, "live-incomplete")
    post(tracer, events[150:190])  # they were only late
    playwright.expect(page.locator(".facts")).not_to_contain_text("missing")

    tracer.kill()
    see(page, re.compile(r"The tracer does not answer, since \d\d:\d\d:\d\d UTC"))
    said = facts(page)
    page.wait_for_timeout(5000)
    assert facts(page) == said, "what was last known stays"
    shoot(page, "live-away")
    with tracer.log.open("ab") as log:
        tracer.process = subprocess.Popen(tracer.process.args, stdout=log, stderr=log)
    playwright.expect(page.locator(".state")).to_contain_text("Live")
    ready(page)


def test_a_tracer_that_was_never_there_is_said(page: playwright.Page, start_dashboard: Callable[[str], str]) -> None:
    page.goto(f"{start_dashboard('http://127.0.0.1:9')}/live")
    see(page, "Start it with kvtrail serve.")
    shoot(page, "live-no-tracer")

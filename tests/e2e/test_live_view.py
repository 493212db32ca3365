"""The live view, with live traffic: searching, folding, findings, dead engines, keys, fingers, time; empty and incomplete.

Nothing is mocked. Screenshots are left in test-artifacts/, for people to look at. test_live_demo.py has a real engine.
"""

from __future__ import annotations

import re
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from browser import SCHEMES, SLOW_MS, Scheme, box_of, drag, holds, needs_chromium, playwright, see, shoot
from connection import Connection
from contrast import unreadable
from live_page import address_at_rest, pixels, ready, repeat, shown_range, span_s, wait_for_answers
from live_traffic import S, goodbye, live_traffic, post
from processes import SharedDashboard, Tracer, until
from traffic import Engine, served

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
TEXTS = (
    ".state", ".facts", ".legend li", ".heads .name", ".heads .holds", ".what p", ".what strong", ".typed",
)  # fmt: skip
LAPTOP: playwright.ViewportSize = {"width": 1440, "height": 900}
PHONE: playwright.ViewportSize = {"width": 390, "height": 844}
TOUCHED: playwright.ViewportSize = {"width": 412, "height": 840}
ON_THE_AXIS: playwright.Position = {"x": 300, "y": 5}
"""A place of the lanes where no engine's head can be."""
SHORT_S = 60
"""How long engines of many requests have served."""


def old_request(tracer: Tracer) -> str:
    """A request of three hours ago; returns its id."""
    engine = Engine("engine-z")
    events = engine.request(time.time_ns() - 3 * 3600 * S, name="yesterday")
    post(tracer, events)
    return str(events[0].request)


def opened(page: playwright.Page, url: str, query: str = "") -> None:
    page.set_viewport_size(LAPTOP)
    page.goto(f"{url}/requests?view=lanes{query}")
    ready(page)
    wait_for_answers(page, 1)


@pytest.mark.long
def test_the_second_engine_is_announced_and_engines_fold(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    begun_s = time.monotonic()
    with live_traffic(shown, (Engine("engine-a"), 150, 0), (Engine("engine-b"), 900, 20), seconds=SHORT_S):
        opened(page, pages.url)
        until(
            lambda: span_s(page) <= 2 * (SHORT_S + time.monotonic() - begun_s),
            why=lambda: f"{span_s(page)} s are shown",
        )
        below = page.locator(".more.below")
        playwright.expect(below).to_contain_text(re.compile(r"engine-b, \d+ requests · \d+ findings? below"))
        overview = page.locator(".map canvas")
        playwright.expect(overview).to_have_attribute("aria-label", re.compile(r": [1-9]\d* findings?$"))
        shoot(page, "live-two-engines")
        below.click()
        second = page.get_by_role("button", name=re.compile(r"engine-b \d+ requests · \d+ findings?"))
        playwright.expect(second).to_be_in_viewport()

        first = page.get_by_role("button", name=re.compile(r"engine-a [\d,]+ requests"))
        page.locator(".field canvas").hover(position=ON_THE_AXIS)
        page.mouse.wheel(0, -5000)
        first.click()
        playwright.expect(first).to_have_attribute("aria-expanded", "false")
        playwright.expect(second).to_be_in_viewport()
        page.wait_for_url(re.compile("fold=engine-a"))
        shoot(page, "live-folded")
        page.goto(page.url)
        playwright.expect(first).to_have_attribute("aria-expanded", "false")


@pytest.mark.long
def test_a_findings_card_covers_no_lanes_and_no_legend_is_cut(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    with live_traffic(shown, (Engine("engine-a"), 700, 12)):
        opened(page, pages.url)
        page.keyboard.press("n")
        see(page, "A cached lookup answer was handed out without regard to the computed tokens")
        holds(partial(is_below, page.locator(".detail"), page.locator(".field")))
        playwright.expect(page.locator(".card")).to_be_hidden()
        shoot(page, "live-detail")

        page.set_viewport_size(PHONE)
        page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            until(partial(is_drawn_in, page, scheme))
            shoot(page, f"live-phone-{scheme}")
            holds(partial(legend_is_whole_and_readable, page, PHONE["width"]))


def legend_is_whole_and_readable(page: playwright.Page, width: int) -> None:
    for entry in page.locator(".legend li").all():
        box = box_of(entry)
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert unreadable(page, TEXTS) == {}


def is_below(lower: playwright.Locator, upper: playwright.Locator) -> None:
    above = box_of(upper)
    assert box_of(lower)["y"] >= above["y"] + above["height"]


def is_drawn_in(page: playwright.Page, scheme: Scheme) -> bool:
    """Whether this is the theme in which the lanes are drawn."""
    corner = "canvas => canvas.getContext('2d').getImageData(1, 1, 1, 1).data[0]"
    return bool((page.locator(".field canvas").evaluate(corner) < 128) == (scheme == "dark"))


def test_an_engine_that_died_is_said_in_red_and_is_a_line(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    dead = Engine("llama-a")
    with live_traffic(shown, (Engine("llama-b"), 900, 0)):
        opened(page, pages.url)
        playwright.expect(page.locator(".state")).to_have_text("Live")
        died_ns = time.time_ns() - 20 * S
        events = served(dead, from_ns=died_ns - 60 * S, to_ns=died_ns, every_ms=500)
        error = "AssertionError: Mismatch in tokens to load"
        post(shown, [*events, goodbye(dead, sequence=len(events), at_ns=died_ns, ended_by=error)])
        state = page.locator(".state")
        said = re.compile(r"^Engine llama-a died at \d\d:\d\d:\d\d of AssertionError with \d+ open requests?$")
        playwright.expect(state).to_have_text(said)
        playwright.expect(state).to_have_attribute("data-is", "wrong")
        head = page.get_by_role("button", name=re.compile(r"llama-a .*died .*Mismatch in tokens to load"))
        playwright.expect(head).to_be_visible()
        until(lambda: red_lines(page) >= 1, why=lambda: "no line goes through the lanes")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            until(partial(is_drawn_in, page, scheme))
            shoot(page, f"live-died-{scheme}")


def red_lines(page: playwright.Page) -> int:
    """Columns of the lanes that are red over at least 80 pixels."""
    return int(
        page.locator(".field canvas").evaluate(
            """canvas => {
              const { width, height } = canvas;
              const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
              let columns = 0;
              for (let x = 0; x < width; x++) {
                let red = 0;
                for (let y = 0; y < height; y++) {
                  const at = 4 * (y * width + x);
                  red += data[at] > 180 && data[at + 1] < 130 && data[at + 2] < 130;
                }
                columns += red >= 80;
              }
              return columns;
            }"""
        )
    )


def test_lanes_keep_their_rows_and_keys_go_through_them(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    connection = Connection(page)
    with live_traffic(shown, (Engine("engine-a"), 250, 0), seconds=SHORT_S):
        opened(page, pages.url)
        # Closer in, a while ago, and paused: what has left the picture holds rows that a page opened for the first time would
        # give away.
        for key in ["+"] * 4 + ["ArrowLeft"] * 6:
            page.keyboard.press(key)
        wait_for_answers(page, 3)
        page.keyboard.press("Space")
        see(page, "Paused at")
        page.wait_for_url(re.compile("paused="))
        picture = still(page, connection)
        page.goto(page.url)
        see(page, "Paused at")
        assert differing(page, still(page, connection), picture) < 50, (
            "pixels: a moment in an address is rounded to the microsecond"
        )

        page.locator(".copy").focus()
        lanes = page.get_by_role("application")
        while not lanes.evaluate("lanes => lanes.getRootNode().activeElement === lanes"):
            page.keyboard.press("Tab")
        spoken = page.locator(".said")
        playwright.expect(spoken).to_contain_text(re.compile(r"^chat-\d{4}: .*verdict .*began .*engine engine-a"))
        first = spoken.inner_text()
        page.keyboard.press("ArrowDown")
        playwright.expect(spoken).not_to_have_text(first)
        name = spoken.inner_text().split(":")[0]
        playwright.expect(page.locator(".detail")).to_contain_text(name)
        shoot(page, "live-keys")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(rf"/request\?.*id={name}"))


def differing(page: playwright.Page, *pictures: str) -> int:
    """How many pixels of two pictures are clearly different."""
    return int(
        page.evaluate(
            """async (pictures) => {
              const [a, b] = await Promise.all(pictures.map(async (source) => {
                const image = await createImageBitmap(await (await fetch(source)).blob());
                const pen = new OffscreenCanvas(image.width, image.height).getContext('2d');
                pen.drawImage(image, 0, 0);
                return pen.getImageData(0, 0, image.width, image.height).data;
              }));
              let pixels = 0;
              for (let n = 0; n < Math.max(a.length, b.length); n += 4) {
                pixels += [0, 1, 2].some((part) => !(Math.abs(a[n + part] - b[n + part]) < 50));
              }
              return pixels;
            }""",
            list(pictures),
        )
    )


def still(page: playwright.Page, connection: Connection) -> str:
    """The picture, once refreshes do not change it."""
    seen = [pixels(page)]

    def unchanged() -> bool:
        connection.wait_for_refreshes()
        seen.append(pixels(page))
        return seen[-1] == seen[-2]

    until(unchanged)
    return seen[-1]


def test_time_is_typed_brushed_and_shared(page: playwright.Page, pages: SharedDashboard, shown: Tracer) -> None:
    with live_traffic(shown, (Engine("engine-a"), 700, 15)):
        opened(page, pages.url)
        typed = page.get_by_label("Time, UTC")
        typed.fill("never")
        typed.press("Enter")
        playwright.expect(typed).to_have_attribute("aria-invalid", "true")
        begin, end = clocks(60, 30)

        def type_range() -> None:
            typed.fill(f"{begin} to {end}")
            typed.press("Enter")

        repeat(page, type_range, lambda: shown_range(page).endswith(f"{begin} to {end} UTC"))
        page.wait_for_url(re.compile(r"from=\d{4}-.*&to=\d{4}-"))

        before = page.evaluate("history.length")
        brushed(page)
        until(lambda: not shown_range(page).endswith(f"{begin} to {end} UTC"))
        said = shown_range(page)
        steps = page.evaluate("history.length") - before  # a slow hand's drag is several
        page.evaluate("steps => history.go(-steps)", steps)
        until(lambda: shown_range(page).endswith(f"{begin} to {end} UTC"))
        page.evaluate("steps => history.go(steps)", steps)
        until(lambda: shown_range(page) == said)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy link").click()
        see(page, "Copied")
        link = page.evaluate("navigator.clipboard.readText()")
        page.goto(link)
        ready(page)
        assert shown_range(page) == said
        page.keyboard.press("0")
        playwright.expect(page.locator(".state")).to_have_text("Live")


def clocks(*seconds_ago: int) -> list[str]:
    """Times of day, UTC."""
    now = datetime.now(UTC)
    return [f"{now - timedelta(seconds=ago):%H:%M:%S}" for ago in seconds_ago]


def brushed(page: playwright.Page) -> None:
    """Drag a new range in the overview, left of the one that is shown."""
    before, was = page.url, shown_range(page)
    repeat(page, lambda: drag(page.locator(".map"), 0.03, 0.1), lambda: shown_range(page) != was)
    page.wait_for_url(lambda url: url != before)  # it follows the picture
    address_at_rest(page)


@pytest.mark.long
def test_search_filters_and_help(page: playwright.Page, pages: SharedDashboard, shown: Tracer) -> None:
    old = old_request(shown)
    with live_traffic(shown, (Engine("engine-a"), 1200, 30), (Engine("engine-b"), 2500, 0)):
        opened(page, pages.url)
        page.keyboard.press("?")
        see(page, "zoom to the selection")
        shoot(page, "live-help")
        page.keyboard.press("Escape")
        playwright.expect(page.locator(".help")).to_be_hidden()

        page.get_by_role("searchbox", name="Search").fill("chat-0030")
        page.wait_for_url(re.compile("search=chat-0030"))
        playwright.expect(page.locator(".facts")).to_contain_text("· 2 requests")
        page.get_by_role("combobox", name="Engine").click()
        page.get_by_role("option", name="engine-b", exact=True).click()
        playwright.expect(page.locator(".facts")).to_contain_text("· 1 request ·")
        page.get_by_role("searchbox", name="Search").fill(old)
        see(page, "Nothing in this time matches the filters above.")
        shoot(page, "live-nothing-fits")


@pytest.mark.long
def test_fingers_move_and_zoom(chromium: playwright.Browser, pages: SharedDashboard, shown: Tracer) -> None:
    now_ns = time.time_ns()
    post(shown, served(Engine("engine-a"), from_ns=now_ns - 120 * S, to_ns=now_ns, every_ms=1200, stale_every=30))
    with closing(chromium.new_context(has_touch=True, viewport=TOUCHED)) as context:
        phone = context.new_page()
        phone.set_default_timeout(SLOW_MS)
        now = datetime.now(UTC)
        begin, end = (f"{now - timedelta(seconds=ago):%Y-%m-%dT%H:%M:%SZ}" for ago in (100, 20))
        phone.goto(f"{pages.url}/requests?view=lanes&from={begin}&to={end}")
        ready(phone)
        until(lambda: span_s(phone) == 80)
        shoot(phone, "live-phone")
        for name in ("Help", "Copy link", "Zoom in"):
            button = box_of(phone.get_by_role("button", name=name))
            assert button["x"] + button["width"] <= TOUCHED["width"], name
        repeat(
            phone, lambda: swipe(phone, [(150, 150), (200, 150)], [(100, 150), (250, 150)]), lambda: span_s(phone) < 30
        )
        zoomed, was = span_s(phone), shown_range(phone)
        repeat(phone, lambda: swipe(phone, [(100, 150)], [(250, 150)]), lambda: shown_range(phone) != was)
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


@pytest.mark.long
def test_empty_and_incomplete(page: playwright.Page, pages: SharedDashboard, shown: Tracer) -> None:
    page.goto(f"{pages.url}/requests?view=lanes")
    see(page, "No requests yet")
    shoot(page, "live-empty")

    now_ns = time.time_ns()
    events = served(Engine("engine-a"), from_ns=now_ns - 100 * S, to_ns=now_ns, every_ms=1500)
    post(shown, events[:150] + events[190:])
    see(page, re.compile(r"40 spans missing between \d\d:\d\d:\d\d"))
    shoot(page, "live-incomplete")
    post(shown, events[150:190])  # they were only late
    playwright.expect(page.locator(".facts")).not_to_contain_text("missing")

"""What was wrong with the live view when somebody looked at it as a designer and on call; live traffic runs beside.

Screenshots are left in test-artifacts/, for people to look at.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from browser import SCHEMES, Scheme, box_of, holds, needs_chromium, playwright, see, shoot
from coming import S, coming, goodbye, post
from on_live import address_at_rest, pixels, ready, shown_range, span_s, wait_for_answers
from processes import Tracer, until
from traffic import Engine, served

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
LAPTOP: playwright.ViewportSize = {"width": 1440, "height": 900}
PHONE: playwright.ViewportSize = {"width": 390, "height": 844}
Start = Callable[..., Tracer]
Show = Callable[[str], str]


def old_request(tracer: Tracer) -> str:
    """A request of three hours ago; returns its id."""
    engine = Engine("engine-z")
    events = engine.request(time.time_ns() - 3 * 3600 * S, name="yesterday")
    post(tracer, events)
    return str(events[0].request)


def opened(page: playwright.Page, url: str, query: str = "") -> None:
    page.set_viewport_size(LAPTOP)
    page.goto(f"{url}/live{query}")
    ready(page)
    wait_for_answers(page, 1)


def test_a_search_falls_through_to_all_time(page: playwright.Page, start_tracer: Start, start_dashboard: Show) -> None:
    tracer = start_tracer()
    old = old_request(tracer)
    with coming(tracer, (Engine("engine-a"), 800, 0)):
        opened(page, start_dashboard(tracer.url))
        page.keyboard.press("/")
        page.keyboard.type(old[:12])
        see(page, "Not in this time")
        shoot(page, "live-elsewhere")
        page.get_by_role("button", name=re.compile(r"^yesterday · \d{4}-\d\d-\d\d \d\d:\d\d:\d\d · finished")).click()
        playwright.expect(page.locator(".facts")).to_contain_text("· 1 request ·")
        page.wait_for_url(re.compile(f"q={old}.*from=|from=.*q={old}"))
        page.get_by_role("searchbox").fill("nobody-has-this")
        see(page, "Neither in this time nor at any other.")


def test_the_second_engine_is_announced_and_engines_fold(
    page: playwright.Page, start_tracer: Start, start_dashboard: Show
) -> None:
    tracer = start_tracer()
    with coming(tracer, (Engine("engine-a"), 150, 0), (Engine("engine-b"), 900, 20)):
        url = start_dashboard(tracer.url)
        opened(page, url)
        until(lambda: span_s(page) <= 180, why=lambda: "the window does not fit itself to what there is")
        below = page.locator(".more.below")
        playwright.expect(below).to_contain_text(re.compile(r"engine-b, \d+ requests · \d+ findings? below"))
        overview = page.locator(".map canvas")
        playwright.expect(overview).to_have_attribute("aria-label", re.compile(r": [1-9]\d* findings?$"))
        shoot(page, "live-two-engines")
        below.click()
        second = page.get_by_role("button", name=re.compile(r"engine-b \d+ requests · \d+ findings?"))
        playwright.expect(second).to_be_in_viewport()

        first = page.get_by_role("button", name=re.compile(r"engine-a [\d,]+ requests"))
        page.mouse.move(700, 500)
        page.mouse.wheel(0, -5000)
        first.click()
        playwright.expect(first).to_have_attribute("aria-expanded", "false")
        playwright.expect(second).to_be_in_viewport()
        page.wait_for_url(re.compile("fold=engine-a"))
        shoot(page, "live-folded")
        page.goto(page.url)
        playwright.expect(first).to_have_attribute("aria-expanded", "false")


def test_a_findings_card_covers_no_lanes_and_no_legend_is_cut(
    page: playwright.Page, start_tracer: Start, start_dashboard: Show
) -> None:
    tracer = start_tracer()
    with coming(tracer, (Engine("engine-a"), 700, 12)):
        url = start_dashboard(tracer.url)
        opened(page, url)
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
            for entry in page.locator(".legend li").all():
                box = box_of(entry)
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= PHONE["width"]
            unreadable = {name: ratio for name, ratio in contrasts(page).items() if ratio < 4.5}
            assert unreadable == {}, scheme


def is_below(lower: playwright.Locator, upper: playwright.Locator) -> None:
    above = box_of(upper)
    assert box_of(lower)["y"] >= above["y"] + above["height"]


def is_drawn_in(page: playwright.Page, scheme: Scheme) -> bool:
    """Whether this is the theme in which the lanes are drawn."""
    corner = "canvas => canvas.getContext('2d').getImageData(1, 1, 1, 1).data[0]"
    return bool((page.locator(".field canvas").evaluate(corner) < 128) == (scheme == "dark"))


def contrasts(page: playwright.Page) -> dict[str, float]:
    """The contrast of the page's small texts with their background, by WCAG's formula."""
    return dict(page.evaluate(CONTRASTS, TEXTS))


TEXTS = (
    ".state", ".facts", ".legend li", ".heads .name", ".heads .holds", ".what p", ".what strong", ".typed", ".q",
)  # fmt: skip
CONTRASTS = """(names) => {
  const root = document.querySelector('[data-testid=stBidiComponentIsolated]').shadowRoot;
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const colour = (layers) => {
    for (const layer of layers) {
      pen.fillStyle = layer;
      pen.fillRect(0, 0, 1, 1);
    }
    return pen.getImageData(0, 0, 1, 1).data;
  };
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const weighed = (part, n) => linear(part / 255) * [0.2126, 0.7152, 0.0722, 0][n];
  const light = (data) => [...data].map(weighed).reduce((sum, each) => sum + each);
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement ?? each.getRootNode().host) {
      layers.unshift(getComputedStyle(each).backgroundColor);
    }
    return ['white', ...layers];
  };
  return Object.fromEntries(names.map((name) => {
    const element = root.querySelector(name);
    const layers = behind(element);
    const [text, back] = [[...layers, getComputedStyle(element).color], layers].map((each) => light(colour(each)));
    return [name, (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05)];
  }));
}"""


def test_an_engine_that_died_is_said_in_red_and_is_a_line(
    page: playwright.Page, start_tracer: Start, start_dashboard: Show
) -> None:
    tracer = start_tracer()
    url = start_dashboard(tracer.url)
    dead = Engine("llama-a")
    with coming(tracer, (Engine("llama-b"), 900, 0)):
        opened(page, url)
        playwright.expect(page.locator(".state")).to_have_text("Live")
        died_ns = time.time_ns() - 20 * S
        events = served(dead, from_ns=died_ns - 60 * S, to_ns=died_ns, every_ms=500)
        error = "AssertionError: Mismatch in tokens to load"
        post(tracer, [*events, goodbye(dead, sequence=len(events), at_ns=died_ns, ended_by=error)])
        state = page.locator(".state")
        said = re.compile(r"^Engine llama-a died \d\d:\d\d:\d\d of AssertionError, \d+ requests? lost$")
        playwright.expect(state).to_have_text(said)
        playwright.expect(state).to_have_attribute("data-is", "wrong")
        head = page.get_by_role("button", name=re.compile(r"llama-a .*died .*Mismatch in tokens to load"))
        playwright.expect(head).to_be_visible()
        until(lambda: red_lines(page) >= 1, why=lambda: "no line goes through the lanes")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(500)  # the picture is drawn anew
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
    page: playwright.Page, start_tracer: Start, start_dashboard: Show
) -> None:
    tracer = start_tracer()
    with coming(tracer, (Engine("engine-a"), 250, 0)):
        opened(page, start_dashboard(tracer.url))
        # Closer in, a while ago, and paused: what has left the picture holds rows that a page opened for the first time would
        # give away.
        for key in ["+"] * 4 + ["ArrowLeft"] * 6:
            page.keyboard.press(key)
        wait_for_answers(page, 3)
        page.keyboard.press("Space")
        see(page, "Paused at")
        page.wait_for_url(re.compile("paused="))
        picture = still(page)
        page.goto(page.url)
        see(page, "Paused at")
        assert differing(page, still(page), picture) < 50, (
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


def still(page: playwright.Page) -> str:
    """The picture, once it is the same for a while."""
    seen = [pixels(page)]

    def unchanged() -> bool:
        page.wait_for_timeout(1500)
        seen.append(pixels(page))
        return seen[-1] == seen[-2]

    until(unchanged)
    return seen[-1]


def test_time_is_typed_brushed_and_shared(page: playwright.Page, start_tracer: Start, start_dashboard: Show) -> None:
    tracer = start_tracer()
    with coming(tracer, (Engine("engine-a"), 700, 15)):
        opened(page, start_dashboard(tracer.url))
        typed = page.get_by_label("Time, UTC")
        typed.fill("never")
        typed.press("Enter")
        playwright.expect(typed).to_have_attribute("aria-invalid", "true")
        begin, end = clocks(60, 30)
        typed.fill(f"{begin} to {end}")
        typed.press("Enter")
        until(lambda: shown_range(page).endswith(f"{begin} to {end} UTC"))
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
    before = page.url
    box = box_of(page.locator(".map"))
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 40, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 140, y, steps=4)
    page.mouse.up()
    page.wait_for_url(lambda url: url != before)  # it follows the picture
    address_at_rest(page)

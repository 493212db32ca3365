"""The live view as a person meets it: a real Chromium, a real dashboard, a real tracer, and traffic while one looks.

Nothing is mocked. Screenshots are left in test-artifacts/, for people to look at.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from browser import SCHEMES, SLOW_MS, needs_chromium, playwright, see, shoot
from dashboards import dashboards
from processes import Tracer
from traffic import Engine, served
from wire import encoded

from tracer.events import Event

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
S = 10**9
WIDE: playwright.ViewportSize = {"width": 1400, "height": 1000}
NARROW: playwright.ViewportSize = {"width": 720, "height": 760}


@pytest.fixture
def start_dashboard(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    with dashboards(tmp_path) as start:
        yield start


def post(tracer: Tracer, events: Sequence[Event]) -> None:
    headers = {"content-type": "application/x-protobuf"}
    for first in range(0, len(events), 500):
        body = encoded(events[first : first + 500])
        httpx.post(f"{tracer.url}/v1/traces", content=body, headers=headers, timeout=30).raise_for_status()


def busy(tracer: Tracer, *, seconds: int = 120) -> None:
    """Two engines of the last minutes, a stale answer in the first."""
    now_ns = time.time_ns()
    first, second = Engine("engine-a"), Engine("engine-b")
    post(tracer, served(first, from_ns=now_ns - seconds * S, to_ns=now_ns, every_ms=1200, stale_every=30))
    post(tracer, served(second, from_ns=now_ns - seconds * S, to_ns=now_ns, every_ms=2500))


@pytest.fixture
def goes_on() -> Iterator[Callable[[Tracer], None]]:
    """Gives what makes an engine serve, from now on, until the test ends."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start(tracer: Tracer) -> None:
        def run() -> None:
            engine = Engine("engine-c")
            ahead: list[Event] = []
            told = 0
            while not stop.wait(0.5):
                ahead += engine.request(time.time_ns() - S // 4)
                happened = sorted((e for e in ahead if e.end_ns <= time.time_ns()), key=lambda e: e.end_ns)
                ahead = [e for e in ahead if e not in happened]
                for event in happened:
                    event.sequence = told
                    told += 1
                if happened:
                    post(tracer, happened)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join(10)


def facts(page: playwright.Page) -> str:
    return page.locator(".facts").inner_text()


def pixels(page: playwright.Page) -> str:
    return str(page.locator(".field canvas").evaluate("canvas => canvas.toDataURL()"))


def answered(page: playwright.Page) -> int:
    return int(page.locator(".live").get_attribute("data-answers") or 0)


def wait_for_answers(page: playwright.Page, count: int) -> None:
    wanted = answered(page) + count
    page.wait_for_function(
        "wanted => Number(document.querySelector('[data-testid=stBidiComponentIsolated]').shadowRoot"
        ".querySelector('.live').dataset.answers) >= wanted",
        arg=wanted,
        timeout=SLOW_MS * 2,
    )


def drag(page: playwright.Page, begin: tuple[int, int], end: tuple[int, int]) -> None:
    box = page.locator(".field canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + begin[0], box["y"] + begin[1])
    page.mouse.down()
    page.mouse.move(box["x"] + end[0], box["y"] + end[1], steps=5)
    page.mouse.up()


def ready(page: playwright.Page) -> None:
    playwright.expect(page.locator(".state")).not_to_be_empty(timeout=SLOW_MS)
    see(page, re.compile(r"[1-9]\d* requests"))


def test_zoom_and_selection_are_kept_over_ten_updates(
    page: playwright.Page,
    start_tracer: Callable[..., Tracer],
    start_dashboard: Callable[[str], str],
    goes_on: Callable[[Tracer], None],
) -> None:
    tracer = start_tracer()
    busy(tracer)
    goes_on(tracer)
    url = start_dashboard(tracer.url)
    page.goto(url)
    ready(page)
    shoot(page, "live")

    page.keyboard.press("n")
    for _ in range(3):
        page.keyboard.press("+")
    page.keyboard.press("Escape")
    drag(page, (300, 12), (600, 12))
    page.wait_for_url(re.compile("select="))
    kept, said, selected = page.url, facts(page), page.locator(".selected").inner_text()
    assert "from=" in kept
    wait_for_answers(page, 10)
    assert page.url == kept
    assert facts(page).split(" · ")[0] == said.split(" · ")[0]
    assert page.locator(".selected").inner_text().split(" · ")[0] == selected.split(" · ")[0]
    shoot(page, "live-selected")

    # The address is enough: somebody else sees the same.
    page.goto(kept)
    ready(page)
    assert facts(page).split(" · ")[0] == said.split(" · ")[0]
    assert page.locator(".selected").inner_text().split(" · ")[0] == selected.split(" · ")[0]

    # And back to the present, which moves on.
    page.keyboard.press("l")
    before = facts(page).split(" · ")[0]
    wait_for_answers(page, 2)
    assert facts(page).split(" · ")[0] != before


def test_paused_nothing_changes_until_it_goes_on(
    page: playwright.Page,
    start_tracer: Callable[..., Tracer],
    start_dashboard: Callable[[str], str],
    goes_on: Callable[[Tracer], None],
) -> None:
    tracer = start_tracer()
    busy(tracer, seconds=30)
    goes_on(tracer)
    page.goto(f"{start_dashboard(tracer.url)}/?span=60")
    ready(page)
    page.keyboard.press("Space")
    see(page, "Paused at")
    page.wait_for_url(re.compile("paused="))
    page.wait_for_timeout(1500)
    said = facts(page)
    picture = pixels(page)
    page.wait_for_timeout(6000)
    assert facts(page) == said
    assert pixels(page) == picture
    shoot(page, "live-paused")

    # Zoom works all the same, and a paused address is paused for whoever opens it.
    page.keyboard.press("+")
    page.wait_for_timeout(1500)
    assert facts(page) != said
    page.goto(page.url)
    see(page, "Paused at")
    page.get_by_role("button", name="Resume").click()
    see(page, "The range stands still")
    page.get_by_role("button", name="Now").click()
    playwright.expect(page.locator(".state")).to_have_text("Live", timeout=SLOW_MS)


def test_from_a_finding_to_its_request_and_back(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    busy(tracer)
    url = start_dashboard(tracer.url)
    page.goto(url)
    ready(page)
    page.get_by_role("button", name="Next finding").click()
    see(page, "A cached lookup answer was handed out without regard to the computed tokens")
    page.wait_for_url(re.compile("from="))
    shoot(page, "live-finding")
    was = page.url
    page.get_by_role("button", name="Open the request").click()
    see(page, "verdict: drift")
    assert "id=chat-0030-" in page.url
    page.go_back()
    see(page, "The range stands still")
    assert page.url == was

    # The keyboard does it as well.
    page.keyboard.press("n")
    see(page, "A cached lookup answer was handed out")
    page.locator(".tip.stays").wait_for()
    page.keyboard.press("Enter")
    see(page, "verdict: drift")


def test_search_filters_help_and_sizes(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    busy(tracer)
    url = start_dashboard(tracer.url)
    page.goto(url)
    ready(page)
    page.keyboard.press("?")
    see(page, "zoom to the selection")
    shoot(page, "live-help")
    page.keyboard.press("Escape")
    playwright.expect(page.locator(".help")).to_be_hidden()

    page.keyboard.press("/")
    page.keyboard.type("chat-0030")
    page.wait_for_url(re.compile("q=chat-0030"))
    playwright.expect(page.locator(".facts")).to_contain_text("· 2 requests", timeout=SLOW_MS)
    page.get_by_label("Engine", exact=True).select_option("engine-b")
    playwright.expect(page.locator(".facts")).to_contain_text("· 1 request ·", timeout=SLOW_MS)
    page.get_by_role("searchbox").fill("nobody")
    see(page, "No request fits")
    shoot(page, "live-nothing-fits")
    page.get_by_role("button", name="Clear search and filters").click()
    ready(page)

    for name, size in (("wide", WIDE), ("narrow", NARROW)):
        for scheme in SCHEMES:
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme)
            box = page.locator(".field canvas").bounding_box()
            assert box is not None
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 64)
            page.wait_for_timeout(1200)
            wide = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            assert wide, "nothing sticks out at the side"
            shoot(page, f"live-{name}-{scheme}")


def test_empty_incomplete_and_away(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    url = start_dashboard(tracer.url)
    page.goto(url)
    see(page, "No requests yet")
    shoot(page, "live-empty")

    now_ns = time.time_ns()
    events = served(Engine("engine-a"), from_ns=now_ns - 100 * S, to_ns=now_ns, every_ms=1500)
    post(tracer, events[:150] + events[190:])
    see(page, re.compile(r"40 spans missing between \d\d:\d\d:\d\d"))
    shoot(page, "live-incomplete")
    post(tracer, events[150:190])  # they were only late
    playwright.expect(page.locator(".facts")).not_to_contain_text("missing", timeout=SLOW_MS)

    tracer.kill()
    see(page, re.compile(r"The tracer does not answer, since \d\d:\d\d:\d\d UTC"))
    said = facts(page)
    page.wait_for_timeout(5000)
    assert facts(page) == said, "what was last known stays"
    shoot(page, "live-away")
    with tracer.log.open("ab") as log:
        tracer.process = subprocess.Popen(tracer.process.args, stdout=log, stderr=log)
    playwright.expect(page.locator(".state")).to_contain_text("Live", timeout=SLOW_MS)
    ready(page)


def test_a_tracer_that_was_never_there_is_said(page: playwright.Page, start_dashboard: Callable[[str], str]) -> None:
    page.goto(start_dashboard("http://127.0.0.1:9"))
    see(page, "Start it with kvtrail serve.")
    shoot(page, "live-no-tracer")

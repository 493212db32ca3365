"""What the first page, the fleet and the pages about ranges of time got wrong: each once, in a real browser."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import SCHEMES, Scheme, box_of, drawn, holds, needs_chromium, playwright, see, shoot
from processes import Tracer
from test_dashboard_page import HEALTHY, STALE, feed
from traffic import Engine, served
from wire import encoded

from kvtrail.tracer.events.events import Heartbeat

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
AS_TEXT = 4.5
TEXTS = (
    "[data-testid=stCaptionContainer] p", "[data-testid=stMarkdownContainer] p", "[data-testid=stMetricLabel] p",
    "[data-testid=stMetricDelta] *", ".stMarkdownBadge", "[data-testid=stPageLink-NavLink] p", "button p", "code",
    "svg.marks text",
)  # fmt: skip
S = 10**9


def goodbye(tracer: Tracer, engine: str, *, after: int, ended_by: str | None = None) -> None:
    """The last that an engine's recorder says, after so many events, and of what the engine ended."""
    now_ns = time.time_ns()
    last = Heartbeat(
        engine=engine, recorder=f"recorder-of-{engine}", sequence=after, connector="", role="", rank=0, start_ns=now_ns,
        end_ns=now_ns, recorder_closed=True, recorder_recorded=after, scheduler_step=0, recorder_ended_by=ended_by,
    )  # fmt: skip
    tracer.post(encoded([last]))


def ends(page: playwright.Page) -> dict[str, list[str]]:
    """The range in the page's address."""
    query = parse_qs(urlsplit(page.url).query)
    return {name: query[name] for name in ("from", "to") if name in query}


def drag(page: playwright.Page, key: str, begin: float, end: float) -> None:
    """Draw along a chart, from one share of its width to another."""
    chart = page.locator(f"[class*='st-key-{key}']").locator("svg.marks")
    chart.scroll_into_view_if_needed()
    box = box_of(chart)
    y = box["y"] + box["height"] * 0.6
    page.mouse.move(box["x"] + box["width"] * begin, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, y, steps=8)
    page.mouse.up()


@pytest.fixture(scope="module")
def contrasts() -> str:
    """A function for the browser: the least contrast of a text on its ground, over all elements of a selector."""
    return """selector => {
      const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
      const rgba = colour => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
        return [...pen.getImageData(0, 0, 1, 1).data].map((each, n) => n < 3 ? each : each / 255); };
      const over = (top, under) => top.slice(0, 3).map((each, n) => each * top[3] + under[n] * (1 - top[3]));
      const light = rgb => { const [r, g, b] = rgb.map(each => each / 255)
        .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const shown = [...document.querySelectorAll(selector)]
        .filter(each => each.textContent.trim() && each.getClientRects().length);
      return Math.min(...shown.map(element => {
        const chain = []; let opacity = 1;
        for (let each = element; each; each = each.parentElement) {
          const style = getComputedStyle(each); chain.push(rgba(style.backgroundColor)); opacity *= Number(style.opacity); }
        const ground = chain.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
        const own = getComputedStyle(element);
        const colour = rgba(element instanceof SVGElement ? own.fill : own.color); colour[3] *= opacity;
        const [low, high] = [light(over(colour, ground)), light(ground)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05); }));
    }"""


def test_a_dead_engine_is_said_at_once_and_so_is_why(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    """Fault 3: the engine had died of an assertion; Live said so in green, Fleet said `closed`, no page said that it died."""
    tracer = start_tracer()
    feed(tracer, HEALTHY, request="chat-8-0123abcd", engine="llama-b")
    feed(tracer, STALE, request="chat-7-0123abcd", engine="llama-a")
    url = start_dashboard(tracer.url)
    page.goto(url)
    see(page, "Findings by rule")  # the page is open when it happens
    recorded = {each["engine"]: each["received"] for each in tracer.get("/api/health")["recorders"]}
    goodbye(tracer, "llama-a", after=recorded["llama-a"], ended_by="AssertionError: Mismatch in tokens to load")
    goodbye(tracer, "llama-b", after=recorded["llama-b"])
    died = page.get_by_role("link", name=re.compile(r"Engine llama-a died at .* of AssertionError.*1 request lost"))
    playwright.expect(died).to_be_visible()
    playwright.expect(said(died, "lost")).to_have_count(1)
    shoot(page, "engine-died")
    died.click()
    see(page, "chat-7")
    assert urlsplit(page.url).path == "/request"

    page.goto(f"{url}/fleet")
    card = page.get_by_test_id("stMetric")
    playwright.expect(card.filter(has_text="Died")).to_contain_text("1 request lost")
    playwright.expect(card.filter(has_text="Drained").get_by_test_id("stMetricValue")).to_have_text("1")
    recorders = page.locator(".st-key-recorders").get_by_test_id("stDataFrame")
    playwright.expect(recorders.get_by_text("ended of an error")).to_be_attached()
    shoot(page, "fleet-died")


def test_a_range_of_days_has_both_dates_and_can_be_typed_drawn_and_undone(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    """Fault 4: 24 hours read `2026-11-20 20:11:25 to 20:11:25`. And no range could be typed or drawn."""
    tracer = start_tracer()
    engine, now_ns = Engine("llama-a"), time.time_ns()
    events = served(engine, from_ns=now_ns - 1800 * S, to_ns=now_ns - S, every_ms=20_000, stale_every=4)
    for first in range(0, len(events), 500):
        tracer.post(encoded(events[first : first + 500]))
    url = start_dashboard(tracer.url)
    page.goto(f"{url}/findings")
    field = page.get_by_role("textbox", name="Time range")
    playwright.expect(field).to_have_value("now-1h to now")
    see(page, "By rule")

    field.fill("2020-11-20 20:11:25 to 2020-11-21 20:11:25")
    field.press("Enter")
    see(page, "No findings from 2020-11-20 20:11:25 to 2020-11-21 20:11:25 UTC")
    assert ends(page) == {"from": ["2020-11-20T20:11:25Z"], "to": ["2020-11-21T20:11:25Z"]}
    shoot(page, "both-dates")
    page.go_back()
    playwright.expect(field).to_have_value("now-1h to now")
    see(page, "By rule")
    page.go_forward()
    playwright.expect(field).to_have_value("2020-11-20 20:11:25 to 2020-11-21 20:11:25")

    field.fill("soon")
    field.press("Enter")
    see(page, "is no time range. Type for example")
    playwright.expect(field).to_have_value("soon")

    page.get_by_role("radio", name="1 h", exact=True).click()
    playwright.expect(field).to_have_value("now-1h to now")
    see(page, "By rule")
    drag(page, "findings_trend", 0.6, 0.8)
    playwright.expect(field).to_have_value(re.compile(r"^\d{4}-.* to \d{4}-"))
    begin, end = (ends(page)[name][0] for name in ("from", "to"))
    assert begin < end
    see(page, "By rule")
    page.get_by_role("link", name="Overview").click()  # which goes along
    playwright.expect(page).to_have_url(re.compile(re.escape(f"{url}/?from=")))
    assert ends(page) == {"from": [begin], "to": [end]}
    page.go_back()
    see(page, "By rule")
    page.go_back()
    playwright.expect(field).to_have_value("now-1h to now")


def test_a_link_is_copied_with_both_ends(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    url = start_dashboard(start_tracer().url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
    page.goto(f"{url}/findings?from=now-6h&to=now&severity=leak")
    see(page, "No finding matches")
    page.get_by_role("button", name="Copy link").click()
    see(page, "Copied")
    query = parse_qs(urlsplit(page.evaluate("navigator.clipboard.readText()")).query)
    assert query["severity"] == ["leak"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", query[name][0]) for name in ("from", "to"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_captions_labels_and_badges_can_be_read(
    page: playwright.Page,
    start_tracer: Callable[..., Tracer],
    start_dashboard: Callable[[str], str],
    contrasts: str,
    scheme: Scheme,
) -> None:
    """Fault 8: captions had 3.89 in the light theme, axes and legends 3.72."""
    tracer = start_tracer()
    feed(tracer, STALE, request="chat-7-0123abcd", engine="llama-a")
    url = start_dashboard(tracer.url)
    page.emulate_media(color_scheme=scheme)
    for path, text in (("", "Findings by rule"), ("findings", "The latest in words"), ("fleet", "Recorders")):
        page.goto(f"{url}/{path}")
        see(page, text)
        drawn(page)

        def all_can_be_read() -> None:
            least = {selector: page.evaluate(contrasts, selector) for selector in TEXTS}
            assert {each: found for each, found in least.items() if found is not None and found < AS_TEXT} == {}

        holds(all_can_be_read)
        shoot(page, f"contrast-{path or 'overview'}-{scheme}")


def test_an_empty_store_shows_where_spans_go_and_what_to_copy(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    """Fault 10: it advised a demo that cannot start beside the running sidecar, and showed neither endpoint nor settings."""
    tracer = start_tracer()
    page.goto(start_dashboard(tracer.url))
    see(page, "No requests yet")
    playwright.expect(page.get_by_test_id("stCode")).to_have_count(3)
    endpoint, settings, demo = page.get_by_test_id("stCode").all()
    assert endpoint.inner_text().strip() == tracer.url
    words = shlex.split(settings.inner_text().replace("\\\n", " "))
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={tracer.url}" in words
    assert "--http-port 4318" not in demo.inner_text()
    shoot(page, "welcome")
    feed(tracer, HEALTHY, request="chat-8-0123abcd", engine="llama-b")
    see(page, "Findings by rule")


def test_findings_of_one_rule_are_one_row_and_what_is_lost_is_red(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    """Fault 13: five equal cards of one rule, sparklines without time, and `abandoned` in blue."""
    tracer = start_tracer()
    for number in range(6):
        feed(tracer, STALE, request=f"chat-{number}-0123abcd", engine=f"engine-{number}")
    page.goto(start_dashboard(tracer.url))
    sentence = page.get_by_role("link", name=re.compile("6 findings of stale-lookup in 6 requests"))
    playwright.expect(sentence).to_have_count(1)
    see(page, "Findings by rule")
    playwright.expect(said(sentence, "lost")).to_have_count(1)
    cards = page.get_by_test_id("stMetric")
    playwright.expect(cards.filter(has_text="Findings")).to_contain_text("6")
    playwright.expect(page.get_by_test_id("stMetricChart")).to_have_count(0)
    playwright.expect(page.get_by_text("worst case")).to_have_count(0)
    shoot(page, "by-rule")


def test_a_finding_that_did_no_harm_is_not_red(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    """Fault 13, the other way round: red is for what is lost."""
    tracer = start_tracer()
    feed(tracer, "L 750 c384 h256 -> 0 healed 256\nA 0\nS 384+366\nend", request="chat-1-0123abcd", engine="llama-a")
    page.goto(start_dashboard(tracer.url))
    sentence = page.get_by_role("link", name=re.compile("healed by the guard"))
    playwright.expect(sentence).to_have_count(1)
    playwright.expect(said(sentence, "warning")).to_have_count(1)
    playwright.expect(page.locator("[class*='st-key-say-lost']")).to_have_count(0)


def said(sentence: playwright.Locator, level: str) -> playwright.Locator:
    """What gives a sentence on the first page the colour of this level."""
    return sentence.locator(f"xpath=ancestor::*[contains(@class, 'st-key-say-{level}')]")

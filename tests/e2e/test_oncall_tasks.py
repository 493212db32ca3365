"""What somebody on call asks, each in three clicks at most; and what must hold on every page. All that needs a real browser.

`test_oncall_answers.py` has the questions that are answered without keys, drawing or the browser's history. Screenshots are
left in test-artifacts/; benchmarks/pictures.py makes the pictures of docs/images/ from some.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import oncall_world as world_of
import pytest
from browser import (
    SCHEMES,
    box_of,
    drawn,
    holds,
    needs_chromium,
    open_row,
    playwright,
    query_of,
    rows,
    see,
    shoot,
    switch_scheme,
)
from connection import Connection
from contrast import unreadable
from live_page import ready, wait_for_answers
from live_traffic import chatting
from oncall_world import World, in_trouble
from processes import SharedDashboard, until

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
MAX_CLICKS = 3
NEXT_FRAME = "() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
"""What a pointer's move changes is drawn with the browser's next frame."""
OUR_WORDS = re.compile(r"\b(epoch|witness(es)?|drift)\b", re.IGNORECASE)


@dataclass
class Person:
    """Somebody before a page, with the clicks since the last question."""

    page: playwright.Page
    world: World
    clicks: int = 0

    def open(self, path: str) -> None:
        """Begin a question at this address."""
        assert self.clicks <= MAX_CLICKS
        self.clicks = 0
        self.page.goto(path if path.startswith("http") else f"{self.world.url}/{path}")

    def click(self, what: playwright.Locator) -> None:
        self.clicks += 1
        what.first.click()

    def go(self, page: str) -> None:
        """Open a page by the bar on top."""
        self.click(self.page.get_by_role("link", name=page, exact=True))

    def open_row(self, key: str, row: int = 0) -> None:
        until(lambda: len(rows(self.page, key)) > row)
        drawn(self.page)
        self.clicks += 1
        open_row(self.page, key, row)

    def type(self, what: playwright.Locator, text: str) -> None:
        what.fill(text)
        what.press("Enter")

    def choose(self, field: str, option: str) -> None:
        """Choose in a list: two clicks."""
        self.click(self.page.get_by_role("combobox", name=field, exact=True))
        self.click(self.page.get_by_role("option", name=option, exact=True))

    def sees(self, text: str | re.Pattern[str]) -> None:
        """The content, or a part of it, is there."""
        see(self.page, text)

    def sees_row(self, key: str, which: Callable[[list[str]], bool]) -> int:
        """The number of the first such row of a table, once there is one."""
        seen: list[int] = []

        def looks() -> bool:
            seen[:] = [number for number, cells in enumerate(rows(self.page, key)) if which(cells)]
            return bool(seen)

        until(looks, why=lambda: f"{key}: {rows(self.page, key)}")
        return seen[0]

    def died(self) -> playwright.Locator:
        """The first sentence of the first page."""
        return self.page.get_by_role("link", name=re.compile("died at"))

    def points_at_a_request(self) -> str:
        """Move over the lanes until the card names a request, repeatedly until they are drawn; the name."""
        lanes, named = box_of(self.page.locator(".field canvas")), list[str]()

        def names_one() -> bool:
            for across in (0.8, 0.6, 0.7, 0.5, 0.9):
                for down in range(6, int(lanes["height"]), 9):
                    self.page.mouse.move(lanes["x"] + lanes["width"] * across, lanes["y"] + down)
                    self.page.evaluate(NEXT_FRAME)
                    if (name := self.reads_card()) and re.fullmatch(r"chat-\d+", name):
                        self.page.evaluate(NEXT_FRAME)  # what was read may be the card of the place before
                        if self.reads_card() == name:
                            named.append(name)
                            return True
            return False

        until(names_one, why=lambda: "no card names a request")
        return named[-1]

    def reads_card(self) -> str | None:
        """What the card beside the pointer names; None if there is no card."""
        card = self.page.locator(".card")
        return card.locator("strong").inner_text() if card.is_visible() else None

    def clicks_there(self) -> None:
        """Click where the pointer rests."""
        self.clicks += 1
        self.page.mouse.down()
        self.page.mouse.up()


@pytest.fixture(scope="module")
def world(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tasks")
    with pages.showing(folder, *world_of.options(folder)) as tracer:
        yield in_trouble(tracer, pages.url)


@pytest.fixture
def person(page: playwright.Page, world: World) -> Iterator[Person]:
    page.set_viewport_size({"width": 1440, "height": 900})
    person = Person(page, world)
    yield person
    assert person.clicks <= MAX_CLICKS


def test_an_engine_died_when_and_why_and_how_did_its_request_get_there(person: Person) -> None:
    """With keys alone."""
    page = person.page
    person.open("")
    see(page, re.compile("died at"))
    died = person.died().inner_text()
    assert re.search(r"died at \d\d:\d\d:\d\d of AssertionError with \d+ open requests: a stale lookup", died)

    def is_opened() -> bool:
        """A refresh may draw the link anew between the last two keys, and swallow the second."""
        for _ in range(40):
            page.keyboard.press("Tab")
            if "died at" in page.evaluate("document.activeElement.closest('a')?.innerText ?? ''"):
                page.keyboard.press("Enter")
                break
        page.wait_for_timeout(500)
        return "/request?" in page.url

    until(is_opened)
    person.sees(re.compile(r"^Request bug-"))
    person.sees(re.compile("AssertionError: "))
    person.sees("A cached lookup answer was handed out without regard to the computed tokens")
    drawn(page)
    shoot(page, "task-01-died")
    assert person.clicks == 0
    page.get_by_role("radio", name="Replay", exact=True).click()
    person.sees("Step 1 of 8: arrival")
    drawn(page)

    def is_at_the_finding() -> bool:
        """A key that comes before the page listens to keys is lost. There is one finding: the key may be pressed again."""
        page.keyboard.press("f")
        page.wait_for_timeout(500)
        return page.get_by_text("Step 7 of 8: lookup").count() > 0

    until(is_at_the_finding)
    page.keyboard.press("n")
    person.sees("Step 8 of 8")
    page.keyboard.press("p")
    person.sees("Step 7 of 8: lookup")
    page.keyboard.press("p")
    person.sees("Step 6 of 8: lookup")
    shoot(page, "replay")
    page.go_back()
    person.sees("Every step")


def test_grafana_alerts_that_an_engine_died_and_which_requests_are_lost(person: Person) -> None:
    person.open(person.world.alert("KvtrailEngineDied"))
    person.sees_row("requests_table", lambda cells: cells[0].startswith("bug-"))
    assert all(cells[0].startswith("bug-") for cells in rows(person.page, "requests_table"))
    person.open_row("requests_table")
    person.sees("It was open when its engine ended")


def test_what_changed_around_a_moment_and_the_way_back(person: Person) -> None:
    page, marked = person.page, re.compile(rf"{world_of.AFTER_DEPLOY} .*0\.31 → 0\.32")
    person.open("")
    person.click(page.get_by_role("combobox", name="Explain what changed at"))
    person.click(page.get_by_role("option", name=marked))
    person.sees(re.compile(rf"Engine {world_of.AFTER_DEPLOY} was started with"))
    person.sees(re.compile("Prompt tokens computed went from"))
    shoot(page, "changed")
    field = page.get_by_role("textbox", name="Time range (UTC)")
    field.fill("last 6 hours")
    field.press("Enter")
    page.wait_for_url(re.compile("from=now-6h&to=now"))
    page.get_by_role("link", name="Savings", exact=True).click()
    page.wait_for_url(re.compile(r"savings\?from=now-6h&to=now"))
    person.sees("By engine and connector")
    page.go_back()
    person.sees(re.compile("Prompt tokens computed went from"))
    page.go_back()
    playwright.expect(page).not_to_have_url(re.compile("from=now-6h"))


def test_which_engine_has_no_hits_and_which_evicted_prefix_costs_most(person: Person) -> None:
    page = person.page
    person.open("")
    person.click(page.get_by_role("link", name=re.compile(f"Engine {world_of.WITHOUT_HITS} has a hit rate of 0 %")))
    person.sees_row("places", lambda cells: world_of.WITHOUT_HITS in cells)
    assert query_of(page)["on"] == [world_of.WITHOUT_HITS]
    person.open("savings")
    person.sees("Tokens computed although a cache had held them")
    shoot(page, "savings")
    person.open_row("waste_prefixes")
    page.wait_for_url(re.compile("prefix=[0-9a-f]{16}"))
    row = person.sees_row("waste_requests", lambda cells: world_of.SLOW in cells)
    person.open_row("waste_requests", row)
    person.sees(re.compile("186 tokens of 250 were computed: 86 % evicted"))
    shoot(page, "causes")


def test_what_did_the_slow_requests_wait_for_and_which_are_the_slowest(person: Person) -> None:
    page = person.page
    person.open("")
    person.go("Requests")
    person.click(page.get_by_role("radio", name="Heat map"))
    person.type(page.get_by_role("textbox", name="Conditions"), "duration > 2s")
    page.wait_for_url(re.compile("where=duration"))
    drawn(page)
    person.sees(re.compile(r"Of the [\d,]+ tokens that they asked for: .* evicted"))
    person.sees_row("measures", lambda cells: cells[0] == "queued")
    shoot(page, "heat-map")
    person.open("requests?view=heat&of=duration")
    person.sees("Draw an area")
    drawn(page)
    box, mouse = box_of(page.locator("[class*=st-key-chart_heat_map] .marks").first), page.mouse
    mouse.move(box["x"] + box["width"] * 0.1, box["y"] + box["height"] * 0.1)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.98, box["y"] + box["height"] * 0.85, steps=8)
    mouse.up()
    page.wait_for_url(re.compile("where=duration"))
    person.sees(re.compile(r"\d+ requests?, longest"))
    page.go_back()
    person.sees("Where the time went")


def test_why_was_it_slower_than_one_like_it_and_where_did_the_first_token_wait(person: Person) -> None:
    page = person.page
    person.open(f"request?id={world_of.SLOW}")
    person.click(page.get_by_role("radio", name="Compare", exact=True))
    person.sees(re.compile("Near in time"))
    person.open_row("offers")
    person.sees("What differs")
    person.sees_row("differences", lambda cells: cells[0] == "queued")
    person.open(f"request?id={world_of.HANDED_OVER}&engine={world_of.TAKES}")
    person.click(page.get_by_role("radio", name="Other engine"))
    person.sees("Prefill and decode")
    person.sees(re.compile("to the first token; load took"))
    labels = page.get_by_test_id("stVegaLiteChart").first.locator(".role-axis-label text")
    until(lambda: {"prefill", "kept", "decode"} <= {*labels.all_text_contents()})
    playwright.expect(page.get_by_role("button", name=re.compile("Prefilled as pair"))).to_be_visible()


def test_which_rule_has_findings_and_what_is_to_be_done(person: Person) -> None:
    page = person.page
    person.open("")
    person.go("Findings")
    row = person.sees_row("by_rule", lambda cells: "over-report" in cells)
    person.open_row("by_rule", row)
    page.wait_for_url(re.compile("rule=over-report"))
    person.sees("Send to the maintainers.")
    shoot(page, "rule")
    person.open_row("one_by_one")
    person.sees("What to do.")
    person.open("findings")
    person.choose("Sort by", "Oldest first")
    until(lambda: any("over-report" in first for first in rows(page, "by_rule")[:1]))


@pytest.mark.costly("a browser follows live traffic")
def test_a_click_opens_what_is_under_the_pointer_though_requests_keep_coming(person: Person) -> None:
    page, named = person.page, list[str | None]()
    with chatting(person.world.tracer, *world_of.CHAT):
        connection = Connection(page)
        person.open("requests")
        wanted = rows(page, "requests_table")
        person.sees_row("requests_table", lambda cells: cells[0].startswith("chat-"))
        page.get_by_role("button", name=re.compile(r"\d+ new$")).wait_for()
        with connection.held_up():
            wanted = rows(page, "requests_table")
            open_row(page, "requests_table", 3)
            see(page, f"Opening {wanted[3][0]}")  # at once, without an answer
        see(page, "Every step")
        assert query_of(page)["id"] == [wanted[3][0]]
        page.go_back()
        person.sees_row("requests_table", lambda cells: cells[0].startswith("chat-"))
        person.open("requests?view=lanes")
        ready(page)
        person.click(page.get_by_role("button", name="Fold all"))
        for engine in world_of.CHAT:
            playwright.expect(page.get_by_role("button", name=re.compile(f"{engine} .*request"))).to_be_visible()
        shoot(page, "live", at_rest=False)
        person.click(page.get_by_role("button", name="Unfold all"))

        def rests() -> bool:
            named[:] = [person.points_at_a_request()]
            wait_for_answers(page, 2)  # the picture slides on under the resting pointer
            named.append(person.reads_card())
            return named[-1] is not None  # the card goes with its request, when that has left the picture

        until(rests, why=lambda: "each card is gone after two answers")
        assert named[0] == named[1], "it names another request, though nobody has moved the pointer"
        person.clicks_there()
        page.wait_for_url(re.compile(rf"/request\?.*id={named[0]}"))
        person.sees("Every step")


OF_A_REQUEST = f"id={world_of.SLOW}"
PAGES = (
    "", "requests", "requests?by=engine", "requests?view=heat", "requests?view=lanes", "findings",
    "findings?rule=stale-lookup", "findings?runbook=KvtrailEngineDied", "savings", f"request?{OF_A_REQUEST}",
    f"request?{OF_A_REQUEST}&tab=replay", f"request?{OF_A_REQUEST}&tab=compare",
)  # fmt: skip
TEXTS = [
    *(f"svg.marks .{role} text" for role in ("role-axis-label", "role-axis-title", "role-legend-label")),
    "button[aria-checked=true]", "button[aria-pressed=true]", "button[kind$=Active]",
    ".kvtable th button", ".kvtable td", ".kvtable .label",
]  # fmt: skip
OF_STREAMLIT = re.compile(
    r"warning: WARN (Infinite extent for field|Conflicting scale property \"domain\")"
    "|error: Failed to load resource: the server responded with a status of 404"
)
"""Streamlit draws each chart without its rows first, and Vega warns of that. It also looks for its server below the page's
address first."""
SHIFTS = """() => {
  window.shifts = [];
  window.observer?.disconnect();
  window.observer = new PerformanceObserver(list => window.shifts.push(
    ...list.getEntries().filter(each => !each.hadRecentInput).map(each => each.value)));
  window.observer.observe({ type: 'layout-shift', buffered: false });
}"""
MOST_SHIFT = 0.01
"""The cumulative layout shift of a page's refreshes: what somebody reads must stay where it is (Web Vitals: 0.1 is good)."""


@pytest.mark.costly("every page in a browser, in two schemes")
def test_every_page_can_be_read_stays_in_its_place_and_outlasts_its_sidecar(person: Person) -> None:
    """An axis had a contrast of 3.72; a page shifted by 0.19."""
    page, said, path = person.page, list[str](), ""
    connection = Connection(page)
    page.on("console", lambda message: said.append(f"/{path}: {message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"/{path}: {error}"))

    def all_can_be_read() -> None:
        assert unreadable(page, TEXTS) == {}, page.url

    def stays_in_place() -> None:
        page.evaluate(SHIFTS)
        connection.wait_for_refreshes(2)
        shift = page.evaluate("window.shifts.reduce((sum, each) => sum + each, 0)")
        assert shift <= MOST_SHIFT, f"{page.url} shifts by {shift}"

    for path in PAGES:
        person.open(path)
        drawn(page)
        if "runbook" not in path and not path.startswith("request?"):  # these do not refresh, or not for long
            holds(stays_in_place)  # a slow sidecar's first late answer moves it once; a fault moves it at each refresh
        for scheme in SCHEMES:
            switch_scheme(page, scheme)
            drawn(page)
            holds(all_can_be_read)
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")
        page.set_viewport_size({"width": 1440, "height": 900})
    said = [each for each in said if not OF_STREAMLIT.search(each)]
    assert not said, "\n".join(said)
    person.open(f"requests?search={world_of.SLOW}")  # the table has the latest ones only
    person.sees_row("requests_table", lambda cells: cells[0] == world_of.SLOW)
    person.world.tracer.process.send_signal(signal.SIGSTOP)
    try:
        see(page, re.compile("does not answer"))
        see(page, "Below is what was last known.")
        wanted = [cells[0] for cells in rows(page, "requests_table")]
        assert world_of.SLOW in wanted
        open_row(page, "requests_table", wanted.index(world_of.SLOW))
        page.wait_for_url(re.compile("/request[?]"))
        see(page, re.compile("does not answer|hangs"))
    finally:
        person.world.tracer.process.send_signal(signal.SIGCONT)
    see(page, "Every step")
    assert query_of(page)["id"] == [world_of.SLOW]

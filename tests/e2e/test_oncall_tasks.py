"""What somebody on call asks, each from the page where they begin, in three clicks at most.

`test_oncall_answers.py` has the questions that are answered without keys, drawing or the browser's history. Each task is a
question, the address where it begins, and its steps, by roles and labels; it is done when the page shows the content that
answers it. How long that took is reported, and not asserted: test-artifacts/oncall-tasks.md has the table, and
docs/dashboard.md shows one, with some of the screenshots that are left in test-artifacts/.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import oncall_world as world_of
import pytest
from browser import (
    ARTIFACTS,
    box_of,
    drawn,
    needs_chromium,
    open_row,
    playwright,
    query_of,
    rows,
    see,
    shoot,
)  # fmt: skip
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
    """Somebody before a page. Each click is counted, and how long they wait for what they look for.

    Attributes:
        waits_s: from each click, or from what they typed, to the content.
    """

    page: playwright.Page
    world: World
    clicks: int = 0
    waits_s: list[float] = field(default_factory=list)
    _acted_s: float | None = None

    def open(self, path: str) -> None:
        self.page.goto(path if path.startswith("http") else f"{self.world.url}/{path}")

    def click(self, what: playwright.Locator) -> None:
        what.first.wait_for()  # finding it with the eyes is not waiting for the page
        self._acts()
        self.clicks += 1
        what.first.click()

    def go(self, page: str) -> None:
        """Open a page by the bar on top."""
        self.click(self.page.get_by_role("link", name=page, exact=True))

    def open_row(self, key: str, row: int = 0) -> None:
        until(lambda: len(rows(self.page, key)) > row)
        drawn(self.page)
        self._acts()
        self.clicks += 1
        open_row(self.page, key, row)

    def type(self, what: playwright.Locator, text: str) -> None:
        self._acts()
        what.fill(text)
        what.press("Enter")

    def choose(self, field: str, option: str) -> None:
        """Choose in a list: two clicks."""
        self.click(self.page.get_by_role("combobox", name=field, exact=True))
        self.click(self.page.get_by_role("option", name=option, exact=True))

    def sees(self, text: str | re.Pattern[str]) -> None:
        """The content, or a part of it, is there."""
        see(self.page, text)
        self.is_answered()

    def sees_row(self, key: str, which: Callable[[list[str]], bool]) -> int:
        """The number of the first such row of a table, once there is one."""
        seen: list[int] = []

        def looks() -> bool:
            seen[:] = [number for number, cells in enumerate(rows(self.page, key)) if which(cells)]
            return bool(seen)

        until(looks, why=lambda: f"{key}: {rows(self.page, key)}")
        self.is_answered()
        return seen[0]

    def is_answered(self) -> None:
        if self._acted_s is not None:
            self.waits_s.append(time.monotonic() - self._acted_s)
            self._acted_s = None

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
        self._acts()
        self.clicks += 1
        self.page.mouse.down()
        self.page.mouse.up()

    def _acts(self) -> None:
        self._acted_s = self._acted_s or time.monotonic()


@dataclass(frozen=True)
class Task:
    """A question of somebody on call.

    Attributes:
        begin: the path of the page where they begin, or what gives its whole address.
        is_live: whether requests keep coming meanwhile. Such a task takes long.
    """

    name: str
    question: str
    begin: str | Callable[[World], str]
    steps: Callable[[Person], None]
    is_live: bool = False


TASKS: list[Task] = []


def task(
    name: str, question: str, begin: str | Callable[[World], str] = "", *, is_live: bool = False
) -> Callable[[Callable[[Person], None]], None]:
    """The function is the steps of a task; without a page it begins on the first one."""

    def add(steps: Callable[[Person], None]) -> None:
        TASKS.append(Task(name, question, begin, steps, is_live))

    return add


@task("01-died", "An engine died: when, why, and which requests suffered?")
def _(person: Person) -> None:
    see(person.page, re.compile("died at"))
    died = person.died().inner_text()
    assert re.search(r"died at \d\d:\d\d:\d\d of AssertionError with \d+ open requests: a stale lookup", died)
    person.click(person.died())
    person.sees(re.compile(r"^Request bug-"))
    person.sees(re.compile("AssertionError: "))
    person.sees("A cached lookup answer was handed out without regard to the computed tokens")


@task("06-compared", "Why was this request slower than one like it?", f"request?id={world_of.SLOW}")
def _(person: Person) -> None:
    person.click(person.page.get_by_role("radio", name="Compare", exact=True))
    person.sees(re.compile("Near in time"))
    until(lambda: len(rows(person.page, "offers")) > 0)
    person.open_row("offers")
    person.sees("Why was one slower")
    person.sees_row("slower", lambda cells: cells[0] == "queued")
    person.sees("What differs")
    playwright.expect(person.page.get_by_test_id("stVegaLiteChart")).to_have_count(4)


@task("07-keyboard", "The same as the first one, with the keyboard only")
def _(person: Person) -> None:
    page = person.page
    see(page, re.compile("died at"))
    for _ in range(40):
        page.keyboard.press("Tab")
        if "died at" in page.evaluate("document.activeElement.closest('a')?.innerText ?? ''"):
            break
    page.keyboard.press("Enter")
    person.sees(re.compile("AssertionError: "))
    assert person.clicks == 0


@task("10-two-engines", "What are two engines doing, side by side?", is_live=True)
def _(person: Person) -> None:
    person.go("Requests")
    person.click(person.page.get_by_role("radio", name="Lanes"))
    person.click(person.page.get_by_role("button", name="Fold all"))
    for engine in world_of.CHAT:
        playwright.expect(person.page.get_by_role("button", name=re.compile(f"{engine} .*request"))).to_be_visible()
    person.is_answered()


@task("12-changed", "What changed around a moment that I choose?")
def _(person: Person) -> None:
    page, marked = person.page, re.compile(rf"{world_of.AFTER_DEPLOY} .*0\.31 → 0\.32")
    person.click(page.get_by_role("combobox", name="Explain what changed at"))
    person.click(page.get_by_role("option", name=marked))
    person.sees(re.compile(rf"Engine {world_of.AFTER_DEPLOY} was started with"))
    person.sees(re.compile("Prompt tokens computed went from"))


@task("13-no-hits", "Which engine's hit rate is zero?")
def _(person: Person) -> None:
    person.click(
        person.page.get_by_role("link", name=re.compile(f"Engine {world_of.WITHOUT_HITS} has a hit rate of 0 %"))
    )
    person.sees_row("places", lambda cells: world_of.WITHOUT_HITS in cells)
    assert query_of(person.page)["on"] == [world_of.WITHOUT_HITS]


@task(
    "14-alert",
    "Grafana alerts that an engine died: which requests are lost?",
    lambda world: world.alert("KvtrailEngineDied"),
)
def _(person: Person) -> None:
    person.sees_row("requests_table", lambda cells: cells[0].startswith("bug-"))
    assert all(cells[0].startswith("bug-") for cells in rows(person.page, "requests_table"))
    person.open_row("requests_table")
    person.sees("It was open when its engine ended")


@task("16-slow", "What did the slow requests wait for, and what had they to compute?")
def _(person: Person) -> None:
    person.go("Requests")
    person.click(person.page.get_by_role("radio", name="Heat map"))
    person.type(person.page.get_by_role("textbox", name="Conditions"), "duration > 2s")
    person.page.wait_for_url(re.compile("where=duration"))
    drawn(person.page)
    person.sees(re.compile(r"Of the [\d,]+ tokens that they asked for: .* evicted"))
    person.sees_row("measures", lambda cells: cells[0] == "queued")


@task("19-prefix", "Which evicted prefix costs most, and whose requests are these?", "savings")
def _(person: Person) -> None:
    person.sees("Computed although it had been held")
    person.open_row("waste_prefixes")
    person.page.wait_for_url(re.compile("prefix=[0-9a-f]{16}"))
    row = person.sees_row("waste_requests", lambda cells: world_of.SLOW in cells)
    person.open_row("waste_requests", row)
    person.sees(re.compile("186 tokens of 250 were computed: 86 % evicted"))


@task(
    "24-hand-off",
    "Where did the time to the first token go, on both engines?",
    f"request?id={world_of.HANDED_OVER}&engine={world_of.TAKES}",
)
def _(person: Person) -> None:
    person.click(person.page.get_by_role("radio", name="Other engine"))
    person.sees("Prefill and decode")
    person.sees(re.compile("to the first token; load took"))
    labels = person.page.get_by_test_id("stVegaLiteChart").first.locator(".role-axis-label text")
    until(lambda: {"prefill", "kept", "decode"} <= {*labels.all_text_contents()})
    playwright.expect(person.page.get_by_role("button", name=re.compile("Prefilled as pair"))).to_be_visible()


@task("26-live-card", "What is this request in the live picture?", "requests?view=lanes", is_live=True)
def _(person: Person) -> None:
    page = person.page
    ready(page)
    names = list[str | None]()

    def rests() -> bool:
        names[:] = [person.points_at_a_request()]
        wait_for_answers(page, 2)  # the picture slides on under the resting pointer
        names.append(person.reads_card())
        return names[-1] is not None  # the card goes with its request, when that has left the picture

    until(rests, why=lambda: "each card is gone after two answers")
    assert names[0] == names[1], "it names another request, though nobody has moved the pointer"
    person.clicks_there()
    page.wait_for_url(re.compile(rf"/request\?.*id={names[0]}"))
    person.sees("Every step")


@task("27-new", "What is new since the last deploy, and which finding is the oldest?")
def _(person: Person) -> None:
    person.go("Findings")
    person.sees_row("by_rule", lambda cells: "over-report" in cells and any("new" in cell for cell in cells))
    person.choose("Sort by", "Oldest first")
    person.sees("The oldest in words")
    until(lambda: any("over-report" in first for first in rows(person.page, "by_rule")[:1]))


@pytest.fixture(scope="module")
def world(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tasks")
    with pages.showing(folder, *world_of.options(folder)) as tracer:
        yield in_trouble(tracer, pages.url)


@pytest.fixture(scope="module")
def measured() -> Iterator[list[str]]:
    """A line for each task that was done; all of them are written at the end."""
    lines = ["| task | question | clicks | longest wait | all waits |", "| --- | --- | --- | --- | --- |"]
    yield lines
    ARTIFACTS.mkdir(exist_ok=True)
    (ARTIFACTS / "oncall-tasks.md").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "asked", [pytest.param(each, id=each.name, marks=[pytest.mark.long] * each.is_live) for each in TASKS]
)
def test_a_task_is_done(asked: Task, page: playwright.Page, world: World, measured: list[str]) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    person = Person(page, world)
    with chatting(world.tracer, *world_of.CHAT) if asked.is_live else nullcontext():
        person.open(asked.begin if isinstance(asked.begin, str) else asked.begin(world))
        asked.steps(person)
    assert person.clicks <= MAX_CLICKS
    waits = person.waits_s or [0.0]
    number = asked.name.partition("-")[0]
    measured.append(f"| {number} | {asked.question} | {person.clicks} | {max(waits):.1f} s | {sum(waits):.1f} s |")
    shoot(page, f"task-{asked.name}")

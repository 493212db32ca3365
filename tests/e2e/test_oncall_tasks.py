"""Tasks of somebody on call, each from the first page on, in three clicks at most.

A real engine has died of LMCache #2158, and requests of two others keep coming. The screenshots are left in test-artifacts/;
docs/dashboard.md shows them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import forks
import pytest
import real_engines
from browser import needs_chromium, open_row, playwright, rows, see, shoot
from live_traffic import chatting
from processes import SLOW_S, SharedDashboard, until

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytest.importorskip("vllm", reason="the engine that dies is driven by vLLM's scheduler")
pytestmark = needs_chromium
MAX_CLICKS = 3
OUR_WORDS = re.compile(r"\b(epoch|witness(es)?|drift)\b", re.IGNORECASE)


@dataclass
class Person:
    """Somebody before the first page; each click is counted."""

    page: playwright.Page
    url: str
    clicks: int = 0

    def open(self) -> None:
        self.page.goto(self.url)
        see(self.page, re.compile("died at"))

    def click(self, what: playwright.Locator) -> None:
        self.clicks += 1
        what.first.click()

    def go(self, page: str) -> None:
        """Open a page by the bar on top."""
        self.click(self.page.get_by_role("link", name=page, exact=True))

    def open_row(self, key: str, row: int = 0) -> None:
        self.clicks += 1
        until(lambda: len(rows(self.page, key)) > row)
        open_row(self.page, key, row)

    def died(self) -> playwright.Locator:
        """The first sentence of the first page."""
        return self.page.get_by_role("link", name=re.compile("died at"))


@pytest.fixture(scope="module")
def url(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard whose tracer has heard a real engine die, and hears two others."""
    folder = tmp_path_factory.mktemp("tasks")
    with pages.showing(folder) as tracer:
        about = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{tracer.grpc_port}", "OTEL_SERVICE_NAME": "vllm"}
        process = forks.start(
            real_engines.drive, folder, "stale", environment={**os.environ, **about}, out=folder / "engine.log"
        )
        process.join(SLOW_S)
        assert process.exitcode == 0, (folder / "engine.log").read_text()
        with chatting(tracer, "llama-a", "llama-b"):
            yield pages.url


@pytest.fixture
def person(page: playwright.Page, url: str) -> Iterator[Person]:
    page.set_viewport_size({"width": 1440, "height": 900})
    somebody = Person(page, url)
    somebody.open()
    yield somebody
    assert somebody.clicks <= MAX_CLICKS


def test_an_engine_died_and_why(person: Person) -> None:
    person.click(person.died())
    see(person.page, re.compile(r"^Request "))
    see(person.page, re.compile("AssertionError: "))
    see(person.page, "A cached lookup answer was handed out without regard to the computed tokens")
    shoot(person.page, "task-01-died")


def test_is_the_offload_worth_its_memory(person: Person) -> None:
    person.go("Efficiency")
    see(person.page, re.compile(r"[Ww]orth its memory"))
    see(
        person.page, re.compile(r"It holds [\d.]+ .iB of host memory")
    )  # the engine that died said so when it was alive
    see(person.page, "By engine and connector")
    range_shown = person.page.locator(".st-key-time_field input")
    playwright.expect(range_shown).to_have_value("now-1h to now")  # although its page came in a hurry
    shoot(person.page, "task-02-worth")


def test_a_request_by_a_part_of_its_id(person: Person) -> None:
    person.go("Requests")
    person.page.get_by_placeholder("Part of an id, a trace id, or a line of a log").fill("bug-0")
    until(lambda: {row[0][:5] for row in rows(person.page, "requests_table")} == {"bug-0"})
    person.open_row("requests_table")
    person.page.wait_for_url(re.compile("/request.*id=bug-0"))
    see(person.page, "Every step")
    shoot(person.page, "task-03-found")


def test_a_finding_is_understood_without_our_words(person: Person) -> None:
    person.click(person.died())
    see(person.page, "could: crash")
    proof = person.page.get_by_test_id("stVerticalBlock").filter(has_text="could: crash").last
    said = proof.inner_text()
    assert "The connector answered" in said
    assert not OUR_WORDS.search(said)
    person.click(person.page.get_by_text("What to do, and the exact numbers"))
    see(person.page, re.compile("upgrade from 0.3.10"))
    shoot(person.page, "task-04-understood")


def test_what_is_seen_is_shared(person: Person) -> None:
    page = person.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    person.click(page.get_by_role("button", name="Copy link"))
    see(page, "Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert re.search(r"from=20\d\d-.*to=20\d\d-", copied), "the range does not move with the clock"
    page.goto(copied)
    see(page, re.compile("died at"))
    shoot(page, "task-05-shared")


def test_a_request_is_compared_with_one_like_it(person: Person) -> None:
    person.click(person.died())
    person.click(person.page.get_by_role("link", name="Compare"))
    see(person.page, re.compile("Near in time"))
    person.open_row("offers")
    see(person.page, "What differs")
    playwright.expect(person.page.get_by_test_id("stVegaLiteChart")).to_have_count(4)
    shoot(person.page, "task-06-compared")


def test_with_the_keyboard_only(person: Person) -> None:
    page = person.page
    for _ in range(40):
        page.keyboard.press("Tab")
        if "died at" in page.evaluate("document.activeElement.closest('a')?.innerText ?? ''"):
            break
    page.keyboard.press("Enter")
    see(page, re.compile("AssertionError: "))
    shoot(page, "task-07-keyboard")
    assert person.clicks == 0


def test_two_engines_side_by_side(person: Person) -> None:
    person.go("Live")
    person.click(person.page.get_by_role("button", name="Fold all"))
    for engine in ("llama-a", "llama-b"):
        playwright.expect(person.page.get_by_role("button", name=re.compile(f"{engine} .*request"))).to_be_visible()
    shoot(person.page, "task-10-two-engines")

"""A real Chromium, and what a person does with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("playwright.sync_api", reason="the pages are tested with playwright")
from playwright import sync_api as playwright
from processes import SLOW_S, until

__all__ = [
    "ARTIFACTS", "CHROMIUM", "FLAGS", "HEAD_PX", "REFRESH_MS", "SCHEMES", "SLOW_MS", "Scheme", "box_of", "drag", "drawn",
    "holds", "needs_chromium", "open_row", "playwright", "query_of", "rows", "see", "see_table", "shoot", "switch_scheme",
    "table",
]  # fmt: skip

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
ARTIFACTS = Path(__file__).parents[2] / "test-artifacts"
SLOW_MS = SLOW_S * 1000
playwright.expect.set_options(timeout=SLOW_MS)
REFRESH_MS = 2_500
"""A page asks the tracer again every two seconds."""
HEAD_PX = 35
"""A table's line of headings."""
ROWS = """key => [...document.querySelectorAll(`.st-key-${key} tbody tr`)]
    .map(row => [...row.cells].map(cell => cell.innerText.trim()))"""
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
IS_DRAWN = """() => document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'
    && document.querySelector('[data-testid=stSkeleton]') === null"""
"""Whether Streamlit runs nothing for a page, and has sent all of it."""
IS_IN_SCHEME = """scheme => {
  const isLight = colour => colour.match(/\\d+/g).slice(0, 3).reduce((sum, each) => sum + Number(each), 0) > 460;
  const { backgroundColor } = getComputedStyle(document.querySelector('[data-testid=stApp]'));
  const labels = [...document.querySelectorAll('svg.marks .role-axis-label text')];
  return isLight(backgroundColor) === (scheme === 'light')
    && (labels.length === 0 || labels.some(each => isLight(getComputedStyle(each).fill) === (scheme === 'dark')));
}"""
"""Whether a page and its charts are drawn in a scheme."""
needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM} to look at the page with")


def see(page: playwright.Page, text: str | re.Pattern[str]) -> None:
    playwright.expect(page.get_by_text(text).first).to_be_visible()


def drawn(page: playwright.Page) -> None:
    """Wait until all of a page is drawn, once a part is seen. Asked at each frame: a slow machine rests between two
    refreshes for a moment only."""
    page.wait_for_function(IS_DRAWN)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shoot(page: playwright.Page, name: str, *, at_rest: bool = True) -> None:
    """Leave a picture of the page, once all of it is drawn. A page without an answer from its tracer is never `at_rest`."""
    if at_rest:
        drawn(page)
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"dashboard-{name}.png")


def switch_scheme(page: playwright.Page, scheme: Scheme) -> None:
    """Have a page shown light or dark, and wait until it is."""
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(IS_IN_SCHEME, arg=scheme)


def query_of(page: playwright.Page) -> dict[str, list[str]]:
    """The query of the page's address."""
    return parse_qs(urlsplit(page.url).query)


def holds(check: Callable[[], None]) -> None:
    """Repeat assertions until they hold: what a page shows at one moment may be in the middle of being drawn."""
    failed: list[AssertionError] = []

    def does() -> bool:
        try:
            check()
        except AssertionError as error:
            failed[:] = [error]
            return False
        return True

    until(does, why=lambda: failed[-1])


def box_of(element: playwright.Locator) -> playwright.FloatRect:
    """Where an element is, once it is anywhere."""
    found = list[playwright.FloatRect]()

    def is_anywhere() -> bool:
        """A refresh may draw it anew at any moment."""
        element.wait_for()
        found.extend(filter(None, [element.bounding_box()]))
        return bool(found)

    until(is_anywhere)
    return found[0]


def drag(element: playwright.Locator, begin: float, end: float, *, height: float = 0.5) -> None:
    """Press the mouse on an element and let go elsewhere on it: at shares of its width, on one share of its height."""
    element.scroll_into_view_if_needed()
    box, mouse = box_of(element), element.page.mouse
    y = box["y"] + box["height"] * height
    mouse.move(box["x"] + box["width"] * begin, y)
    mouse.down()
    mouse.move(box["x"] + box["width"] * end, y, steps=8)
    mouse.up()


def rows(page: playwright.Page, key: str) -> list[list[str]]:
    shown: list[list[str]] = page.evaluate(ROWS, key)
    return shown


def see_table(page: playwright.Page, key: str) -> list[list[str]]:
    """Wait until a table shows rows; those of another question may still be there."""
    until(lambda: len(rows(page, key)) > 0)
    return rows(page, key)


def table(page: playwright.Page, key: str) -> playwright.Locator:
    """A table, by its container's name."""
    return page.locator(f".st-key-{key}").get_by_role("table")


def open_row(page: playwright.Page, key: str, row: int = 0) -> None:
    """Click a row of a table, which leads to another address."""
    table(page, key).locator("tbody tr").nth(row).click()

"""A real Chromium, and what a person does with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

pytest.importorskip("playwright.sync_api", reason="the pages are tested with playwright")
from playwright import sync_api as playwright

__all__ = [
    "ARTIFACTS", "CHROMIUM", "FLAGS", "HEAD_PX", "REFRESH_MS", "SCHEMES", "SLOW_MS", "Scheme", "drawn", "needs_chromium",
    "open_row", "playwright", "see", "shoot",
]  # fmt: skip

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
ARTIFACTS = Path(__file__).parents[2] / "test-artifacts"
SLOW_MS = 120_000
REFRESH_MS = 2_500
"""A page asks the tracer again every two seconds."""
HEAD_PX, ROW_PX = 35, 26
"""A table's line of headings, and each of its rows."""
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM} to look at the page with")


def see(page: playwright.Page, text: str | re.Pattern[str]) -> None:
    playwright.expect(page.get_by_text(text).first).to_be_visible(timeout=SLOW_MS)


def drawn(page: playwright.Page) -> None:
    """Wait until all of a page is drawn, of which a part is seen."""
    run = page.get_by_test_id("stApp")
    playwright.expect(run).to_have_attribute("data-test-script-state", "notRunning", timeout=SLOW_MS)
    playwright.expect(page.get_by_test_id("stSkeleton")).to_have_count(0, timeout=SLOW_MS)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shoot(page: playwright.Page, name: str) -> None:
    """Leave a picture of the page, once all of it is drawn."""
    drawn(page)
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"dashboard-{name}.png")


def open_row(page: playwright.Page, key: str, row: int = 0) -> None:
    """Click a row of a table, once the page is drawn. The table is a canvas, so that is a click on a place."""
    drawn(page)
    table = page.locator(f".st-key-{key}").get_by_test_id("stDataFrame")
    table.click(position={"x": 60, "y": HEAD_PX + ROW_PX * (row + 0.5)}, timeout=SLOW_MS)

"""A page of a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def page() -> Iterator[Any]:
    from browser import CHROMIUM, FLAGS, SLOW_MS, playwright

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(SLOW_MS)
        yield page
        browser.close()

"""The conformance suite's page in a real Chromium: opened as a file, in both schemes, on a wide and a narrow screen."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="the pages are tested with playwright")
from browser import SCHEMES, needs_chromium, playwright
from conformance_reports import failure, folder_with_files, report
from contrast import unreadable

from kvtrail.connector.simulate.conformance import page as written

pytestmark = needs_chromium
TEXTS = (
    "p",
    "li",
    "td",
    "th",
    "code",
    "summary",
    "a",
    ".id",
    ".source",
    ".why",
    ".result",
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = folder_with_files(tmp_path_factory.mktemp("report"), trace="loaded-asynchronously.jsonl")
    return written.write(report(failures=[failure(details="Traceback\n" + "  a long line " * 40)]), folder)


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_read_on_any_screen(page: playwright.Page, file: Path, scheme: str, width: int) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(file.as_uri())
    for each in page.locator("summary").all():
        each.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width, "what is wide is scrolled within the page"
    assert not unreadable(page, TEXTS)
    assert said == [], "the policy refuses nothing that the page needs"

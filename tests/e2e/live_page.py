"""What a person sees of the live view, and does to it."""

from __future__ import annotations

import re
from collections.abc import Callable

from browser import SLOW_MS, playwright, see
from processes import until


def ready(page: playwright.Page) -> None:
    playwright.expect(page.locator(".state")).not_to_be_empty()
    see(page, re.compile(r"[1-9]\d* requests?"))


def facts(page: playwright.Page) -> str:
    return str(page.locator(".facts").inner_text())


def shown_range(page: playwright.Page) -> str:
    return facts(page).split(" · ")[0]


def selected(page: playwright.Page) -> str:
    return str(page.locator(".selected").inner_text()).split(" · ")[0]


def pixels(page: playwright.Page) -> str:
    return str(page.locator(".field canvas").evaluate("canvas => canvas.toDataURL()"))


def wait_for_answers(page: playwright.Page, count: int) -> None:
    """Wait for this number of updates."""
    wanted = int(page.locator(".live").get_attribute("data-answers") or 0) + count
    page.wait_for_function(
        "wanted => Number(document.querySelector('[data-testid=stBidiComponentIsolated]').shadowRoot"
        ".querySelector('.live').dataset.answers) >= wanted",
        arg=wanted,
        timeout=SLOW_MS * 2,
    )


def repeat(page: playwright.Page, act: Callable[[], object], seen: Callable[[], object]) -> None:
    """Do what the live page shows at once, again and again until it is seen: a refresh may swallow what a mouse does."""

    def is_seen_after_it() -> bool:
        act()
        page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        return bool(seen())

    until(is_seen_after_it)


def address_at_rest(page: playwright.Page) -> str:
    """The page's address, once updates do not change it: it follows a drag with a delay."""
    seen = [page.url]

    def unchanged() -> bool:
        wait_for_answers(page, 2)
        seen.append(page.url)
        return seen[-1] == seen[-2]

    until(unchanged)
    return seen[-1]


def span_s(page: playwright.Page) -> float:
    """How long the shown range is, as the line above the lanes has it."""
    begin, end = re.findall(r"\d\d:\d\d:\d\d(?:\.\d+)?", shown_range(page))
    seconds = [sum(float(part) * 60.0**n for n, part in enumerate(reversed(at.split(":")))) for at in (begin, end)]
    return (seconds[1] - seconds[0]) % 86_400

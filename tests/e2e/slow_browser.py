"""A browser on a slow machine, where what is close together on another is far apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from browser import REFRESH_MS, playwright


def tell_late(page: playwright.Page) -> None:
    """From now on, what a person chooses is told after the next refreshes. Streamlit's script has put it off by no time."""
    page.evaluate(
        "late => { const later = window.setTimeout;"
        " window.setTimeout = (call, ms, ...rest) => later(call, ms || late, ...rest); }",
        2 * REFRESH_MS,
    )


class Line:
    """The line from the server to a page that is not open yet; what the page is sent can be held up."""

    def __init__(self, page: playwright.Page) -> None:
        self._is_held_up = False
        self._waiting: list[Callable[[], None]] = []
        page.route_web_socket(re.compile("_stcore/stream"), self._connect)

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Meanwhile the page is sent nothing, and all of it afterwards."""
        self._is_held_up = True
        yield
        self._is_held_up = False
        while self._waiting:
            self._waiting.pop(0)()

    def _connect(self, browser: playwright.WebSocketRoute) -> None:
        def pass_on(message: str | bytes) -> None:
            if self._is_held_up:
                self._waiting.append(lambda: browser.send(message))
            else:
                browser.send(message)

        browser.connect_to_server().on_message(pass_on)

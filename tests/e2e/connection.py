"""The connection between a page and Streamlit: how often the page has refreshed, and what a slow machine would hold up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from browser import REFRESH_MS, playwright
from processes import until

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg


def delay_input(page: playwright.Page) -> None:
    """From now on, what a person enters is sent after the next refreshes. Streamlit's script has put it off by no time."""
    page.evaluate(
        "late => { const later = window.setTimeout;"
        " window.setTimeout = (call, ms, ...rest) => later(call, ms || late, ...rest); }",
        2 * REFRESH_MS,
    )


class Connection:
    """The websocket between Streamlit and a page that is not open yet."""

    def __init__(self, page: playwright.Page) -> None:
        self._page = page
        self._asked: Counter[str] = Counter()
        self._inputs = 0
        self._drawn = 0
        self._is_held_up = False
        self._waiting: list[Callable[[], None]] = []
        page.route_web_socket(re.compile("_stcore/stream"), self._connect)

    def wait_for_refreshes(self, count: int = 2) -> None:
        """Wait until the page has asked for a part of itself so many times, and, unless that is held up, been sent it."""
        asked = self._asked.copy()
        self._until(lambda: max((self._asked - asked).values(), default=0) >= count)
        if not self._is_held_up:
            drawn = self._drawn
            self._until(lambda: self._drawn > drawn)

    @contextmanager
    def sends_input(self) -> Iterator[None]:
        """What is done in it is input of which Streamlit hears before this ends."""
        inputs = self._inputs
        yield
        self._until(lambda: self._inputs > inputs)

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Meanwhile the page is sent nothing, and all of it afterwards."""
        self._is_held_up = True
        yield
        self._is_held_up = False
        while self._waiting:
            self._waiting.pop(0)()

    def _until(self, true: Callable[[], bool]) -> None:
        # Messages pass while playwright is asked something.
        until(lambda: (self._page.evaluate("0"), true())[1])

    def _connect(self, browser: playwright.WebSocketRoute) -> None:
        server = browser.connect_to_server()

        def from_browser(message: str | bytes) -> None:
            if isinstance(message, bytes) and (sent := BackMsg.FromString(message)).HasField("rerun_script"):
                if sent.rerun_script.is_auto_rerun:
                    self._asked[sent.rerun_script.fragment_id] += 1
                else:
                    self._inputs += 1
            server.send(message)

        def from_server(message: str | bytes) -> None:
            if self._is_held_up:
                self._waiting.append(lambda: self._pass_on(browser, message))
            else:
                self._pass_on(browser, message)

        browser.on_message(from_browser)
        server.on_message(from_server)

    def _pass_on(self, browser: playwright.WebSocketRoute, message: str | bytes) -> None:
        browser.send(message)
        if isinstance(message, bytes) and ForwardMsg.FromString(message).WhichOneof("type") == "script_finished":
            self._drawn += 1

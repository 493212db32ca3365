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

OF_PAGE, OF_PART = ForwardMsg.FINISHED_SUCCESSFULLY, ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY
"""How runs end that are not interrupted by others."""


def delay_input(page: playwright.Page) -> None:
    """From now on, what a person enters is sent after the next refreshes. Streamlit's script has put it off by no time."""
    page.evaluate(
        "late => { const later = window.setTimeout;"
        " window.setTimeout = (call, ms, ...rest) => later(call, ms || late, ...rest); }",
        2 * REFRESH_MS,
    )


class Connection:
    """The websocket between Streamlit and a page that is not open yet.

    The page sends input, and asks again and again for its parts that refresh. For each, Streamlit runs the whole page or that
    part; of several that wait it makes one run.
    """

    def __init__(self, page: playwright.Page) -> None:
        self._page = page
        self._asked: Counter[str] = Counter()  # refreshes, by part
        self._inputs: list[tuple[str, int]] = []  # each by its part of the page, and the runs that had started
        self._started = 0  # runs
        self._ends: dict[int, int] = {}  # of runs, by their numbers: how they ended
        self._drawn = 0  # runs with their end sent to the page
        self._is_held_up = False
        self._waiting: list[Callable[[], None]] = []
        page.route_web_socket(re.compile("_stcore/stream"), self._connect)

    def wait_for_refreshes(self, count: int = 2) -> None:
        """Wait until the page has asked for a part of itself this many times, and, unless that is held up, been sent it."""
        asked = self._asked.copy()
        self._until(lambda: max((self._asked - asked).values(), default=0) >= count)
        if not self._is_held_up:
            drawn = self._drawn
            self._until(lambda: self._drawn > drawn)

    @property
    def refreshes(self) -> int:
        """How often the page has asked for a part of itself."""
        return self._asked.total()

    @contextmanager
    def handles_input(self) -> Iterator[None]:
        """What is done in it is input. Streamlit has handled it when this ends, though its answer may be held up."""
        inputs = len(self._inputs)
        yield
        self._until(lambda: len(self._inputs) > inputs)
        part, started = self._inputs[-1]
        ended = OF_PART if part else OF_PAGE
        self._until(lambda: any(number > started and end == ended for number, end in self._ends.items()))

    def repeat(self, act: Callable[[], None]) -> None:
        """Act until the page sends it as input. A refresh may draw what is acted on anew, which swallows it: after two of
        them it is done again."""
        inputs = len(self._inputs)
        while len(self._inputs) == inputs:
            act()
            self._wait_for_input_or_refreshes(inputs)

    def _wait_for_input_or_refreshes(self, inputs: int) -> None:
        asked = self._asked.copy()
        self._until(lambda: len(self._inputs) > inputs or max((self._asked - asked).values(), default=0) >= 2)

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
                part = sent.rerun_script.fragment_id
                if sent.rerun_script.is_auto_rerun:
                    self._asked[part] += 1
                else:
                    self._inputs.append((part, self._started))
            server.send(message)

        def from_server(message: str | bytes) -> None:
            sent = ForwardMsg.FromString(message) if isinstance(message, bytes) else ForwardMsg()
            if sent.HasField("new_session"):
                self._started += 1
            is_end = sent.HasField("script_finished")
            if is_end:
                self._ends[self._started] = sent.script_finished

            def pass_on() -> None:
                browser.send(message)
                self._drawn += is_end

            if self._is_held_up:
                self._waiting.append(pass_on)
            else:
                pass_on()

        browser.on_message(from_browser)
        server.on_message(from_server)

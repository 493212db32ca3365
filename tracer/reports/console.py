"""Stepping through a history with single keys, on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import click

from kvtrail.tracer.replay.player import NoSuchStep, Player
from kvtrail.tracer.replay.selection import NotInHistory, requests_named
from kvtrail.tracer.reports import screen, terminal

_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|.", re.DOTALL)
_FORWARD = {"n", " ", "\x1b[C", "\x1b[B", "\x1bOC", "\x1bOB", "\r", "\n"}
_BACK = {"p", "\x1b[D", "\x1b[A", "\x1bOD", "\x1bOA", "\x7f", "\b"}
_FIRST = {"\x1b[H", "\x1bOH", "\x1b[1~"}
_LAST = {"\x1b[F", "\x1bOF", "\x1b[4~"}
_INTERRUPT, _END_OF_INPUT, _ESCAPE = "\x03", "\x04", "\x1b"


class Console:
    """Shows a player's steps, and moves it as the keys say, until `q`, the end of the input, or Ctrl-C."""

    def __init__(self, player: Player, *, read: Callable[[], str] = click.getchar) -> None:
        """`read` waits for what is typed next: one key or, if they came fast, several."""
        self.player = player
        self._keys = _keys(read)
        self._message = ""

    def run(self) -> None:
        """Until the person quits.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        try:
            self._page(screen.help_page(self.player, self._columns()))
            while True:
                self._draw(self._message)
                self._message = ""
                key = next(self._keys)
                if key == "q":
                    break
                self._do(key)
        except (EOFError, StopIteration):
            pass
        finally:
            click.echo()

    def _do(self, key: str) -> None:
        player = self.player
        if key in _FORWARD:
            self._tell(player.forward(), "This is the last step.")
        elif key in _BACK:
            self._tell(player.back(), "This is the first step.")
        elif key == "f":
            self._tell(player.forward_to_finding(), "No finding after this step.")
        elif key == "F":
            self._tell(player.back_to_finding(), "No finding before this step.")
        elif key in _FIRST:
            player.go(1)
        elif key in _LAST:
            player.go(len(player.events))
        elif key == "r":
            self._to_request()
        elif key == "o":
            self._only()
        elif key == "g":
            self._to_step()
        elif key == "e":
            self._page(screen.everything(player, columns=self._columns()))
        elif key == "?":
            self._page(screen.help_page(player, self._columns()))
        else:
            self._message = "? tells the keys."

    def _tell(self, moved: bool, otherwise: str) -> None:
        self._message = "" if moved else otherwise

    def _to_request(self) -> None:
        text = self._ask("request (an id, or its beginning): ")
        if not text:
            return
        try:
            first = min(self.player.stories[key][0] for key in requests_named(self.player.history, text))
        except NotInHistory as unknown:
            self._message = str(unknown)
            return
        self.player.go(first + 1)
        if self.player.number != first + 1:
            self._message = f"Its first step is {first + 1}, which is not among those shown."

    def _only(self) -> None:
        player = self.player
        event = player.here().event
        if player.following is not None:
            player.follow(None)
            self._message = "All requests."
        elif event.request is None:
            self._message = "This step is of no request."
        else:
            player.follow([(event.engine, event.request)])
            self._message = "Only this request; o for all again."

    def _to_step(self) -> None:
        text = self._ask("step: ")
        if not text:
            return
        try:
            self.player.go(int(text))
        except NoSuchStep as error:
            self._message = str(error)
        except ValueError:
            self._message = f"{text!r} is no number"

    def _ask(self, question: str) -> str:
        """A line of text, typed at the foot of the screen; empty where it is called off."""
        text = ""
        while True:
            room = max(1, self._columns() - len(question) - 1)
            self._draw(f"{question}{text[-room:]}_")
            key = next(self._keys)
            if key in "\r\n":
                return text.strip()
            if key == _ESCAPE:
                return ""
            if key in "\x7f\b":
                text = text[:-1]
            elif key.isprintable():
                text += key

    def _page(self, lines: Sequence[str]) -> None:
        """Lines however many they are, until a key is pressed."""
        self._show([*lines, "", click.style("Press a key.", dim=True)])
        if next(self._keys) == "q":
            raise EOFError

    def _draw(self, message: str) -> None:
        # The last line stays free: a terminal scrolls when it is written to its end.
        rows = terminal.height() - 1
        self._show(screen.moment(self.player, columns=self._columns(), rows=rows, message=message))

    def _show(self, lines: Sequence[str]) -> None:
        click.clear()
        terminal.echo("\n".join(lines))

    def _columns(self) -> int:
        return terminal.width() or terminal.NARROWEST * 2


def _keys(read: Callable[[], str]) -> Iterator[str]:
    """Single keys, until the input ends. Raises KeyboardInterrupt for Ctrl-C."""
    while typed := read():
        for key in _KEY.findall(typed):
            if key == _INTERRUPT:
                raise KeyboardInterrupt
            if key == _END_OF_INPUT:
                return
            yield key

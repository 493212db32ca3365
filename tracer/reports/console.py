"""Steps through a history with single keys, on a terminal."""

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
    """Shows a player's steps and moves it by keys, until `q`, the end of the input, or Ctrl-C."""

    def __init__(self, player: Player, *, read: Callable[[], str] = click.getchar) -> None:
        """`read` waits for the next input: one key, or several if they came fast."""
        self.player = player
        self._keys = _keys(read)
        self._message = ""

    def run(self) -> None:
        """Run until the user quits.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        try:
            self._page(screen.help_page(self.player, self._columns()))
            while True:
                self._draw(self._message)
                key = next(self._keys)
                if key == "q":
                    break
                self._message = self._do(key) or ""
        except (EOFError, StopIteration):
            pass
        finally:
            click.echo()

    def _do(self, key: str) -> str | None:
        """Carry out a key's command; returns a message to show, if any."""
        player = self.player
        if key in _FORWARD:
            return None if player.forward() else "This is the last step."
        if key in _BACK:
            return None if player.back() else "This is the first step."
        if key == "f":
            return None if player.forward_to_finding() else "No finding after this step."
        if key == "F":
            return None if player.back_to_finding() else "No finding before this step."
        if key == "r":
            return self._to_request()
        if key == "o":
            return self._only()
        if key == "g":
            return self._to_step()
        if key in _FIRST:
            player.go(1)
        elif key in _LAST:
            player.go(len(player.events))
        elif key == "e":
            self._page(screen.everything(player, columns=self._columns()))
        elif key == "?":
            self._page(screen.help_page(player, self._columns()))
        else:
            return "Press ? for the keys."
        return None

    def _to_request(self) -> str | None:
        if not (text := self._ask("request (an id, or its beginning): ")):
            return None
        try:
            first = 1 + min(self.player.requests[key][0] for key in requests_named(self.player.history, text))
        except NotInHistory as unknown:
            return str(unknown)
        self.player.go(first)
        return None if self.player.number == first else f"Its first step is {first}, which is not among those shown."

    def _only(self) -> str:
        player = self.player
        event = player.here().event
        if player.following is not None:
            player.follow(None)
            return "All requests."
        if event.request is None:
            return "This step belongs to no request."
        player.follow([(event.engine, event.request)])
        return "Only this request; o for all again."

    def _to_step(self) -> str | None:
        if not (text := self._ask("step: ")):
            return None
        try:
            self.player.go(int(text))
        except NoSuchStep as error:
            return str(error)
        except ValueError:
            return f"{text!r} is not a number"
        return None

    def _ask(self, question: str) -> str:
        """A line of text, typed at the foot of the screen; empty if Escape is pressed."""
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
        """Show all lines, even beyond the screen, until a key is pressed."""
        self._show([*lines, "", click.style("Press a key.", dim=True)])
        if next(self._keys) == "q":
            raise EOFError

    def _draw(self, message: str) -> None:
        # The last line stays free: a terminal scrolls when its last cell is written.
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

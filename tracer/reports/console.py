"""Steps through a history with single keys, on a terminal. The library draws what has changed, and again when the terminal
gets another size, and it reads keys one by one, also those that were pressed too early."""

from __future__ import annotations

import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from prompt_toolkit.application import Application
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    ConditionalContainer,
    Float,
    FloatContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output import Output
from prompt_toolkit.widgets import TextArea

from kvtrail.tracer.history.player import NoSuchStep, Player
from kvtrail.tracer.history.selection import NotInHistory, requests_named
from kvtrail.tracer.reports import screen

ESCAPE_S = 0.05
"""How long to wait for the rest of an escape sequence before Escape counts as a key of its own."""
Action = Callable[[], str | None]


@contextmanager
def keys_kept() -> Iterator[None]:
    """Keys that are pressed while a history is read are not shown, and wait for the console."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSANOW)  # any later moment would throw away what was typed before it
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


class Console:
    """Shows a player's steps and moves it by keys, until `q`, the end of the input, or Ctrl-C.

    Attributes:
        player: what is shown.
        message: what was read, and then what the last key had to say.
    """

    def __init__(self, player: Player, *, source: Input | None = None, output: Output | None = None) -> None:
        """`source` is where keys come from, and `output` where the screen is drawn; default: the terminal."""
        self.player = player
        self.message = "\n".join(screen.opening(player, None))
        self._text: Callable[[int], list[str]] | None = None
        """A longer text to scroll through in place of the step, by the columns that it may have."""
        self._top = 0
        self._answer: Callable[[str], str | None] | None = None
        """What to do with the line that is being typed, if one is."""
        self._steps = Window(
            FormattedTextControl(self._drawn, focusable=True, show_cursor=False, key_bindings=self._keys())
        )
        self._question = ""
        self._line = TextArea(
            prompt=lambda: self._question, multiline=False, height=1, accept_handler=lambda _: self._answered()
        )
        self._line.control.key_bindings = self._keys_of_line()
        asking = ConditionalContainer(self._line, Condition(lambda: self._answer is not None))
        choices = Float(CompletionsMenu(max_height=8, scroll_offset=1), xcursor=True, ycursor=True)
        self._application: Application[None] = Application(
            Layout(FloatContainer(HSplit([self._steps, asking]), [choices]), self._steps),
            full_screen=True,
            input=source,
            output=output,
        )
        self._application.ttimeoutlen = ESCAPE_S

    def run(self) -> None:
        """Run until the user quits.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        with suppress(EOFError):
            self._application.run()

    # Drawing.

    def _drawn(self) -> ANSI:
        size = self._application.output.get_size()
        rows = size.rows - (self._answer is not None)
        if self._text is None:
            keys = screen.SHORT_KEYS if self._answer is None else screen.LINE_KEYS
            lines = screen.moment(self.player, columns=size.columns, rows=rows, message=self.message, keys=keys)
        else:
            text = self._text(size.columns)
            self._top = max(0, min(self._top, len(text) - rows + 1))
            lines = screen.page(text, top=self._top, columns=size.columns, rows=rows)
        return ANSI("\n".join(lines))

    def _is_long(self) -> bool:
        """Whether a text is shown that does not fit."""
        size = self._application.output.get_size()
        return self._text is not None and len(self._text(size.columns)) >= size.rows

    # Keys.

    def _keys(self) -> KeyBindings:
        player, keys = self.player, KeyBindings()
        actions: tuple[tuple[Sequence[str], Action], ...] = (
            ([Keys.Any], lambda: "Press ? for the keys."),
            (
                ["n", " ", "right", "down", "enter", "c-j"],
                lambda: None if player.forward() else "This is the last step.",
            ),
            (["p", "left", "up", "backspace"], lambda: None if player.back() else "This is the first step."),
            (["f"], lambda: None if player.forward_to_finding() else "No finding after this step."),
            (["F"], lambda: None if player.back_to_finding() else "No finding before this step."),
            (["home"], lambda: player.go(1)),
            (["end"], lambda: player.go(len(player.events))),
            (["o"], self._only),
            (["r"], lambda: self._ask("request (an id, or its beginning): ", self._to_request, self._ids())),
            (["g"], lambda: self._ask("step: ", self._to_step)),
            (["e"], lambda: self._show(lambda columns: screen.everything(player, columns=columns))),
            (["?"], lambda: self._show(lambda columns: screen.help_page(player, columns))),
            (["escape"], lambda: None),
        )
        for names, act in actions:
            for name in names:
                keys.add(name, eager=name == "escape")(self._acting(act))
        is_long = Condition(self._is_long)
        for name, lines in {"down": 1, " ": 10, "pagedown": 10, "up": -1, "pageup": -10}.items():
            keys.add(name, filter=is_long)(partial(self._scroll, lines))
        keys.add("q")(lambda pressed: pressed.app.exit())
        keys.add("c-z")(lambda pressed: pressed.app.suspend_to_background())
        _add_ends(keys)
        return keys

    def _acting(self, act: Action) -> Callable[[KeyPressEvent], None]:
        """A key leaves the text that is shown, and does what it always does."""

        def pressed(_: KeyPressEvent) -> None:
            self._text, self.message = None, ""
            self.message = act() or ""

        return pressed

    def _keys_of_line(self) -> KeyBindings:
        keys = KeyBindings()
        keys.add("escape", eager=True)(lambda _: self._asked_enough())
        _add_ends(keys)
        return keys

    # What keys do.

    def _show(self, text: Callable[[int], list[str]]) -> None:
        self._text, self._top = text, 0

    def _scroll(self, lines: int, _: KeyPressEvent) -> None:
        self._top += lines

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

    def _ids(self) -> list[str]:
        """The ids that may be typed, in the order in which the requests come."""
        return list(dict.fromkeys(request for _, request in self.player.requests))

    def _to_request(self, text: str) -> str | None:
        try:
            first = 1 + min(self.player.requests[key][0] for key in requests_named(self.player.history, text))
        except NotInHistory as unknown:
            return str(unknown)
        self.player.go(first)
        return None if self.player.number == first else f"Its first step is {first}, which is not among those shown."

    def _to_step(self, text: str) -> str | None:
        try:
            self.player.go(int(text))
        except NoSuchStep as error:
            return str(error)
        except ValueError:
            return f"{text!r} is not a number"
        return None

    # A line that is typed.

    def _ask(self, question: str, answer: Callable[[str], str | None], choices: Sequence[str] = ()) -> None:
        """Let a line be typed at the foot of the screen."""
        self._question, self._answer, self._line.text = question, answer, ""
        self._line.completer = WordCompleter(list(choices), sentence=True)
        self._application.layout.focus(self._line)

    def _answered(self) -> bool:
        """The line is complete; returns that it need not be kept."""
        answer, text = self._answer, self._line.text.strip()
        self._asked_enough()
        if answer is not None and text:
            self.message = answer(text) or ""
        return False

    def _asked_enough(self) -> None:
        self._answer, self.message = None, ""
        self._application.layout.focus(self._steps)


def _add_ends(keys: KeyBindings) -> None:
    """Ctrl-C and Ctrl-D, which end it wherever one is."""
    for name in ("c-c", "<sigint>"):
        keys.add(name)(lambda pressed: pressed.app.exit(exception=KeyboardInterrupt))
    keys.add("c-d")(lambda pressed: pressed.app.exit())

"""A command in a real terminal, and what a person sees on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte
from processes import SLOW_S


class Terminal:
    """A terminal of some size with `kvtrail` in it, as its controlling terminal: it passes on Ctrl-C and new sizes."""

    def __init__(
        self,
        *arguments: object,
        columns: int = 80,
        rows: int = 24,
        folder: Path | None = None,
        kind: str = "xterm-256color",
    ) -> None:
        """`kind` is what it says of itself, as TERM."""
        self._ours, its = pty.openpty()
        self.folder = folder or Path()
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self._resize_terminal(columns, rows)
        clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvtrail", *map(str, arguments)],
            stdin=its, stdout=its, stderr=its, cwd=folder, env=clean | {"TERM": kind},
            start_new_session=True, preexec_fn=_as_from_a_shell,
        )  # fmt: skip
        os.close(its)
        self.raw = ""

    @property
    def screen(self) -> list[str]:
        """The lines that are seen now."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.screen)

    @property
    def last(self) -> list[str]:
        """The lines that are seen, up to the last that says something."""
        return self.text.rstrip().split("\n")

    def until(self, *texts: str | re.Pattern[str]) -> None:
        """Wait until all of the texts are seen at once. A screen comes in pieces: a part is seen before the rest."""
        wanted = [re.compile(re.escape(text)) if isinstance(text, str) else text for text in texts]
        deadline = time.monotonic() + SLOW_S
        while not all(text.search(self.text) for text in wanted):
            assert self._read(deadline), self.raw

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Read until the command has ended; returns its exit code."""
        deadline = time.monotonic() + SLOW_S
        while self._read(deadline):
            pass
        return self.process.wait(SLOW_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def sleeps(self) -> bool:
        """Whether the command waits for something, as in a read. Python sees a Ctrl-C that comes just before a read only when
        that returns."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    def _read(self, deadline: float) -> bool:
        """Take in what was written; False if no writer is left."""
        assert select.select([self._ours], [], [], max(0, deadline - time.monotonic()))[0], self.raw
        try:
            chunk = os.read(self._ours, 65536)
        except OSError:  # how Linux says that the other side of a terminal is closed
            return False
        self.raw += chunk.decode(errors="replace")
        self._stream.feed(chunk)
        return bool(chunk)

    def _resize_terminal(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _as_from_a_shell() -> None:
    """The terminal is the controlling one, and Ctrl-C ends: it is ignored by what was started in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)

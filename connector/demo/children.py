"""Child processes that never outlive their parent. Their logs go to files."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

PATIENCE_S = 5.0
"""Maximum time in seconds for a child to end after SIGTERM."""


class ChildDied(RuntimeError):
    """A child ended unexpectedly; the text says which, how, and where its log is."""


class Child:
    """A process in a session of its own, so that Ctrl-C reaches only the parent, which ends its children in order."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path, env: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        """`pass_fds`: file descriptors that it inherits."""
        self.name = name
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=pass_fds,
                env=dict(env),
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def check(self) -> None:
        """Raises ChildDied if the process has ended."""
        code = self.process.poll()
        if code is not None:
            how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()] or ["(empty)"]
            raise ChildDied(f"the {self.name} ended unexpectedly, {how}; the last line of {self.log}: {lines[-1]}")

    def end(self) -> None:
        """End it with SIGTERM, or if it does not end in time, with SIGKILL; returns when it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Children:
    """All children of this process. They end with the `with` block, the last one first.

    A signal that stops them may come at any moment, so its handler raises nothing: code that waits for a child sees it end.
    An exception from a handler can be swallowed by a callback. If it interrupts the `exec` behind a dataclass, Python ends by
    the signal although the exception was caught.

    Attributes:
        stopped: a signal has stopped them; no child is started any more.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._children: list[Child] = []

    def start(
        self, name: str, arguments: Sequence[str], *, log: Path, env: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> Child:
        """Start one; the arguments are those of `Child`. Raises ChildDied if they are stopped."""
        if not self.stopped:
            child = Child(name, arguments, log=log, env=env, pass_fds=pass_fds)
            self._children.append(child)
        if self.stopped:
            raise ChildDied(f"the {name} was stopped")
        return child

    def stop_at(self, *signals: signal.Signals) -> None:
        """Stop them when one of the signals comes; those that take too long are killed."""
        for number in signals:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGALRM, lambda *_: self._send(signal.SIGKILL))

    def _stop(self, *_: Any) -> None:
        self.stopped = True
        self._send(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)

    def _send(self, number: signal.Signals) -> None:
        for child in self._children:
            child.process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            child.end()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _die_with_parent() -> None:
    """Let this child end when the parent is killed (Linux only: prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)

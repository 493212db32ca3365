"""Child processes that never outlive their parent. Their logs go to files."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE_S = 5.0
"""Seconds that a child may take to end after SIGTERM."""


class ChildDied(RuntimeError):
    """A child ended unexpectedly; the text says which, how, and where its log is."""


class Child:
    """A process in a session of its own, so that Ctrl-C reaches only the parent, which ends its children in order."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path, env: Mapping[str, str], piped: bool = False
    ) -> None:
        """`piped`: the parent reads its standard output, which otherwise goes to the log."""
        self.name = name
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
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
        """End it with SIGTERM, and if that does not help with SIGKILL."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def _die_with_parent() -> None:
    """On Linux the children end even when the parent is killed (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)

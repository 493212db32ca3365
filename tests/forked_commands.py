"""Commands of kvtrail, each in a fork of one process that has imported what a sidecar needs.

Importing takes most of the three processor seconds of a start, and hundreds of tests want a sidecar of their own. Run as a
program, this file is the process that forks, before it has any thread. A line of JSON asks it to start a command, or how one
ended. It ends with the process of tests that started it, and so do its forks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn


class Forked:
    """A command that runs, or has ended: what the tests use of `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        out: Path,
        error: Path | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        """Start `kvtrail WORDS...` with this process's environment and folder; what it prints is added to files.

        Args:
            error: where its standard error goes, if not to `out`.
            limits: what of a sidecar's `Limits` is other than it is.
        """
        self.args = [*map(str, words)]
        places = os.getcwd(), str(out), str(error or out)
        out.touch()  # so that it can be read at once
        self.pid: int = _forking().ask("start", self.args, dict(os.environ), *places, dict(limits or {}))
        self.returncode: int | None = None
        """As of `subprocess.Popen`: negative if a signal ended it."""
        self._ends = os.pidfd_open(self.pid)

    def _has_ended(self, timeout_s: float | None) -> bool:
        """Whether it has, after this time at most. Unlike `select`, `poll` takes descriptors of any number."""
        poll = select.poll()
        poll.register(self._ends, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        if self.returncode is None and self._has_ended(0):
            self.returncode = os.waitstatus_to_exitcode(_forking().ask("end", self.pid))
            os.close(self._ends)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            self._has_ended(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Forking:
    """The process that forks, as its user sees it."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(self._end)

    def ask(self, *question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._process.communicate()


_forking = functools.cache(_Forking)


def _import() -> None:
    """What `kvtrail serve` imports until it has answered, also in functions."""
    from kvtrail.tracer.rules.rule_set import all_rules

    for each in (
        "encodings.idna", "grpc._server", "kvtrail.tracer.commands.serve", "kvtrail.tracer.serve.server", "pydantic.v1",
        "uvicorn.lifespan.on", "uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl",
        "uvicorn.protocols.websockets.websockets_sansio_impl",
    ):  # fmt: skip
        importlib.import_module(each)
    all_rules()


def _fork_on_demand(questions: IO[bytes], answers: IO[bytes]) -> None:
    alive: set[int] = set()
    for line in questions:
        what, *rest = json.loads(line)
        if what == "start":
            if (answer := os.fork()) == 0:
                _run(*rest)
            alive.add(answer)
        else:
            _, answer = os.waitpid(rest[0], 0)
            alive.remove(rest[0])
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _run(
    words: list[str], environment: Mapping[str, str], folder: str, out: str, error: str, limits: Mapping[str, int]
) -> NoReturn:
    """`python -m kvtrail WORDS...` in a fork."""
    from kvtrail.tracer.serve import limits as of_sidecars

    of_sidecars.Limits = functools.partial(of_sidecars.Limits, **limits)  # type: ignore[misc, assignment]
    for path, number in ((os.devnull, 0), (out, 1), (error, 2)):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: Any = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["kvtrail", *words]
        runpy.run_module("kvtrail", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of an interpreter does
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _import()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, which then still ask how their sidecars ended
    gc.freeze()  # a collection in a fork would copy what it looks at
    _fork_on_demand(sys.stdin.buffer, sys.stdout.buffer)

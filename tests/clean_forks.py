"""Functions in forks of a clean process: one without threads, whose locks a fork would inherit. A fork may kill itself."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any


class CleanForks:
    """A process that imports what the functions need once, and forks for each call."""

    def __init__(self) -> None:
        context = get_context("forkserver")
        self._calls, theirs = context.Pipe()
        self._process = context.Process(target=_fork_for_each_call, args=(theirs,))
        self._process.start()
        theirs.close()

    def run(self, function: Callable[..., None], *arguments: Any) -> int:
        """The exit code of a fork that calls this function of a module; negative if a signal ended it."""
        self._calls.send((function, arguments))
        code: int = self._calls.recv()
        return code

    def close(self) -> None:
        self._calls.close()
        self._process.join()


def _fork_for_each_call(calls: Connection) -> None:
    while True:
        try:
            function, arguments = calls.recv()
        except EOFError:
            return
        if not (child := os.fork()):
            code = 1
            try:
                function(*arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        calls.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

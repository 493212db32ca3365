"""Programs that need vLLM, each in a fork of one process that has imported it already.

Importing vLLM takes eight seconds, and many tests want an engine that may crash, or a process with settings of its own. The
forks come from `multiprocessing`'s fork server, one for each process of tests, which starts with the first of them and has
started no thread when it forks.
"""

from __future__ import annotations

import atexit
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

SERVER = {
    "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[1] / place) for place in ("tests", "src")),
    "PYTHONHASHSEED": "0",  # LMCache's keys are hashes of Python's
    "PYTHONWARNINGS": "ignore:resource_tracker",  # an engine that crashes leaves its semaphores to be cleaned up
}
"""The fork server's own environment, beyond this process's."""
IMPORTED = "vllm_imported"
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload([IMPORTED])


def start(
    call: Callable[..., None],
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    out: Path,
    error: Path | None = None,
) -> ForkServerProcess:
    """Start a function of a module on the path, as a program of its own; what it prints goes to files.

    Args:
        environment: all of it; this process's without one.
        folder: the current folder in it.
        error: where its standard error goes, if not to `out`.
    """
    given = dict(os.environ if environment is None else environment)
    places = str(folder or Path.cwd()), str(out), str(error or out)
    process = _CONTEXT.Process(target=_fork, args=(call, arguments, given, *places))
    with patch.dict(os.environ, SERVER):
        process.start()
    return process


def run(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)`."""
    with tempfile.TemporaryDirectory() as place:
        out, error = Path(place, "out"), Path(place, "error")
        words = [*map(str, command)]
        process = start(_run_python, words, environment=environment, folder=folder, out=out, error=error)
        try:
            process.join()
        finally:
            process.kill()  # does nothing to one that has ended
        assert process.exitcode is not None
        return subprocess.CompletedProcess(words, process.exitcode, out.read_text(), error.read_text())


def _fork(
    call: Callable[..., None],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    folder: str,
    out: str,
    error: str,
) -> None:
    for path, number in ((out, 1), (error, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    assert IMPORTED in sys.modules, f"the fork server could not import {IMPORTED}"
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    code: Any = 1
    try:
        call(*arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # which a fork of multiprocessing leaves out
        sys.stdout.flush()
        sys.stderr.flush()
    sys.exit(code)


def start_workers_as_forks() -> None:
    """Have vLLM start its workers as forks of this process, as it does by default on a GPU; on a CPU it has each import all
    of vLLM again."""
    from vllm.v1.executor import multiproc_executor

    vars(multiproc_executor)["get_mp_context"] = lambda: get_context("fork")


def _run_python(command: list[str]) -> None:
    """What `python COMMAND...` does with `-m MODULE ...` or `FILE ...`."""
    is_module = command[0] == "-m"
    sys.argv = command[is_module:]
    beside = os.getcwd() if is_module else str(Path(command[0]).resolve().parent)
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [beside, *more, *sys.path]
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")

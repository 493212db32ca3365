"""Runs kvtrail's commands in children of one process that has imported vLLM: that import takes longer than a short session.

    python prepared.py < commands.jsonl     one JSON object a line: arguments, environment, folder, limit_s

It answers each with a JSON line: `code`, the exit code, or null if the command had not ended after `limit_s` seconds. The
folder is the command's current one; what it prints is there, as `stdout` and `stderr`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from select import select
from typing import Any

from kvtrail.__main__ import main as kvtrail
from kvtrail.connector.commands.options import vllm_ready
from kvtrail.connector.simulate import tiny_model

IMPORTED = (
    "kvtrail.connector.commands.conformance",
    "kvtrail.connector.simulate.run",
    "vllm.distributed.kv_transfer.kv_connector.factory",
    "vllm.engine.arg_utils",
    "vllm.v1.core.sched.scheduler",
)


def run(arguments: list[str], environment: Mapping[str, str], folder: Path) -> None:
    """Be the command; does not return."""
    os.setsid()
    os.chdir(folder)
    os.environ.update(environment)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    code = 70
    try:
        kvtrail(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(child: int, limit_s: float) -> int | None:
    """The exit code of a child, or None if it was killed after this number of seconds."""
    descriptor = os.pidfd_open(child)
    ready = bool(select([descriptor], [], [], limit_s)[0])
    os.close(descriptor)
    if not ready:
        os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status) if ready else None


def main() -> None:
    vllm_ready("kvtrail conformance")
    for name in IMPORTED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        # What vLLM asks a process of its own about the model, it asks once.
        tiny_model.engine_config(Path(folder), None)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if not (child := os.fork()):
            run(asked["arguments"], asked["environment"], Path(asked["folder"]))
        print(json.dumps({"code": ended(child, asked["limit_s"])}), flush=True)


if __name__ == "__main__":
    main()

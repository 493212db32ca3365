"""Real vLLM engines, as who asks them sees them: one alone, or two, one prefilling for the other, with a router between them.

The connector of two is vLLM's own, unmodified: by default the NixlConnector, over UCX on loopback.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from kvtrail.connector.demo.engine_process import END, READY, Answer
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.simulate.pairs.router import ASKED_TO_PREFILL

PREFILL, DECODE, ALONE = "prefill", "decode", "alone"
"""The engines, and their services in the spans."""
AT_KVTRAIL = "kvtrail.connector"
"""The module path of a connector that is traced under its own name, since vLLM compares that."""
ENVIRONMENT = {
    "UCX_TLS": "tcp,self,sysv,posix",  # UCX's transports that need no network card
    "PYTHONHASHSEED": "0",  # both engines hash blocks alike
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
}
SLOW_S = 240.0
"""What a slow machine needs at most; only what hangs takes so long."""
AT_ONCE = 2
"""Requests that the router has under way: the block pool of an engine holds about three."""
T = TypeVar("T")


def nixl(name: str = "NixlConnector", **extra: Any) -> dict[str, Any]:
    """The `kv_transfer_config` of a NIXL connector with this extra configuration."""
    return {
        "kv_connector": name,
        "kv_connector_module_path": AT_KVTRAIL,
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": extra,
    }


class EngineDied(RuntimeError):
    """The engine's process has ended before it answered."""


class AskedEngine:
    """An engine's process, `engine_process`, asked over a connection.

    Attributes:
        ready: ends when it takes requests.
    """

    def __init__(self, name: str, connection: Connection, log: Path) -> None:
        """`log` is the file to which the process writes."""
        self.name, self.log = name, log
        self._connection = connection
        self._changes = threading.Lock()
        self._died = False
        self._numbers = count(READY)
        self._awaited: dict[int, tuple[Future[Any], Callable[[Any], object]]] = {}
        """By the number of a question: its answer, and what gets those before the last one."""
        _, self.ready = self._expected()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, job: DemoRequest, params: Mapping[str, Any] | None = None) -> Future[Answer]:
        """Send it a request with these `kv_transfer_params`; the answer raises EngineDied if the engine dies."""
        return self._asked("ask", job.id, job.prompt, job.max_tokens, params)

    def run_all(
        self, jobs: Sequence[DemoRequest], on_progress: Callable[[int], object] = lambda done: None
    ) -> Future[Any]:
        """Have it run these to their ends, and nothing beside them: their generated tokens, by id. `on_progress` is called
        with how many have ended."""
        return self._asked("run_all", jobs, on_progress=on_progress)

    def forget(self) -> None:
        """Empty its prefix cache."""
        self._asked("forget")

    def kept(self) -> int:
        """How many ended requests have blocks that it keeps."""
        kept: int = self._asked("kept").result(SLOW_S)
        return kept

    def ask_to_end(self) -> None:
        """Have it end."""
        self._asked(END)

    def _asked(
        self, method: str, *arguments: Any, on_progress: Callable[[Any], object] = lambda value: None
    ) -> Future[Any]:
        number, answer = self._expected(on_progress)
        with suppress(OSError):  # it has died: whoever waits for an answer learns that from `_read`
            self._connection.send((method, number, *arguments))
        return answer

    def _expected(self, on_progress: Callable[[Any], object] = lambda value: None) -> tuple[int, Future[Any]]:
        answer: Future[Any] = Future()
        with self._changes:
            number = next(self._numbers)
            self._awaited[number] = answer, on_progress
            if self._died:
                answer.set_exception(EngineDied(self.name))
        return number, answer

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, is_last, value = self._connection.recv()
                with self._changes:
                    answer, on_progress = self._awaited[number]
                    if is_last:
                        del self._awaited[number]
                (answer.set_result if is_last else on_progress)(value)
        with self._changes:
            self._died = True
            for answer, _ in self._awaited.values():
                answer.set_exception(EngineDied(f"{self.name}: {self.log.read_text(errors='replace')[-3000:]}"))


def prefilled(engine: AskedEngine, job: DemoRequest) -> Mapping[str, Any]:
    """Have a request prefilled; the params for the engine that decodes it."""
    params = engine.ask(replace(job, max_tokens=1), ASKED_TO_PREFILL).result(SLOW_S).params
    assert params is not None, f"{job.id} was not handed over"
    return params


def at_once(call: Callable[[DemoRequest], T], jobs: Sequence[DemoRequest]) -> list[T]:
    """The call's results for the jobs, with a few under way at a time."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(call, jobs))

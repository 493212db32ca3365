"""Clients of real vLLM engines: a single engine, or a prefill engine and a decoding engine with a router between them.

Two engines use vLLM's own, unmodified connector: by default the NixlConnector, over UCX on loopback.
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
"""The module path of a connector that is traced under its own name, since vLLM compares this name."""
ENVIRONMENT = {
    "UCX_TLS": "tcp,self,sysv,posix",  # UCX's transports that need no network card
    "PYTHONHASHSEED": "0",  # both engines hash blocks alike
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
}
SLOW_S = 240.0
"""Timeout in seconds. Even a slow machine needs less, so only a hanging operation takes this long."""
AT_ONCE = 2
"""Number of concurrent requests of the router: the block pool of an engine holds about three."""
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
    """The client of an engine's process (`engine_process`), over a connection.

    Attributes:
        ready: completes when the engine takes requests.
    """

    def __init__(self, name: str, connection: Connection, log: Path) -> None:
        """`log` is the file to which the process writes."""
        self.name, self.log = name, log
        self._connection = connection
        self._changes = threading.Lock()
        self._died = False
        self._numbers = count(READY)
        self._awaited: dict[int, tuple[Future[Any], Callable[[Any], object]]] = {}
        """By the number of a call: its last answer, and the callback for earlier answers."""
        _, self.ready = self._expected()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, job: DemoRequest, params: Mapping[str, Any] | None = None) -> Future[Answer]:
        """Send it a request with these `kv_transfer_params`; the answer raises EngineDied if the engine dies."""
        return self._asked("ask", job.id, job.prompt, job.max_tokens, params)

    def run_all(
        self, jobs: Sequence[DemoRequest], on_progress: Callable[[int], object] = lambda done: None
    ) -> Future[Any]:
        """Let it run these requests to their ends, and nothing else; gives their generated tokens, by id. `on_progress` is
        called with the number of ended requests."""
        return self._asked("run_all", jobs, on_progress=on_progress)

    def forget(self) -> None:
        """Empty its prefix cache."""
        self._asked("forget")

    def kept(self) -> int:
        """The number of ended requests whose blocks it keeps."""
        kept: int = self._asked("kept").result(SLOW_S)
        return kept

    def ask_to_end(self) -> None:
        """Tell it to end."""
        self._asked(END)

    def _asked(
        self, method: str, *arguments: Any, on_progress: Callable[[Any], object] = lambda value: None
    ) -> Future[Any]:
        number, answer = self._expected(on_progress)
        with suppress(OSError):  # it has died: `_read` reports this to those who wait for an answer
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
    """Let an engine prefill a request; returns the params for the decoding engine."""
    params = engine.ask(replace(job, max_tokens=1), ASKED_TO_PREFILL).result(SLOW_S).params
    assert params is not None, f"{job.id} was not handed over"
    return params


def at_once(call: Callable[[DemoRequest], T], jobs: Sequence[DemoRequest]) -> list[T]:
    """The call's results for the jobs, with a few calls at a time."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(call, jobs))

"""Two real vLLM engines of a pair as forks, the router between them, and the sidecar to which both report.

The connector is vLLM's own, unmodified: NIXL's over UCX or Mooncake's over TCP, both on loopback, or the ExampleConnector
over a folder.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import forks
from processes import Tracer, free_port, until
from processes import serve as start_sidecar

from kvtrail.connector.demo import engine_process
from kvtrail.connector.demo.engine_process import Answer
from kvtrail.connector.demo.pair import ALONE, AT_KVTRAIL, DECODE, ENVIRONMENT, PREFILL, SLOW_S, AskedEngine, nixl
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.simulate.pairs.router import ASKED_TO_PREFILL

ROLES = {PREFILL: "kv_producer", DECODE: "kv_consumer"}
"""Of a connector that asks for them."""
SHARED = "shared_storage_path"
"""The setting of the ExampleConnector that names its folder."""
MOONCAKE = {
    "VLLM_HOST_IP": "127.0.0.1",  # where it listens
    "MC_FORCE_TCP": "1",  # its transport that needs no network card
}
HOST_BYTES = 64 * 2**20
"""The host memory of the connector that offloads: plenty."""


def beside_offload(**extra: Any) -> dict[str, Any]:
    """The NixlConnector, with this extra configuration, beside one that offloads to host memory."""
    offload = {
        "kv_connector": "OffloadConnector",
        "kv_connector_module_path": AT_KVTRAIL,
        "kv_connector_extra_config": {"cpu_bytes_to_use": HOST_BYTES, "chunk_size": 64},
    }
    children = [{"kv_role": "kv_both", **child} for child in (nixl(**extra), offload)]
    return nixl("MultiConnector", connectors=children)


def mooncake(**extra: Any) -> dict[str, Any]:
    """The `kv_transfer_config` of a MooncakeConnector with this extra configuration."""
    return {**_of_one_role("MooncakeConnector"), "kv_connector_extra_config": {"mooncake_protocol": "tcp", **extra}}


def example() -> dict[str, Any]:
    """The `kv_transfer_config` of an ExampleConnector, with a folder below the pair's."""
    return {**_of_one_role("ExampleConnector"), "kv_connector_extra_config": {SHARED: "shared"}}


def _of_one_role(name: str) -> dict[str, Any]:
    return {"kv_connector": name, "kv_connector_module_path": AT_KVTRAIL, "kv_role": None}


class Served(engine_process._Served):
    """An engine whose clients may go away after some steps."""

    def __init__(self, connection: Connection, llm: Any) -> None:
        super().__init__(connection, llm)
        self._to_abort: dict[str, int] = {}
        step = self._engine.step

        def stepped() -> Any:
            self._abort_those_due()
            return step()

        self._engine.step = stepped

    def ask(  # type: ignore[override]  # it is asked for more
        self, number: int, external_id: str, prompt: Any, max_tokens: int, params: Any, aborted_after: int | None
    ) -> None:
        """`aborted_after`: the client goes away after this many steps."""
        super().ask(number, external_id, prompt, max_tokens, params)
        if aborted_after is not None:
            self._to_abort[external_id] = aborted_after

    def _abort_those_due(self) -> None:
        for external_id, steps in list(self._to_abort.items()):
            if steps > 0:
                self._to_abort[external_id] = steps - 1
                continue
            del self._to_abort[external_id]
            self._engine.abort_request([external_id])
            self._answer(external_id, (), "abort")


def serve(
    connection: Connection, folder: Path, connector: Mapping[str, Any] | None, *arguments: Any, **named: Any
) -> None:
    """`engine_process.serve` with such an engine."""
    import torch

    if connector is not None and connector["kv_connector"] == "MooncakeConnector":
        torch.accelerator.current_device_index = lambda: 0  # it asks for the number of its GPU
    engine_process._Served = Served  # type: ignore[misc]
    engine_process.serve(connection, folder, connector, *arguments, **named)


class Engine(AskedEngine):
    """An engine's process, which is a fork of one that has imported vLLM."""

    def __init__(
        self,
        name: str,
        folder: Path,
        connector: Mapping[str, Any] | None,
        environment: Mapping[str, str],
        *,
        hybrid: bool,
        step_tokens: int | None = None,
    ) -> None:
        """`step_tokens` is vLLM's `max_num_batched_tokens`, if that is not the model's own."""
        channel, theirs = Pipe()
        log = folder / f"{name}.log"
        own = {**os.environ, **ENVIRONMENT, **MOONCAKE, "OTEL_SERVICE_NAME": name, **environment}
        model = folder / "model"  # the same for both: NIXL compares its path
        overrides: dict[str, Any] = {} if step_tokens is None else {"max_num_batched_tokens": step_tokens}
        start = partial(serve, **overrides)
        self._process = forks.start(start, theirs, model, connector, hybrid, environment=own, out=log)
        theirs.close()
        super().__init__(name, channel, log)

    def ask(
        self,
        job: DemoRequest,
        params: Mapping[str, Any] | None = None,
        *,
        aborted_after: int | None = None,
        external_id: str = "",
    ) -> Future[Answer]:
        """
        Args:
            params: the `kv_transfer_params`.
            aborted_after: after this many steps its client goes away.
            external_id: the id that its client chose, if that is not the job's.
        """
        return self._asked("ask", external_id or job.id, job.prompt, job.max_tokens, params, aborted_after)

    def kill(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def end(self) -> None:
        """Have it end, if it has not, and wait for that."""
        self.ask_to_end()
        self._process.join(SLOW_S)
        if self._process.is_alive():
            self.kill()


class Asked(NamedTuple):
    """The `kv_transfer_params` of a request for both engines. Without those for the second one, it gets what the first one
    returns."""

    to_prefill: Mapping[str, Any] | None
    to_decode: Mapping[str, Any] | None


def _router_of(connector: str, bootstrap_port: int) -> Callable[[DemoRequest], Asked]:
    """What a router says of each request. Mooncake's engine that prefills is asked at this port where its workers are."""
    if connector == "ExampleConnector":
        return lambda job: Asked(None, {})
    if connector != "MooncakeConnector":
        return lambda job: Asked(None, None)
    numbers = count()

    def asked(job: DemoRequest) -> Asked:
        transfer_id = {"transfer_id": f"transfer-{next(numbers)}"}
        where = {"remote_engine_id": PREFILL, "remote_bootstrap_addr": f"http://127.0.0.1:{bootstrap_port}"}
        return Asked(
            {"do_remote_decode": True, "do_remote_prefill": False, **transfer_id},
            {"do_remote_decode": False, "do_remote_prefill": True, **transfer_id, **where},
        )

    return asked


class Pair:
    """An engine that prefills, one that decodes, and the sidecar that hears of both.

    Attributes:
        folder: theirs.
    """

    def __init__(
        self, prefill: Engine, decode: Engine, sidecar: Tracer, folder: Path, asks: Callable[[DemoRequest], Asked]
    ) -> None:
        """`asks`: what the router says of a request to both engines."""
        self.prefill = prefill
        self.decode = decode
        self.sidecar = sidecar
        self.folder = folder
        self._asks = asks

    def prefilled(self, job: DemoRequest, external_id: str = "") -> Mapping[str, Any]:
        """Have a request prefilled; the params for the engine that decodes it."""
        asked, one_token = self._asks(job), replace(job, max_tokens=1)
        if asked.to_decode is None:
            params = self.prefill.ask(one_token, ASKED_TO_PREFILL, external_id=external_id).result(SLOW_S).params
            assert params is not None, f"{job.id} was not handed over"
            return params
        self.prefill.ask(one_token, asked.to_prefill, external_id=external_id).result(SLOW_S)
        return asked.to_decode

    def wait_until_nothing_is_kept(self) -> None:
        """Until everything that was prefilled has been read, or its lease has ended."""
        until(lambda: self.prefill.kept() == 0)

    def end(self) -> None:
        """End both engines, and wait until the sidecar knows that they have ended."""
        for engine in (self.prefill, self.decode):
            engine.end()
        until(
            lambda: [each["ended_ns"] is not None for each in self.sidecar.get("/api/fleet")["engines"]] == [True, True]
        )


@contextmanager
def pair(folder: Path, connector: Mapping[str, Any], *, hybrid: bool, step_tokens: int | None = None) -> Iterator[Pair]:
    """A pair that has started. `connector` is the `kv_transfer_config` of both."""
    sidecar = start_sidecar(folder)
    engines: list[Engine] = []
    bootstrap_port = free_port()
    try:
        for name in ROLES:
            environment = {
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
                "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap_port),
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sidecar.grpc_port}",
            }
            own = _of_engine(connector, name, folder)
            engines.append(Engine(name, folder, own, environment, hybrid=hybrid, step_tokens=step_tokens))
        for engine in engines:
            engine.ready.result(SLOW_S)
        prefill, decode = engines
        yield Pair(prefill, decode, sidecar, folder, _router_of(connector["kv_connector"], bootstrap_port))
    finally:
        for engine in engines:
            engine.end()
        sidecar.end()


def _of_engine(connector: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """The `kv_transfer_config` of one of the two engines: with its role and id, if the connector asks for them."""
    own, extra = dict(connector), dict(connector["kv_connector_extra_config"])
    if "kv_role" in own:
        own |= {"kv_role": ROLES[name], "engine_id": name}
    if SHARED in extra:
        extra[SHARED] = str(folder / extra[SHARED])
    return {**own, "kv_connector_extra_config": extra}


@contextmanager
def alone(folder: Path, *, hybrid: bool = False) -> Iterator[Engine]:
    """An engine without any connector: its tokens are those that a pair has to give."""
    engine = Engine(ALONE, folder, None, {}, hybrid=hybrid)
    try:
        engine.ready.result(SLOW_S)
        yield engine
    finally:
        engine.end()

"""Two real vLLM engines of a pair as forks, and the sidecar to which both report."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import forks
from processes import Tracer, free_port, until
from processes import serve as start_sidecar

from kvtrail.connector.demo.pair import (
    ALONE,
    AT_KVTRAIL,
    DECODE,
    ENVIRONMENT,
    PREFILL,
    SLOW_S,
    PairedEngine,
    nixl,
    prefilled,
)  # fmt: skip
from kvtrail.connector.demo.paired_engine import serve
from kvtrail.connector.demo.workload import DemoRequest

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


class Engine(PairedEngine):
    """An engine's process, which is a fork of one that has imported vLLM."""

    def __init__(
        self,
        name: str,
        folder: Path,
        connector: Mapping[str, Any] | None,
        environment: Mapping[str, str],
        *,
        hybrid: bool,
    ) -> None:
        channel, theirs = Pipe()
        log = folder / f"{name}.log"
        own = {**os.environ, **ENVIRONMENT, "OTEL_SERVICE_NAME": name, **environment}
        model = folder / "model"  # the same for both: NIXL compares its path
        self._process = forks.start(serve, theirs, model, connector, hybrid, environment=own, out=log)
        theirs.close()
        super().__init__(name, channel, log)

    def kill(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def end(self) -> None:
        """Have it say goodbye, if it has not ended, and wait for its end."""
        self.say_goodbye()
        self._process.join(SLOW_S)
        if self._process.is_alive():
            self.kill()


class Pair:
    """An engine that prefills, one that decodes, and the sidecar that hears of both."""

    def __init__(self, prefill: Engine, decode: Engine, sidecar: Tracer) -> None:
        self.prefill = prefill
        self.decode = decode
        self.sidecar = sidecar

    def prefilled(self, job: DemoRequest, external_id: str = "") -> Mapping[str, Any]:
        """Have a request prefilled; the params for the engine that decodes it."""
        return prefilled(self.prefill, job, external_id)

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
def pair(folder: Path, trace: Path, connector: Mapping[str, Any], *, hybrid: bool) -> Iterator[Pair]:
    """A pair that has started. `trace` is for the sidecar's trace file, `connector` the `kv_transfer_config` of both."""
    sidecar = start_sidecar(folder, "--trace-file", str(trace))
    engines: list[Engine] = []
    try:
        for name in (PREFILL, DECODE):
            environment = {
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sidecar.grpc_port}",
            }
            engines.append(Engine(name, folder, connector, environment, hybrid=hybrid))
        for engine in engines:
            engine.wait_until_ready()
        prefill, decode = engines
        yield Pair(prefill, decode, sidecar)
    finally:
        for engine in engines:
            engine.end()
        sidecar.end()


@contextmanager
def alone(folder: Path, *, hybrid: bool = False) -> Iterator[Engine]:
    """An engine without any connector: its tokens are those that a pair has to give."""
    engine = Engine(ALONE, folder, None, {}, hybrid=hybrid)
    try:
        engine.wait_until_ready()
        yield engine
    finally:
        engine.end()

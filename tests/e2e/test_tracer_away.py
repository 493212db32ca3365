"""The tracer killed, hung, or never started: the engine's tokens are the same, and what was lost is counted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import forks
import pytest
from processes import SLOW_S, Tracer, free_port, until


class Engine:
    """A real engine in a process of its own: a round, a pause until `go_on`, another round, a pause, the end."""

    def __init__(self, folder: Path, connector: dict[str, Any] | None, grpc_port: int, **environ: str) -> None:
        self.log = folder / "engine.log"
        endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{grpc_port}"}
        self._pipe, its = Pipe()
        environment = {**os.environ, **endpoint, **environ}
        self.process = forks.start(two_rounds, its, folder, connector, environment=environment, out=self.log)
        its.close()

    def result(self) -> Any:
        """The tokens of the round, and how many events are lost by now; the latter alone at the end."""
        assert self._pipe.poll(SLOW_S), f"no result within {SLOW_S} s: {self.log.read_text()}"
        try:
            return self._pipe.recv()
        except EOFError:
            raise AssertionError(self.log.read_text()) from None

    def go_on(self) -> None:
        self._pipe.send("go on")

    def wait(self) -> int | None:
        """Its exit code."""
        self.process.join(SLOW_S)
        return self.process.exitcode

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def two_rounds(pipe: Connection, folder: Path, connector: dict[str, Any] | None) -> None:
    """What the engine's process does."""
    from kvtrail.connector.demo import workload
    from kvtrail.connector.recording.recorder import recorders
    from kvtrail.connector.simulate import tiny_model

    llm = tiny_model.build(folder / "model", connector)
    jobs = workload.shared_prefixes(requests=6)
    for number in range(2):
        tokens = {}
        for part in range(3):
            llm.reset_prefix_cache()
            named = [
                workload.DemoRequest(f"{number}{part}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs
            ]
            tokens.update({k.partition("-")[2]: v for k, v in workload.run(llm, named).items()})
        for recorder in recorders():
            recorder.flush(1.0)
        pipe.send({"tokens": tokens, "dropped": sum(r.dropped for r in recorders())})
        pipe.recv()
    llm.llm_engine.engine_core.shutdown()
    for recorder in recorders():
        recorder.close()  # what cannot be sent in two seconds is counted
    pipe.send({"dropped": sum(r.dropped for r in recorders())})


CONNECTOR = {"kv_connector": "OffloadConnector"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokens of an engine without any connector."""
    engine = Engine(tmp_path_factory.mktemp("plain"), None, 1)
    try:
        return engine.result()["tokens"]
    finally:
        engine.end()


@pytest.mark.parametrize("away", ["never started", "killed", "hung"])
def test_the_engine_does_not_notice(
    tmp_path: Path, start_tracer: Callable[..., Tracer], expected: Any, away: str
) -> None:
    tracer = None if away == "never started" else start_tracer()
    port = free_port() if tracer is None else tracer.grpc_port
    short = (
        {"OTEL_BSP_MAX_QUEUE_SIZE": "200"} if tracer is None else {}
    )  # a tracer that is slow at first must lose nothing
    engine = Engine(tmp_path, CONNECTOR, port, OTEL_EXPORTER_OTLP_TIMEOUT="1", **short)
    try:
        first = engine.result()
        if tracer is not None:
            assert first["dropped"] == 0
            tracer.process.send_signal(signal.SIGKILL if away == "killed" else signal.SIGSTOP)
        engine.go_on()
        second = engine.result()
        engine.go_on()
        end = engine.result()
        assert engine.wait() == 0
    finally:
        engine.end()
        if tracer is not None and away == "hung":
            tracer.process.send_signal(signal.SIGCONT)
    assert first["tokens"] == second["tokens"] == expected
    assert end["dropped"] > 0
    assert "no tracer answers at http://127.0.0.1" in engine.log.read_text()


def test_a_tracer_that_comes_back_receives_what_it_missed(
    tmp_path: Path, start_tracer: Callable[..., Tracer], expected: Any
) -> None:
    """Killed and started again on the same store and port: what waited in the ring arrives, and nothing is missing."""
    tracer = start_tracer()
    engine = Engine(tmp_path, CONNECTOR, tracer.grpc_port)
    try:
        assert engine.result()["tokens"] == expected
        tracer.kill()
        engine.go_on()
        assert engine.result()["tokens"] == expected
        again = start_tracer(store=tracer.store, grpc_port=tracer.grpc_port)
        until(lambda: len(list(again.get("/api/requests?limit=1000"))) == 36)
        engine.go_on()
        assert engine.result()["dropped"] == 0
        engine.wait()
    finally:
        engine.end()
    verdicts = {request["verdict"] for request in again.get("/api/requests?limit=1000")}
    assert verdicts == {"ok"}

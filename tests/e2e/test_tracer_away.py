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
    """A real engine in a process of its own: rounds, after each a pause until `go_on`, and the end."""

    def __init__(
        self, folder: Path, connector: dict[str, Any] | None, grpc_port: int, *, rounds: int = 1, **environ: str
    ) -> None:
        self.log = folder / "engine.log"
        endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{grpc_port}"}
        self._pipe, its = Pipe()
        environment = {**os.environ, **endpoint, **environ}
        self.process = forks.start(serve_rounds, its, folder, connector, rounds, environment=environment, out=self.log)
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


def serve_rounds(pipe: Connection, folder: Path, connector: dict[str, Any] | None, rounds: int) -> None:
    """What the engine's process does."""
    from kvtrail.connector.demo import workload
    from kvtrail.connector.recording.recorder import recorders
    from kvtrail.connector.simulate import tiny_model

    llm = tiny_model.build(folder / "model", connector)
    jobs = workload.shared_prefixes(requests=6)
    for number in range(rounds):
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


def test_the_engine_does_not_notice_that_no_tracer_was_started(tmp_path: Path, expected: Any) -> None:
    engine = Engine(tmp_path, CONNECTOR, free_port(), rounds=2, OTEL_BSP_MAX_QUEUE_SIZE="200")
    try:
        for _ in range(2):
            assert engine.result()["tokens"] == expected
            engine.go_on()
        assert engine.result()["dropped"] > 0
        assert engine.wait() == 0
    finally:
        engine.end()
    assert "no tracer answers at http://127.0.0.1" in engine.log.read_text()


@pytest.mark.costly("three rounds of a real engine")
def test_the_engine_does_not_notice_that_its_tracer_is_killed_comes_back_and_hangs(
    tmp_path: Path, start_tracer: Callable[..., Tracer], expected: Any
) -> None:
    """Killed and started again on the same store and port: what waited arrives, and nothing is missing. Of what it
    does not take while it hangs, the engine counts what is lost when it ends."""
    tracer = start_tracer()
    engine = Engine(tmp_path, CONNECTOR, tracer.grpc_port, rounds=3, OTEL_EXPORTER_OTLP_TIMEOUT="1")

    def verdicts() -> list[str]:
        return [request["verdict"] for request in again.get("/api/requests", limit=1000)]

    try:
        assert engine.result() == {"tokens": expected, "dropped": 0}
        tracer.kill()
        engine.go_on()
        assert engine.result() == {"tokens": expected, "dropped": 0}
        again = start_tracer(store=tracer.store, grpc_port=tracer.grpc_port)
        until(lambda: verdicts() == ["ok"] * 2 * len(expected), why=verdicts)
        again.process.send_signal(signal.SIGSTOP)
        engine.go_on()
        assert engine.result()["tokens"] == expected
        engine.go_on()
        assert engine.result()["dropped"] > 0
        assert engine.wait() == 0
    finally:
        engine.end()
    assert engine.log.read_text().count("no tracer answers at http://127.0.0.1") > 1

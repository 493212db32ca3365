"""The tracer killed, hung, or never started: the engine's tokens are the same, and what was lost is counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import Tracer, free_port, until

SCRIPT = """
import json, os, sys
from pathlib import Path
channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from kvtrail.connector.demo import workload
from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.recording.recorder import recorders
llm = tiny_model.build(Path(sys.argv[1]), json.loads(sys.argv[2]))
jobs = workload.shared_prefixes(requests=6)
for number in range(2):
    tokens = {}
    for part in range(3):
        llm.reset_prefix_cache()
        named = [workload.Job(f"{number}{part}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs]
        tokens.update({k.partition("-")[2]: v for k, v in workload.run(llm, named).items()})
    for recorder in recorders():
        recorder.flush(1.0)
    told = {"tokens": tokens, "dropped": sum(r.dropped for r in recorders())}
    print(json.dumps(told), file=channel, flush=True)
    sys.stdin.readline()
llm.llm_engine.engine_core.shutdown()
for recorder in recorders():
    recorder.close()
print(json.dumps({"dropped": sum(r.dropped for r in recorders())}), file=channel, flush=True)
"""


class Engine:
    """A real engine in a process of its own: a round, a pause until it is told to go on, another round, the end."""

    def __init__(self, folder: Path, connector: dict[str, Any] | None, grpc_port: int, **environ: str) -> None:
        self.log = folder / "engine.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(folder / "model"), json.dumps(connector)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{grpc_port}", **environ},
            )

    def told(self) -> Any:
        assert self.process.stdout is not None
        watchdog = threading.Timer(120, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        assert line, self.log.read_text()
        return json.loads(line)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


CONNECTOR = {"kv_connector": "OffloadConnector"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokens of an engine without any connector."""
    engine = Engine(tmp_path_factory.mktemp("plain"), None, 1)
    try:
        return engine.told()["tokens"]
    finally:
        engine.end()


@pytest.mark.parametrize("away", ["never started", "killed", "hung"])
def test_the_engine_does_not_notice(
    tmp_path: Path, start_tracer: Callable[..., Tracer], expected: Any, away: str
) -> None:
    tracer = None if away == "never started" else start_tracer()
    port = free_port() if tracer is None else tracer.grpc_port
    engine = Engine(tmp_path, CONNECTOR, port, OTEL_BSP_MAX_QUEUE_SIZE="200", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    try:
        first = engine.told()
        if tracer is not None:
            assert first["dropped"] == 0
            tracer.process.send_signal(signal.SIGKILL if away == "killed" else signal.SIGSTOP)
        engine.go_on()
        second = engine.told()
        engine.go_on()
        end = engine.told()
        assert engine.process.wait(30) == 0
    finally:
        engine.end()
        if tracer is not None and away == "hung":
            tracer.process.send_signal(signal.SIGCONT)
    assert first["tokens"] == second["tokens"] == expected
    assert end["dropped"] > 0
    assert "no tracer answers at http://127.0.0.1" in engine.log.read_text()


def test_a_tracer_that_comes_back_is_told_what_it_missed(
    tmp_path: Path, start_tracer: Callable[..., Tracer], expected: Any
) -> None:
    """Killed and started again on the same store and port: what waited in the ring arrives, and nothing is missing."""
    tracer = start_tracer()
    engine = Engine(tmp_path, CONNECTOR, tracer.grpc_port)
    try:
        assert engine.told()["tokens"] == expected
        tracer.kill()
        engine.go_on()
        assert engine.told()["tokens"] == expected
        again = start_tracer(store=tracer.store, grpc_port=tracer.grpc_port)
        until(lambda: len(list(again.get("/api/requests?limit=1000"))) == 36, seconds=40)
        engine.go_on()
        assert engine.told()["dropped"] == 0
        engine.process.wait(30)
    finally:
        engine.end()
    verdicts = {request["verdict"] for request in again.get("/api/requests?limit=1000")}
    assert verdicts == {"ok"}

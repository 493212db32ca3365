"""An engine ends, on vLLM's real scheduler and in its real processes, and a real tracer says how."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

import forks
import psutil
from ending_engine import OPEN, bare_engine
from fastapi.testclient import TestClient
from foreign import ForeignReceiver, receiving
from processes import SLOW_S, Tracer, serve, until

from kvtrail.tracer.events.semconv import NO_END_RECORD
from kvtrail.tracer.liveness.engine import CONTACT_NS
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

MISMATCH = "AssertionError: Mismatch in tokens to load"


def core_process(folder: Path) -> None:
    """vLLM's engine core in a process of its own, which the bug kills."""
    from kvtrail.connector.demo import workload
    from kvtrail.connector.simulate import tiny_model

    transfer = {
        "kv_connector": "Faulty:stale-lookup:OffloadConnector", "kv_connector_module_path": "kvtrail.connector",
    }  # fmt: skip
    llm = tiny_model.build(folder / "model", transfer)
    llm.reset_prefix_cache()
    workload.run(llm, workload.stale_lookup())


def environment(endpoint: str, **more: str) -> dict[str, str]:
    return {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50", **more}


def engine_of(tracer: Tracer) -> dict[str, Any]:
    (engine,) = tracer.get("/api/fleet")["engines"]
    return engine  # type: ignore[no-any-return]


def ended(tracer: Tracer, log: Path) -> dict[str, Any]:
    """The engine, once it is known how it ended."""

    def has() -> bool:
        engines = tracer.get("/api/fleet")["engines"]
        return bool(engines) and engines[0]["ended_ns"] is not None

    until(has, why=log.read_text)
    return engine_of(tracer)


@pytest.mark.parametrize("end", ["killed", "broken", "drained"])
def test_a_tracer_says_how_an_engine_ended(tmp_path: Path, end: str) -> None:
    tracer = serve(tmp_path)
    log, (pipe, its) = tmp_path / "engine.log", Pipe()
    try:
        engine = forks.start(
            bare_engine, its, tmp_path, end, environment=environment(f"http://127.0.0.1:{tracer.grpc_port}"), out=log
        )
        its.close()
        assert pipe.poll(SLOW_S), log.read_text()
        pipe.recv()
        if end == "killed":
            until(lambda: engine_of(tracer)["state"] == "running", why=log.read_text)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
        engine.join(SLOW_S)
        reported = ended(tracer, log)
        outcomes = {row["external"]: row["outcome"] for row in tracer.get("/api/requests")}
        statements = [each["kind"] for each in tracer.get("/api/status")["statements"]]
    finally:
        tracer.end()
    expected = {"killed": ("died", NO_END_RECORD, 6), "broken": ("died", "RuntimeError: the device is lost", 6)}
    assert (reported["state"], reported["ended_by"], reported["lost"]) == expected.get(end, ("drained", None, 0))
    assert reported["cause"] is None
    assert set(outcomes) == {*OPEN}
    assert set(outcomes.values()) == {"finished" if end == "drained" else "lost"}
    assert statements == ["well" if end == "drained" else "death"]


def test_an_engine_killed_with_all_its_processes_has_lost_contact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is gone says nothing: this cannot be distinguished from a broken network."""
    ahead_ns, real = [0], time.monotonic_ns
    log, (pipe, its) = tmp_path / "engine.log", Pipe()
    with receiving() as receiver:
        engine = forks.start(bare_engine, its, tmp_path, "killed", environment=heard(receiver), out=log)
        its.close()
        assert pipe.poll(SLOW_S), log.read_text()
        exporting = psutil.Process(pipe.recv())
        until(lambda: receiver.spans("kv.recorder"), why=log.read_text)
        exporting.kill()
        engine.kill()
        engine.join(SLOW_S)
        came = [request.SerializeToString() for request in receiver.requests]
    monkeypatch.setattr("kvtrail.tracer.serve.receive.pipeline.time.monotonic_ns", lambda: real() + ahead_ns[0])
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), grace_ns=0)
    client = TestClient(application(pipeline, SqliteReader(tmp_path / "s.db"), pipeline.metrics))
    for payload in came:
        pipeline.ingest(payload, transport="grpc")
    states = []
    for wait_ns in (0, CONTACT_NS + 10**9):
        ahead_ns[0] += wait_ns
        pipeline.tidy()
        (engine_now,) = client.get("/api/fleet").json()["engines"]
        states.append((engine_now["state"], engine_now["ended_by"], engine_now["lost"]))
    outcomes = {row["external"]: row["outcome"] for row in client.get("/api/requests").json()}
    pipeline.close()
    assert states == [("running", None, 0), ("lost_contact", None, 6)]
    assert outcomes == dict.fromkeys(OPEN, "lost_contact")


def heard(receiver: ForeignReceiver) -> dict[str, str]:
    return environment(receiver.endpoint, KVTRAIL_HEARTBEATS="spans")


@pytest.mark.costly("starts a real engine")
@pytest.mark.parametrize("processes", ["0", "1"], ids=["in its caller's process", "in a process of its own"])
def test_a_real_engine_that_dies_of_the_stale_lookup_says_so(tmp_path: Path, processes: str) -> None:
    """vLLM's whole engine on the CPU, as in LMCache #2158; its tracer is ended and started again before anybody asks."""
    tracer, log = serve(tmp_path), tmp_path / "engine.log"
    try:
        endpoint = f"http://127.0.0.1:{tracer.grpc_port}"
        more = {"VLLM_ENABLE_V1_MULTIPROCESSING": processes, "PYTHONPATH": os.pathsep.join(sys.path)}
        engine = forks.start(core_process, tmp_path, environment=environment(endpoint, **more), out=log)
        engine.join(SLOW_S)
        assert engine.exitcode != 0
        reported = ended(tracer, log)
        until(lambda: tracer.get("/api/requests", status="failed"), why=log.read_text)
        tracer.end()
        tracer = serve(tmp_path, store=tracer.store)
        until(lambda: engine_of(tracer)["cause"], why=tracer.log.read_text)
        again = engine_of(tracer)
        (failed,) = tracer.get("/api/requests", status="failed")
        others = [row["outcome"] for row in tracer.get("/api/requests") if row["request"] != failed["request"]]
        (finding,) = tracer.get("/api/findings")
        window = {"from_ns": reported["ended_ns"] - 10**9, "to_ns": reported["ended_ns"] + 10**9}
        (death,) = tracer.get("/api/lanes", **window)["deaths"]
        first, *_ = tracer.get("/api/status")["statements"]
    finally:
        tracer.end()
    assert reported["state"] == "died"
    assert reported["ended_by"].startswith(MISMATCH)
    assert {name: again[name] for name in ("state", "ended_ns", "ended_by", "lost", "cause")} == {
        name: reported[name] for name in ("state", "ended_ns", "ended_by", "lost", "cause")
    }
    assert reported["lost"] == 1 + others.count("lost") > 1
    assert set(others) <= {"lost", "finished"}
    assert (failed["outcome"], finding["did"]) == ("failed", "engine died")
    assert reported["cause"]["request"] == failed["request"] == finding["request"]
    assert (death["at_ns"], death["ended_by"], death["lost"]) == (
        reported["ended_ns"],
        reported["ended_by"],
        reported["lost"],
    )
    assert first["text"].endswith(f" of AssertionError with {reported['lost']} open requests: a stale lookup")
    assert first["query"] == {"id": failed["request"], "engine": again["engine"]}

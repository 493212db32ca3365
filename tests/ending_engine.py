"""Engines that end with requests open, each a process: it is killed, breaks, drains, or is lost with all that is its own."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import forks
import psutil
from processes import SLOW_S, Tracer, until

ENDS = {"killed": "killed", "broken": "exception", "gone": "lost_contact", "drained": None}
"""How the engines end, by name, and the cause of death that this is."""
OPEN = [f"open-{number}" for number in range(6)]


def bare_engine(pipe: Connection, folder: Path, end: str) -> None:
    """An engine on the bare scheduler, with open requests; it waits to be killed, or shuts down as vLLM's does."""
    from kvtrail.connector.recording import recorder
    from kvtrail.connector.simulate.bare_scheduler import BareScheduler

    transfer = {"kv_connector": "OffloadConnector", "kv_connector_extra_config": {"chunk_size": 256}}
    bare = BareScheduler(folder / "engine", transfer)
    for name in OPEN:
        bare.add(name, list(range(10, 110)), 20 if end == "drained" else 200)
    for _ in range(20):
        bare.step()
    (recording,) = recorder.recorders()
    assert recording.flush(SLOW_S)
    pipe.send(recording._exporter.pid)  # type: ignore[attr-defined]
    if end == "killed":
        time.sleep(SLOW_S)
    try:  # as `EngineCoreProc.run_engine_core` does
        if end == "broken":
            raise RuntimeError("the device is lost")
        while bare.scheduler.has_unfinished_requests():
            bare.step()
        raise SystemExit
    finally:
        bare.scheduler.shutdown()


def end_all(folder: Path, tracer: Tracer) -> dict[str, str]:
    """Start an engine for each of the ends, and let it end so; returns the engines' ids."""
    engines: dict[str, str] = {}
    for name in ENDS:
        before = _states(tracer).keys()
        engine, exporting, log = _started(folder / name, tracer.grpc_port, name)
        try:
            until(lambda: _states(tracer).keys() - before, why=log.read_text)  # noqa: B023
            (engines[name],) = _states(tracer).keys() - before
            until(lambda: _states(tracer)[engines[name]] != "unseen", why=log.read_text)  # noqa: B023
            if name == "gone":
                psutil.Process(exporting).kill()
            if name in ("killed", "gone"):
                os.kill(engine.pid, signal.SIGKILL)
            engine.join()
        finally:
            engine.kill()
    return engines


def _started(folder: Path, grpc_port: int, name: str) -> tuple[Any, int, Path]:
    """An engine with open requests, the id of its export process, and its log. Each is of a service of its own: none
    replaces another."""
    folder.mkdir()
    pipe, its = Pipe()
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{grpc_port}",
        "OTEL_SERVICE_NAME": name,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    log = folder / "engine.log"
    end = "killed" if name == "gone" else name
    engine = forks.start(bare_engine, its, folder, end, environment=environment, out=log)
    its.close()
    assert pipe.poll(SLOW_S), log.read_text()
    return engine, pipe.recv(), log


def _states(tracer: Tracer) -> dict[str, str]:
    """The states of the engines, by id."""
    return {each["engine"]: each["state"] for each in tracer.get("/api/fleet")["engines"]}

"""An engine that ends with requests open, as a process: it is killed, breaks, or drains."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path

from processes import SLOW_S

OPEN = [f"open-{number}" for number in range(6)]


def bare_engine(pipe: Connection, folder: Path, end: str) -> None:
    """An engine on the bare scheduler, with open requests; it waits to be killed, or shuts down as vLLM's does."""
    from kvtrail.connector.recording import recorder
    from kvtrail.connector.simulate.stages import BareScheduler

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

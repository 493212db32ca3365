"""An engine dies, on vLLM's real scheduler: each request that had begun has a root, in a backend that is no kvtrail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

import forks
from foreign import ForeignReceiver, attributes, receiving
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from processes import SLOW_S, until

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import KEYS
from kvtrail.tracer.ingest import decode, protobuf
from kvtrail.tracer.model.findings import Verdict

OPEN = [f"open-{number}" for number in range(6)]
ENDED = [f"ended-{number}" for number in range(3)]
BUG = "stale-lookup"


def run(pipe: Connection, folder: Path, death: str) -> None:
    """An engine's process. Some requests end, others are in the middle when it is killed; or a bug kills it."""
    from kvtrail.connector.demo.workload import stale_lookup
    from kvtrail.connector.recording import recorder
    from kvtrail.connector.simulate.bare_scheduler import BareScheduler
    from kvtrail.connector.simulate.scenario import Workers

    transfer = {
        "kv_connector": f"Faulty:{BUG}:OffloadConnector" if death == BUG else "OffloadConnector",
        "kv_connector_module_path": "kvtrail.connector",
        "kv_connector_extra_config": {"chunk_size": 256},
        "kv_load_failure_policy": "recompute",
    }
    bare = BareScheduler(folder / "engine", transfer, workers=Workers(latest_steps=6, seed=1))
    if death == BUG:
        for job in stale_lookup():
            bare.add(job.id, list(job.prompt), job.max_tokens)
    else:
        for name in ENDED:
            bare.add(name, list(range(300)), 4)
    while bare.scheduler.has_unfinished_requests():
        bare.step()
    for name in OPEN:
        bare.add(name, list(range(10, 110)), 200)
    for _ in range(20):
        bare.step()
    if death == "exit":
        return
    (recording,) = recorder.recorders()
    assert recording.flush(SLOW_S)
    pipe.send("in the middle")
    time.sleep(SLOW_S)


def engine_that_dies(receiver: ForeignReceiver, folder: Path, death: str) -> None:
    """Run an engine until it has died, and what it leaves has come."""
    pipe, its = Pipe()
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    engine = forks.start(run, its, folder, death, environment=environment, out=folder / "engine.log")
    its.close()
    try:
        if death.startswith("SIG"):
            assert pipe.poll(SLOW_S), (folder / "engine.log").read_text()
            pipe.recv()
            assert engine.pid is not None
            os.kill(engine.pid, getattr(signal, death))
        engine.join(SLOW_S)
        until(lambda: receiver.spans("kv.recorder"), why=(folder / "engine.log").read_text)
    finally:
        engine.kill()
        engine.join()


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ForeignReceiver]:
    """What comes of an engine that dies so: each dies once."""

    @cache
    def died(death: str) -> ForeignReceiver:
        with receiving() as receiver:
            engine_that_dies(receiver, tmp_path_factory.mktemp("engine"), death)
        return receiver

    return died


@pytest.mark.parametrize("death", ["SIGKILL", "SIGTERM", BUG, "exit"])
def test_every_request_has_a_root(died: Callable[[str], ForeignReceiver], death: str) -> None:
    receiver = died(death)
    begun, roots = receiver.by_request("kv.request.start"), receiver.by_request("kv.request")
    assert begun.keys() == roots.keys()
    assert set(begun) == {*ENDED, *OPEN} or death == BUG
    cut_off = {name for name, root in roots.items() if attributes(root)[KEYS["outcome"]] == semconv.CUT_OFF}
    assert cut_off == set(OPEN) if death != BUG else cut_off
    for name, root in roots.items():
        start = begun[name]
        assert (start.trace_id, start.parent_span_id) == (root.trace_id, root.span_id)
        assert root.start_time_unix_nano <= start.start_time_unix_nano <= root.end_time_unix_nano
        assert root.parent_span_id == b""
        is_error = root.status.code == Status.STATUS_CODE_ERROR
        assert (is_error, root.status.message) == ((True, semconv.CUT_OFF_REASON) if name in cut_off else (False, ""))
    judge(receiver, found={BUG} if death == BUG else set(), cut_off=cut_off)


def judge(receiver: ForeignReceiver, *, found: set[str], cut_off: set[str]) -> None:
    """What a sidecar makes of the same spans."""
    spans = [span for each in receiver.requests for span in protobuf.spans(each.SerializeToString())]
    detector = Detector()
    detector.feed([event for span in spans if (event := decode.from_span(span)) is not None])
    detector.settle()
    detector.tick()
    assert {finding.rule for findings in detector.findings.values() for finding in findings.values()} == found
    assert detector.missing == 0
    ended = {account.request: (account.status, account.outcome) for account in detector.accounts.values()}
    assert {name for name, (_, outcome) in ended.items() if outcome == semconv.CUT_OFF} == cut_off
    assert {ended[name][0] for name in cut_off} <= {"abandoned", "failed"}
    assert {detector.verdict(detector.accounts[key]) for key in detector.accounts if key[1] in cut_off} <= {
        Verdict.UNKNOWN, Verdict.DRIFT,
    }  # fmt: skip


@pytest.mark.parametrize("death", ["SIGKILL", "exit"])
def test_no_number_is_missing_and_only_the_goodbye_is_of_the_recorder(
    died: Callable[[str], ForeignReceiver], death: str
) -> None:
    receiver = died(death)
    numbers: list[int] = []
    for span in receiver.spans():
        if span.name == semconv.ENGINE_SPAN:
            continue
        said = attributes(span)
        rows = len(said.get(semconv.ROW_REQUESTS.key, "1"))
        numbers += range(said[semconv.SEQUENCE.key], said[semconv.SEQUENCE.key] + rows)
    assert numbers == list(range(len(numbers)))
    (goodbye,) = receiver.spans("kv.recorder")
    assert goodbye is receiver.spans()[-1]
    assert attributes(goodbye)[KEYS["recorder_closed"]] is True
    assert goodbye.parent_span_id in {span.span_id for span in receiver.spans(semconv.ENGINE_SPAN)}

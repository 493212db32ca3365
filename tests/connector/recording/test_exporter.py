"""The export process: it takes the recorder's events out of the engine's process, and survives the engine."""

from __future__ import annotations

import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import psutil
import pytest
from foreign import receiving
from memory import a_request, record
from processes import SLOW_S, Tracer, until

from kvtrail.connector.recording import export_process
from kvtrail.connector.recording import exporter as exporter_module
from kvtrail.connector.recording.exporter import ExportProcess, InProcessExporter, from_environment
from kvtrail.connector.recording.post_mortem import PostMortem
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, place
from kvtrail.tracer.events.semconv import Kind

ENGINE = """
import os, sys, time
from types import SimpleNamespace
from kvtrail.connector.recording import encoder, exporter
from kvtrail.connector.recording.recorder import Recorder
recorder = Recorder("engine", {"kvtrail.engine.launch": str(os.getpid())}, exporter.from_environment())
request = SimpleNamespace(request_id="open", num_preemptions=0, trace_headers=None)
source = encoder.attribute("kvtrail.connector.role", "scheduler")
recorder.record("kv.request.start", source, recorder.contexts.of(request), 1, 2, (700, None, 0, *(None,) * 7))
recorder.flush(60)
print(recorder._exporter.pid, flush=True)
while "busy" in sys.argv:
    for _ in range(50):
        recorder.record("kv.cache.reset", source, None, 1, 2, (1,))
    time.sleep(0.005)
time.sleep(600)
"""


HUNG_ENGINE = """
import os, time
from kvtrail.connector.recording import exporter
from kvtrail.connector.recording.recorder import Recorder
process = exporter.ExportProcess()
process.open({}, 0, 0)
process.send([])  # in vain, but it is there
recorder = Recorder("engine", {}, process)
fork = os.fork()
if fork == 0:
    time.sleep(600)
print(process.pid, fork, flush=True)
time.sleep(600)
"""


@pytest.fixture
def process(start_tracer: Callable[..., Tracer], monkeypatch: pytest.MonkeyPatch) -> tuple[ExportProcess, Tracer]:
    tracer = start_tracer()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{tracer.grpc_port}")
    return ExportProcess(), tracer


def stored(tracer: Tracer) -> Any:
    return tracer.get("/api/requests")


def test_events_reach_a_real_tracer_through_the_export_process(process: tuple[ExportProcess, Tracer]) -> None:
    exporter, tracer = process
    recorder = Recorder("engine", {}, exporter)
    record(recorder, a_request(), 1000)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert recorder.dropped == 0
    assert [request["lookups"] for request in stored(tracer)] == [1000]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_sidecar_says_that_it_is_kvtrail(
    start_tracer: Callable[..., Tracer], monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    tracer = start_tracer()
    endpoint = tracer.url if protocol == "http/protobuf" else f"http://127.0.0.1:{tracer.grpc_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    recorder = Recorder("engine", {}, ExportProcess())
    until(lambda: tracer.get("/api/health")["recorders"])
    (known,) = tracer.get("/api/health")["recorders"]
    assert (known["status"], known["gives_signs"]) == ("running", True), "with nothing recorded"
    recorder.close(SLOW_S)


def test_another_receiver_says_nothing_of_the_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        exporter = ExportProcess()
        recorder = Recorder("engine", {}, exporter)
        until(lambda: exporter.is_kvtrail is not None)
        assert exporter.is_kvtrail is False
        record(recorder, a_request())
        recorder.close(SLOW_S)
        until(lambda: receiver.spans("kv.recorder"))
    assert sorted(span.name for span in receiver.spans()) == ["kv.engine", "kv.lookup", "kv.recorder"]


def test_an_export_process_that_dies_is_replaced(process: tuple[ExportProcess, Tracer]) -> None:
    exporter, tracer = process
    recorder = Recorder("engine", {}, exporter)
    request = a_request()
    record(recorder, request)
    assert recorder.flush(SLOW_S)
    assert exporter.pid is not None
    os.kill(exporter.pid, signal.SIGKILL)
    record(recorder, request)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert [request["lookups"] for request in stored(tracer)] == [2]


def test_numbers_of_numpy_are_numbers(process: tuple[ExportProcess, Tracer]) -> None:
    """A connector may compute its answer with numpy; `marshal` knows only Python's own."""
    exporter, tracer = process
    recorder = Recorder("engine", {}, exporter)
    values = (numpy.int64(700), 0, 256, numpy.int32(256), False, *(None,) * 6)
    recorder.record(Kind.LOOKUP.value, b"", recorder.contexts.of(a_request()), 1, 2, values)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert [request["returned"] for request in stored(tracer)] == [256]


def test_a_value_that_is_no_number_is_unknown(process: tuple[ExportProcess, Tracer]) -> None:
    exporter, tracer = process
    recorder = Recorder("engine", {}, exporter)
    values = (700, 0, object(), 256, False, *(None,) * 6)
    recorder.record(Kind.LOOKUP.value, b"", recorder.contexts.of(a_request()), 1, 2, values)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert [(request["matched"], request["returned"]) for request in stored(tracer)] == [(None, 256)]


def an_engine(code: str, *arguments: str) -> tuple[subprocess.Popen[str], list[int]]:
    """An engine that records, and the pids that it has printed."""
    engine = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    return engine, [int(pid) for pid in engine.stdout.readline().split()]


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)  # its parent may not have waited for it yet
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("doing", ["idle", "busy"])
def test_the_goodbye_of_an_engine_that_is_killed(
    start_tracer: Callable[..., Tracer], monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    """kill -9 of the engine: the export process says goodbye, and the open request is abandoned, not running for ever. The
    export process may be in the middle of an answer then."""
    tracer = start_tracer()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{tracer.grpc_port}")
    for number in range(1, 6 if doing == "busy" else 2):
        engine, (export_process,) = an_engine(ENGINE, doing)
        if doing == "busy":
            until(lambda: tracer.get("/api/health")["recorders"][-1]["received"] > 1000)
        engine.kill()
        engine.wait()
        until(lambda: is_gone(export_process))  # noqa: B023 - this turn's
        closed = [recorder["status"] == "closed" for recorder in tracer.get("/api/health")["recorders"]]
        assert closed == [True] * number
    assert [request["status"] for request in stored(tracer)] == ["abandoned"]


def test_no_export_process_is_left_where_the_tracer_hangs_and_a_fork_holds_the_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        engine, (export_process, fork) = an_engine(HUNG_ENGINE)
        assert not is_gone(export_process)
        engine.kill()
        engine.wait()
        until(lambda: is_gone(export_process))
        assert not is_gone(fork)
        os.kill(fork, signal.SIGKILL)


def test_the_export_process_is_no_descendant_of_the_engine(process: tuple[ExportProcess, Tracer]) -> None:
    """vLLM kills its process tree when it shuts down: SIGTERM, then SIGKILL."""
    exporter, tracer = process
    recorder = Recorder("engine", {}, exporter)
    record(recorder, a_request())
    assert recorder.flush(SLOW_S)
    pid = exporter.pid
    assert pid is not None
    assert pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    record(recorder, a_request())
    assert recorder.flush(SLOW_S)
    assert exporter.pid == pid, "only the end of the engine ends it"
    recorder.close(SLOW_S)
    until(lambda: is_gone(pid))
    assert [each["status"] == "closed" for each in tracer.get("/api/health")["recorders"]] == [True]


def test_an_export_process_that_cannot_start_is_not_started_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In an hour, with a batch each half second: once, then after pauses that double."""
    now_s, starts = 0.0, 0
    plain = subprocess.Popen

    def start(*args: Any, **more: Any) -> Any:
        nonlocal starts
        starts += 1
        return plain([sys.executable, "-I", "-S", "-c", ""], **more)

    monkeypatch.setattr(exporter_module, "monotonic", lambda: now_s)
    monkeypatch.setattr(subprocess, "Popen", start)
    exporter = ExportProcess()
    exporter.open({}, 0, 0)
    while now_s < 3600:
        assert not exporter.send([])
        now_s += 0.5
    assert 10 < starts < 25
    assert len([each for each in caplog.records if "export process has ended" in each.getMessage()]) == starts
    exporter.close()


def test_an_export_process_that_died_late_is_replaced_soon(
    process: tuple[ExportProcess, Tracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    exporter, _ = process
    monkeypatch.setattr(exporter_module, "monotonic", lambda: now_s)
    exporter._started_s = now_s
    exporter.open({}, 0, 0)
    assert exporter.send([])
    pids = [exporter.pid]
    for _ in range(3):
        now_s += exporter_module.STEADY_S
        assert exporter.pid is not None
        os.kill(exporter.pid, signal.SIGKILL)
        assert not exporter.send([])
        now_s += exporter_module.FIRST_PAUSE_S
        assert exporter.send([])
        pids.append(exporter.pid)
    assert len(set(pids)) == 4
    exporter.close()


@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_a_pipe_that_ends_in_the_middle_of_a_batch_leaves_a_gap_before_the_goodbye(cut: int) -> None:
    """What an engine was handing over when it was killed is lost, and the tracer learns that something is: of the engine, and
    of each request that was open."""
    nobody, somebody = (b"r" * 24, b"", "", True), (b"s" * 24, b"", "open", True)
    begun = ("kv.request.start", b"", somebody, 6, 3, 0, 1, 1, None, (700, None, 0, *(None,) * 7))
    values = (7, 0, False, *(None,) * (len(FIELDS[Kind.HEARTBEAT]) - 3))
    beat = ("kv.recorder", b"", nobody, 7, 7, 0, 1, 1, None, values)
    body = marshal.dumps([beat])
    frame = exporter_module.LENGTH.pack(len(body)) + body
    stream = frame + frame[:-cut] if cut else frame * 2
    read = list(export_process._frames(iter([stream[:9], stream[9:]])))
    assert read == [[beat], export_process.TORN if cut else [beat]]
    post_mortem = PostMortem({})
    post_mortem.follow([begun, beat])
    root, goodbye = post_mortem.final_events(9, torn=cut > 0)
    assert (root[0], *root[3:5]) == ("kv.request.cut_off", 9 if cut else 8, 5 if cut else 4)
    assert (goodbye[0], goodbye[3]) == ("kv.recorder", 10 if cut else 9)
    assert goodbye[-1][place(Kind.HEARTBEAT, "recorder_ended_by")] == semconv.NO_END_RECORD


def test_without_processes_the_thread_encodes_and_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    in_process = from_environment()
    assert isinstance(in_process, InProcessExporter)
    in_process.close()

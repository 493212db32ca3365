"""The export process: it takes the recorder's events out of the engine's process, and survives the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from memory import a_request, record
from processes import SLOW_S, Tracer, until

from kvtrail.connector.recording.exporter import ExportProcess, InProcessExporter, from_environment
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.model.semconv import Kind

ENGINE = """
import time
from types import SimpleNamespace
from kvtrail.connector.recording import encoder, exporter
from kvtrail.connector.recording.recorder import Recorder
recorder = Recorder("engine", {}, exporter.from_environment())
request = SimpleNamespace(request_id="open", num_preemptions=0, trace_headers=None)
source = encoder.attribute("kvtrail.connector.role", "scheduler")
recorder.record("kv.request.start", source, recorder.contexts.of(request), 1, 2, (700, None, 0, None, None, None))
recorder.flush(60)
print("ready", flush=True)
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


def test_an_export_process_that_dies_is_replaced(process: tuple[ExportProcess, Tracer]) -> None:
    exporter, tracer = process
    recorder = Recorder("engine", {}, exporter)
    request = a_request()
    record(recorder, request)
    assert recorder.flush(SLOW_S)
    os.kill(exporter._process.pid, signal.SIGKILL)
    exporter._process.wait()
    record(recorder, request)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert [request["lookups"] for request in stored(tracer)] == [2]


def test_numbers_of_numpy_are_numbers(process: tuple[ExportProcess, Tracer]) -> None:
    """A connector may compute its answer with numpy; `marshal` knows only Python's own."""
    exporter, tracer = process
    recorder = Recorder("engine", {}, exporter)
    values = (numpy.int64(700), 0, 256, numpy.int32(256), False, None, None, None)
    recorder.record(Kind.LOOKUP.value, b"", recorder.contexts.of(a_request()), 1, 2, values)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert [request["returned"] for request in stored(tracer)] == [256]


def test_a_value_that_is_no_number_is_unknown(process: tuple[ExportProcess, Tracer]) -> None:
    exporter, tracer = process
    recorder = Recorder("engine", {}, exporter)
    values = (700, 0, object(), 256, False, None, None, None)
    recorder.record(Kind.LOOKUP.value, b"", recorder.contexts.of(a_request()), 1, 2, values)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert [(request["matched"], request["returned"]) for request in stored(tracer)] == [(None, 256)]


def test_the_goodbye_of_an_engine_that_is_killed(
    start_tracer: Callable[..., Tracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the engine: the export process says goodbye, and the open request is abandoned, not running for ever."""
    tracer = start_tracer()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{tracer.grpc_port}")
    engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    assert engine.stdout.readline() == "ready\n"
    engine.kill()
    engine.wait()
    until(lambda: [request["status"] for request in stored(tracer)] == ["abandoned"])


def test_without_processes_the_thread_encodes_and_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    in_process = from_environment()
    assert isinstance(in_process, InProcessExporter)
    in_process.close()

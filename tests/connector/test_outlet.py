"""The helper process: it carries the recorder's events out of the engine's process, and survives what the engine does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from processes import Tracer, until
from test_recorder import a_request, record

from kvtrail.connector.recording import exporter
from kvtrail.connector.recording.exporter import ExportProcess
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
recorder.record("kv.request.start", source, recorder.context(request), 1, 2, (700, None, 0, None, None))
recorder.flush(20)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def helper(start_tracer: Callable[..., Tracer], monkeypatch: pytest.MonkeyPatch) -> tuple[ExportProcess, Tracer]:
    tracer = start_tracer()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{tracer.grpc_port}")
    return ExportProcess(), tracer


def stored(tracer: Tracer) -> Any:
    return tracer.get("/api/requests")


def test_events_reach_a_real_tracer_through_the_helper(helper: tuple[ExportProcess, Tracer]) -> None:
    out, tracer = helper
    recorder = Recorder("engine", {}, out)
    record(recorder, a_request(), 1000)
    assert recorder.flush(20)
    recorder.close()
    assert recorder.dropped == 0
    assert [request["lookups"] for request in stored(tracer)] == [1000]


def test_a_helper_that_dies_is_replaced(helper: tuple[ExportProcess, Tracer]) -> None:
    out, tracer = helper
    recorder = Recorder("engine", {}, out)
    request = a_request()
    record(recorder, request)
    assert recorder.flush(20)
    os.kill(out._process.pid, signal.SIGKILL)
    out._process.wait()
    record(recorder, request)
    assert recorder.flush(20)
    recorder.close()
    assert [request["lookups"] for request in stored(tracer)] == [2]


def test_numbers_of_numpy_are_numbers(helper: tuple[ExportProcess, Tracer]) -> None:
    """A connector may compute its answer with numpy; `marshal` knows only Python's own."""
    out, tracer = helper
    recorder = Recorder("engine", {}, out)
    values = (numpy.int64(700), 0, 256, numpy.int32(256), False, None, None, None)
    recorder.record(Kind.LOOKUP.value, b"", recorder.context(a_request()), 1, 2, values)
    assert recorder.flush(20)
    recorder.close()
    assert [request["returned"] for request in stored(tracer)] == [256]


def test_a_value_that_is_no_number_is_unknown(helper: tuple[ExportProcess, Tracer]) -> None:
    out, tracer = helper
    recorder = Recorder("engine", {}, out)
    values = (700, 0, object(), 256, False, None, None, None)
    recorder.record(Kind.LOOKUP.value, b"", recorder.context(a_request()), 1, 2, values)
    assert recorder.flush(20)
    recorder.close()
    assert [(request["matched"], request["returned"]) for request in stored(tracer)] == [(None, 256)]


def test_an_engine_that_is_killed_is_said_goodbye_to(
    start_tracer: Callable[..., Tracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the engine: the helper says the goodbye, and its open request is abandoned, not for ever running."""
    tracer = start_tracer()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{tracer.grpc_port}")
    process = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    until(lambda: [request["status"] for request in stored(tracer)] == ["abandoned"])


def test_without_processes_the_thread_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    out = exporter.from_environment()
    assert isinstance(out, exporter.InProcessExporter)
    out.close()

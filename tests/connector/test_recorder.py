"""The recorder: never in the way, and honest about what it lost."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from memory import Memory
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from processes import until

from kvtrail.connector.recording import contexts, exporter
from kvtrail.connector.recording import recorder as recorder_module
from kvtrail.connector.recording.exporter import InProcessExporter
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.ingest import otlp
from kvtrail.tracer.model.events import Event, Heartbeat
from kvtrail.tracer.model.semconv import Kind


def a_request(request_id: str = "cmpl-1-0-0123abcd", **changes: Any) -> Any:
    return SimpleNamespace(**{"request_id": request_id, "num_preemptions": 0, "trace_headers": None, **changes})


def a_recorder(line: Memory) -> Recorder:
    return Recorder("engine", {}, InProcessExporter(line))


def lookups(line: Memory) -> list[Event]:
    return [event for event in line.events() if event.kind == Kind.LOOKUP]


def record(recorder: Recorder, request: Any, count: int = 1) -> None:
    for _ in range(count):
        recorder.record(
            Kind.LOOKUP.value, b"", recorder.context(request), 1, 2, (700, 0, 0, 0, False, None, None, None)
        )


def test_what_is_recorded_arrives_numbered() -> None:
    line = Memory()
    recorder = a_recorder(line)
    with line.held_up():
        record(recorder, a_request(), 3)
        record(recorder, a_request("other-0123abcd"), 1)
    assert recorder.flush()
    assert [(e.request, e.request_sequence) for e in lookups(line)] == [
        ("cmpl-1-0-0123abcd", 0),
        ("cmpl-1-0-0123abcd", 1),
        ("cmpl-1-0-0123abcd", 2),
        ("other-0123abcd", 0),
    ]
    assert [e.sequence for e in lookups(line)] == [0, 1, 2, 3]
    recorder.close()


def test_the_epoch_is_the_requests() -> None:
    line = Memory()
    recorder = a_recorder(line)
    record(recorder, a_request(num_preemptions=2))
    recorder.close()
    assert [e.epoch for e in lookups(line)] == [2]


def test_the_callers_trace_is_joined() -> None:
    line = Memory()
    recorder = a_recorder(line)
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    record(recorder, a_request(trace_headers=headers))
    recorder.close()
    assert [e.trace_id for e in lookups(line)] == ["0af7651916cd43dd8448eb211c80319c"]


def test_a_request_that_the_caller_did_not_sample_is_left_out() -> None:
    """`OTEL_TRACES_SAMPLER` is parentbased_always_on if unset: an unsampled parent means no spans, and no gap either."""
    line = Memory()
    recorder = a_recorder(line)
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
    record(recorder, a_request("unsampled", trace_headers=headers))
    record(recorder, a_request("sampled"))
    recorder.close()
    assert [(e.request, e.sequence) for e in lookups(line)] == [("sampled", 0)]


def test_the_sampler_variable_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    line = Memory()
    recorder = a_recorder(line)
    record(recorder, a_request())
    recorder.close()
    assert lookups(line) == []


def test_a_full_ring_drops_counts_and_leaves_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    line = Memory()
    line.open.clear()  # the tracer hangs
    recorder = a_recorder(line)
    record(recorder, a_request(), 1000)  # the caller does not wait for the hanging tracer; it would, for ever
    assert recorder.dropped >= 900
    line.open.set()
    recorder.close()
    told = [e for e in line.events() if isinstance(e, Heartbeat)][-1]
    assert told.recorder_dropped == recorder.dropped
    assert told.recorder_closed
    assert len(lookups(line)) + recorder.dropped == 1000


def test_a_refused_batch_is_sent_again() -> None:
    line = Memory()
    line.accepts = False
    recorder = a_recorder(line)
    record(recorder, a_request(), 5)
    assert not recorder.flush(timeout_s=0.5)
    line.accepts = True
    assert recorder.flush()
    assert [e.sequence for e in lookups(line)] == [0, 1, 2, 3, 4]
    assert recorder.dropped == 0
    recorder.close()


class Busy(Memory):
    """While the first batch is sent, two more events are recorded."""

    recorder: Recorder
    first = True

    def send(self, payload: bytes) -> bool:
        sent = super().send(payload)
        if self.first and lookups(self):
            self.first = False
            record(self.recorder, a_request(), 2)
        return sent


def test_what_comes_while_a_batch_is_sent_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or an engine at work would have every few events sent on their own."""
    monkeypatch.setattr(recorder_module, "BATCH", 8)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    line = Busy()
    line.recorder = recorder = a_recorder(line)
    assert recorder.flush(60)  # the first sign of life, number 0
    done, beat = threading.Event(), recorder._heartbeat

    def when_all_is_sent(closing: bool) -> Any:
        if lookups(line):
            done.set()
        return beat(closing)

    monkeypatch.setattr(recorder, "_heartbeat", when_all_is_sent)
    record(recorder, a_request(), 8)  # the last of them wakes the thread
    assert done.wait(60)
    assert len(lookups(line)) == 8
    assert recorder.flush(60)
    assert len(lookups(line)) == 10
    recorder.close()


def test_many_events_are_sent_before_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a short ring would run over in an engine that tells much."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    line = Memory()
    recorder = a_recorder(line)
    for _ in range(20):
        record(recorder, a_request(), 16)
        until(lambda: len(recorder._ring.waiting) < 48)
    assert recorder.dropped == 0
    recorder.close()


def test_a_full_ring_keeps_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine does before it dies is told, and not what it did when the tracer was lost."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    line = Memory()
    line.open.clear()
    recorder = a_recorder(line)
    record(recorder, a_request(), 1000)
    line.open.set()
    recorder.close()
    last = [e.sequence for e in lookups(line)][-9:]
    assert last == list(range(last[0], last[0] + 9))
    assert last[-1] >= 998


class Moody(Memory):
    """It refuses every third request."""

    asked = 0

    def send(self, payload: bytes) -> bool:
        self.asked += 1
        return self.asked % 3 != 0 and super().send(payload)


def test_what_was_acknowledged_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    line = Moody()
    recorder = a_recorder(line)
    record(recorder, a_request(), 200)
    assert recorder.flush(60)
    recorder.close()
    assert [event.sequence for event in line.events()] == list(range(len(line.events())))
    assert len(lookups(line)) == 200


class Picky(Memory):
    """It refuses what holds a certain request, for good."""

    def send(self, payload: bytes) -> bool:
        return b"unwanted" not in payload and super().send(payload)


def test_what_is_refused_for_good_does_not_block_the_way_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    line = Picky()
    recorder = a_recorder(line)
    record(recorder, a_request("unwanted"))
    assert not recorder.flush(timeout_s=0.2)
    record(recorder, a_request("wanted"), 20)
    until(lambda: lookups(line))
    assert {event.request for event in lookups(line)} == {"wanted"}
    recorder.close()
    assert len(lookups(line)) + recorder.dropped == 21


def test_a_request_goes_out_in_parts_of_the_size_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    line = Memory()
    recorder = a_recorder(line)
    record(recorder, a_request(), 450)
    recorder.close()
    sizes = [len(list(otlp.spans(ExportTraceServiceRequest.FromString(each)))) for each in line.payloads]
    assert max(sizes) == 100
    assert len(lookups(line)) == 450


def test_an_absent_tracer_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    line = Memory()
    line.accepts = False
    recorder = a_recorder(line)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            record(recorder, a_request())
            recorder.flush(timeout_s=0.3)
    recorder.close()
    told = [r.getMessage() for r in caplog.records if "no tracer answers at memory" in r.getMessage()]
    assert len(told) == 1
    assert "kvtrail serve" in told[0]


def test_closing_does_not_wait_for_a_hanging_tracer() -> None:
    line = Memory()
    line.open.clear()
    recorder = a_recorder(line)
    record(recorder, a_request())
    recorder.close(timeout_s=0.5)  # it returns; waiting for the tracer would take for ever


def test_the_memory_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "MAX_REQUESTS", 10)
    recorder = a_recorder(Memory())
    for number in range(100):
        recorder.context(a_request(f"r-{number}"))
    assert len(recorder.contexts.open) <= 10
    recorder.close()


def test_names_of_service_and_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-vllm")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    line = Memory()
    recorder = a_recorder(line)
    record(recorder, a_request())
    recorder.close()
    (span, *_) = otlp.spans(ExportTraceServiceRequest.FromString(line.payloads[0]))
    assert span.resource["service.name"] == "my-vllm"
    assert span.resource["deployment.environment"] == "test"


def test_the_sdk_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert recorder_module.of_process("disabled-engine", {}) is None


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
    with pytest.raises(ValueError, match="'carrier-pigeon' is not supported; it can be grpc or http/protobuf"):
        exporter.from_environment()

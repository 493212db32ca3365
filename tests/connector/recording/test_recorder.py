"""The recorder: never in the way, and honest about what it lost."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from memory import MemoryTransport, a_recorder, a_request, record
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from processes import SLOW_S, until

from kvtrail import __version__
from kvtrail.connector.recording import contexts, environment, exporter, request_names
from kvtrail.connector.recording import recorder as recorder_module
from kvtrail.connector.recording.exporter import InProcessExporter
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.recording.send_failures import SendFailure
from kvtrail.connector.settings import Heartbeats
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CutOff, Heartbeat
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest import protobuf


def test_what_is_recorded_arrives_numbered() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    with transport.held_up():
        record(recorder, a_request(), 3)
        record(recorder, a_request("other-0123abcd"), 1)
    assert recorder.flush(SLOW_S)
    assert [(e.request, e.request_sequence) for e in transport.lookups()] == [
        ("cmpl-1-0-0123abcd", 0),
        ("cmpl-1-0-0123abcd", 1),
        ("cmpl-1-0-0123abcd", 2),
        ("other-0123abcd", 0),
    ]
    assert [e.sequence for e in transport.lookups()] == [0, 1, 2, 3]
    recorder.close(SLOW_S)


def test_the_epoch_is_the_requests() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    record(recorder, a_request(num_preemptions=2))
    recorder.close(SLOW_S)
    assert [e.epoch for e in transport.lookups()] == [2]


def test_the_callers_trace_is_joined() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    record(recorder, a_request(trace_headers=headers))
    recorder.close(SLOW_S)
    assert [e.trace_id for e in transport.lookups()] == ["0af7651916cd43dd8448eb211c80319c"]


def record_unsampled(resource: dict[str, Any]) -> MemoryTransport:
    """What arrives of a request that its caller did not sample, and of another. `OTEL_TRACES_SAMPLER` is
    parentbased_always_on if unset."""
    transport = MemoryTransport()
    recorder = Recorder("engine", resource, InProcessExporter(transport))
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
    with transport.held_up():
        record(recorder, a_request("unsampled", trace_headers=headers))
        record(recorder, a_request("sampled"))
    recorder.close(SLOW_S)
    return transport


def test_a_request_that_is_not_sampled_is_recorded_and_says_so() -> None:
    """It stores, evicts and holds blocks like all others: without it the account of an engine is wrong."""
    transport = record_unsampled({})
    assert [(e.request, e.sequence, e.sampled) for e in transport.lookups()] == [
        ("unsampled", 0, False),
        ("sampled", 1, None),
    ]
    spans = [span for p in transport.payloads for span in list_of_spans(p) if span.name == Kind.LOOKUP]
    assert [span.flags & 1 for span in spans] == [0, 1]


def test_recording_can_be_sampled_for_real_and_every_event_says_so() -> None:
    transport = record_unsampled({semconv.SAMPLED_ONLY.key: True})
    assert [(e.request, e.sequence) for e in transport.lookups()] == [("sampled", 0)]
    assert {e.sampled_only for e in transport.events()} == {True}


def test_the_sampler_variable_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    record(recorder, a_request())
    recorder.close(SLOW_S)
    assert [e.sampled for e in transport.lookups()] == [False]


def list_of_spans(payload: bytes) -> list[ProtoSpan]:
    """The spans as protobuf has them, with their flags."""
    (resource,) = ExportTraceServiceRequest.FromString(payload).resource_spans
    return list(resource.scope_spans[0].spans)


def test_a_full_ring_drops_counts_and_leaves_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    transport = MemoryTransport()
    transport.open.clear()  # the tracer hangs
    recorder = a_recorder(transport)
    record(recorder, a_request(), 1000)  # a caller that waited for this tracer would wait for ever
    assert recorder.dropped >= 900
    transport.open.set()
    recorder.close(SLOW_S)
    goodbye = [e for e in transport.events() if isinstance(e, Heartbeat)][-1]
    assert goodbye.recorder_dropped == recorder.dropped
    assert goodbye.recorder_closed
    assert len(transport.lookups()) + recorder.dropped == 1000


def test_a_refused_batch_is_sent_again() -> None:
    transport = MemoryTransport()
    transport.accepts = False
    recorder = a_recorder(transport)
    record(recorder, a_request(), 5)
    transport.await_refusal()
    assert not recorder.flush(timeout_s=0)
    transport.accepts = True
    assert recorder.flush(SLOW_S)
    assert [e.sequence for e in transport.lookups()] == [0, 1, 2, 3, 4]
    assert recorder.dropped == 0
    recorder.close(SLOW_S)


class Busy(MemoryTransport):
    """While the first batch is sent, two more events are recorded."""

    recorder: Recorder
    first = True

    def send(self, payload: bytes) -> bool:
        sent = super().send(payload)
        if self.first and self.lookups():
            self.first = False
            record(self.recorder, a_request(), 2)
        return sent


def test_what_comes_while_a_batch_is_sent_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a busy engine would send every few events on their own."""
    monkeypatch.setattr(recorder_module, "BATCH", 8)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    transport = Busy()
    transport.recorder = recorder = a_recorder(transport)
    assert recorder.flush(SLOW_S)  # the first heartbeat, number 0
    done, beat = threading.Event(), recorder._heartbeat

    def when_all_is_sent(closing: bool) -> Any:
        if transport.lookups():
            done.set()
        return beat(closing)

    monkeypatch.setattr(recorder, "_heartbeat", when_all_is_sent)
    record(recorder, a_request(), 8)  # the last of them wakes the thread
    assert done.wait(SLOW_S)
    assert len(transport.lookups()) == 8
    assert recorder.flush(SLOW_S)
    assert len(transport.lookups()) == 10
    recorder.close(SLOW_S)


def test_many_events_are_sent_before_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a short ring would overflow in a busy engine."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    for _ in range(20):
        record(recorder, a_request(), 16)
        until(lambda: len(recorder._ring.waiting) < 48)
    assert recorder.dropped == 0
    recorder.close(SLOW_S)


def test_a_full_ring_keeps_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine does before it dies matters more than what it did when the tracer was lost."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    transport = MemoryTransport()
    transport.open.clear()
    recorder = a_recorder(transport)
    record(recorder, a_request(), 1000)
    transport.open.set()
    recorder.close(SLOW_S)
    last = [e.sequence for e in transport.lookups()][-9:]
    assert last == list(range(last[0], last[0] + 9))
    assert last[-1] >= 998


class Moody(MemoryTransport):
    """It refuses every third request."""

    asked = 0

    def wants(self, payload: bytes) -> bool:
        self.asked += 1
        return self.asked % 3 != 0


def test_what_was_acknowledged_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    transport = Moody()
    recorder = a_recorder(transport)
    record(recorder, a_request(), 200)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert [event.sequence for event in transport.events()] == list(range(len(transport.events())))
    assert len(transport.lookups()) == 200


class Picky(MemoryTransport):
    """It refuses what holds a certain request, for good."""

    def wants(self, payload: bytes) -> bool:
        return b"unwanted" not in payload


def test_what_is_refused_for_good_does_not_block_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    transport = Picky()
    recorder = a_recorder(transport)
    record(recorder, a_request("unwanted"))
    transport.await_refusal()
    assert not recorder.flush(timeout_s=0)
    record(recorder, a_request("wanted"), 20)
    until(lambda: transport.lookups())
    assert {event.request for event in transport.lookups()} == {"wanted"}
    recorder.close(SLOW_S)
    assert len(transport.lookups()) + recorder.dropped == 21


def test_a_request_goes_out_in_parts_of_the_size_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    record(recorder, a_request(), 450)
    recorder.close(SLOW_S)
    sizes = [len(list(protobuf.spans(each))) for each in transport.payloads]
    assert max(sizes) == 100
    assert len(transport.lookups()) == 450


def step_of(recorder: Recorder, count: int) -> None:
    """Record a step of this number of requests."""
    contexts = [recorder.contexts.of(a_request(f"step-{n}")) for n in range(count)]
    recorder.record_step(b"", contexts, 1, (16,) * count, (1,) * count, (), [((n,),) for n in range(count)], 0, count)


def test_a_dropped_step_counts_as_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    with transport.held_up():
        record(recorder, a_request())
        recorder._wake.set()
        until(lambda: not recorder._ring.waiting)  # the thread has the lookup, and waits
        for rows in (5, 1, 2, 3, 4, 7):
            step_of(recorder, rows)
        assert recorder.dropped == 5 + 1
    recorder.close(SLOW_S)
    numbers = [event.sequence for event in transport.events() if not isinstance(event, Heartbeat)]
    assert numbers == [0, *range(7, 7 + 2 + 3 + 4 + 7)]
    (*_, goodbye) = [event for event in transport.events() if isinstance(event, Heartbeat)]
    assert (goodbye.recorder_recorded, goodbye.recorder_dropped) == (goodbye.sequence, 6)


def test_a_step_counts_as_its_rows_where_requests_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    with transport.held_up():
        for rows in (4, 4, 4, 30, 1):
            step_of(recorder, rows)
    assert recorder.flush(SLOW_S)
    sizes = [len([e for e in protobuf.spans(p) if e.name == "kv.schedule"]) for p in transport.payloads]
    assert [size for size in sizes if size] == [12, 30, 1]
    recorder.close(SLOW_S)


def test_a_steps_numbers_are_its_own_while_others_record() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    other = threading.Thread(target=lambda: record(recorder, a_request(), 2000))
    with transport.held_up():
        other.start()
        for _ in range(200):
            step_of(recorder, 16)
        other.join()
    recorder.close(SLOW_S)
    numbers = [event.sequence for event in transport.events()]
    assert sorted(numbers) == list(range(len(numbers)))


def test_an_absent_tracer_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    transport.accepts = False
    recorder = a_recorder(transport)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            record(recorder, a_request())
            recorder.flush(timeout_s=0)
            transport.await_refusal()
    recorder.close(SLOW_S)
    warnings = [r.getMessage() for r in caplog.records if "no tracer answers at memory" in r.getMessage()]
    assert len(warnings) == 1
    assert "kvtrail serve" in warnings[0]


def test_another_reason_is_reported_as_well(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    transport.accepts = False
    recorder = a_recorder(transport)
    for failure in (SendFailure.NOBODY, SendFailure.TOKEN, SendFailure.NOBODY):
        transport.failure = failure
        record(recorder, a_request())
        recorder.flush(timeout_s=0)
        transport.await_refusal()
        transport.await_refusal()  # the one before may have been under way
    recorder.close(SLOW_S)
    said = [r.getMessage() for r in caplog.records if "no tracer answers at memory: " in r.getMessage()]
    assert [text.partition(";")[0].rpartition(": ")[2] for text in said] == [
        "no service listens there",
        "it refuses the token",
    ]


def test_closing_does_not_wait_for_a_hanging_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = MemoryTransport()
    transport.open.clear()
    recorder = a_recorder(transport)
    record(recorder, a_request())
    monkeypatch.setattr(transport, "close", lambda: None)  # it hangs for ever, even when it is closed
    recorder.close(timeout_s=0.1)
    assert transport.payloads == []
    transport.open.set()


def test_an_id_that_is_used_again_is_another_trace() -> None:
    """By a request that comes later, and by the next launch of an engine with a fixed id; but all processes of a launch give
    a request the same."""
    transport = MemoryTransport()
    roots = []
    for launch in ("first", "first", "second", None):
        recorder = Recorder("engine", {semconv.LAUNCH.key: launch} if launch else {}, InProcessExporter(transport))
        for _ in range(2):
            request = a_request("r-1")
            context = recorder.contexts.of(request)
            roots.append(context.root)
            recorder.contexts.end(context)
        recorder.close(SLOW_S)
    assert roots[:2] == roots[2:4]
    assert len(set(roots)) == 6
    assert len({root[:16] for root in roots}) == len({root[16:] for root in roots}) == 6


def goodbyes(transport: MemoryTransport) -> list[bool]:
    return [event.recorder_closed for event in transport.events() if isinstance(event, Heartbeat)]


def test_the_goodbye_is_said_when_the_last_connector_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM may kill the process before it comes to its end."""
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    first, second = SchedulerInstrumentation(recorder), SchedulerInstrumentation(recorder)
    record(recorder, a_request())
    first.on_shutdown()
    first.on_shutdown()  # vLLM may call it twice
    assert goodbyes(transport) == [False]
    second.on_shutdown()
    assert goodbyes(transport) == [False, True]
    monkeypatch.setattr(recorder_module, "HEARTBEAT_S", 0.0)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert goodbyes(transport) == [False, True], "it is said once, and it is the last word"


def test_what_is_recorded_after_the_goodbye_takes_it_back() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    SchedulerInstrumentation(recorder).on_shutdown()
    record(recorder, a_request())
    assert recorder.flush(SLOW_S)
    assert len(transport.lookups()) == 1
    assert goodbyes(transport) == [True, False]
    SchedulerInstrumentation(recorder).on_shutdown()
    record(recorder, a_request())
    recorder.close(SLOW_S)
    assert goodbyes(transport)[-2:] == [True, True], "the last one comes after the last event"
    assert isinstance(transport.events()[-1], Heartbeat)


def last_words(transport: MemoryTransport) -> list[str | None]:
    """What each goodbye names; there may have been a heartbeat before."""
    beats = [event for event in transport.events() if isinstance(event, Heartbeat)]
    return [beat.recorder_ended_by for beat in beats if beat.recorder_closed]


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (
            AssertionError("Mismatch in tokens to load: 256 vs 256"),
            "AssertionError: Mismatch in tokens to load: 256 vs 256",
        ),
        (RuntimeError("prompt [17, 25, 3, 99]"), "RuntimeError: prompt [<4 numbers>]"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 188),
        (SystemExit("SIGTERM"), None),
        (KeyboardInterrupt(), None),
        (None, None),
    ],
)
def test_the_goodbye_names_the_exception_that_the_engine_dies_of(
    error: BaseException | None, reported: str | None
) -> None:
    """vLLM shuts the connector down while it handles the exception; a signal, too, ends its loop by one."""
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    record(recorder, a_request())
    SchedulerInstrumentation(recorder).on_shutdown(error)
    record(recorder, a_request())
    recorder.close(SLOW_S)
    assert last_words(transport) == [reported, reported]


@pytest.mark.parametrize(
    ("module", "is_engines"),
    [("vllm.v1.engine.core", True), ("vllm.v1.core.sched.scheduler", True), ("vllm.config", False)],
)
def test_an_exception_that_ends_the_process_is_the_engines_if_it_went_through_its_steps(
    monkeypatch: pytest.MonkeyPatch, module: str, is_engines: bool
) -> None:
    """An engine in the process of its caller is shut down when the interpreter ends, after it has printed the exception."""
    space: dict[str, Any] = {"__name__": module}
    exec("def step():\n    raise AssertionError('it')", space)
    with pytest.raises(AssertionError) as raised:
        space["step"]()
    monkeypatch.setattr(sys, "last_value", raised.value, raising=False)
    monkeypatch.setattr(sys, "last_exc", raised.value, raising=False)
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    record(recorder, a_request())
    recorder.close(SLOW_S)
    assert last_words(transport) == ["AssertionError: it" if is_engines else None]


def test_a_connector_that_is_created_again_has_not_died() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    SchedulerInstrumentation(recorder).on_shutdown(ValueError("it"))
    record(recorder, a_request())
    SchedulerInstrumentation(recorder).on_shutdown()
    recorder.close(SLOW_S)
    assert last_words(transport)[0] == "ValueError: it"
    assert set(last_words(transport)[1:]) == {None}


def test_the_goodbye_has_no_id_that_is_to_be_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(request_names.VARIABLE, "a key")
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    record(recorder, a_request("secret-0-0123abcd"))
    SchedulerInstrumentation(recorder).on_shutdown(KeyError("secret-0-0123abcd of secret-0"))
    recorder.close(SLOW_S)
    (reported,) = last_words(transport)
    assert reported is not None
    assert reported.startswith("KeyError: ")
    assert "secret" not in reported


def test_the_memory_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "MAX_REQUESTS", 10)
    recorder = a_recorder(MemoryTransport())
    for number in range(100):
        recorder.contexts.of(a_request(f"r-{number}"))
    assert len(recorder.contexts.open) <= 10
    recorder.close(SLOW_S)


def test_names_of_service_and_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-vllm")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    record(recorder, a_request())
    recorder.close(SLOW_S)
    span, *_ = (span for payload in transport.payloads for span in protobuf.spans(payload))
    assert span.resource["service.name"] == "my-vllm"
    assert span.resource["deployment.environment"] == "test"
    assert span.resource["host.name"] == socket.gethostname()
    assert span.resource[semconv.VERSION.key] == __version__


@pytest.mark.parametrize("detectors", ["", "none-such"])
def test_people_name_the_host_and_the_pod(monkeypatch: pytest.MonkeyPatch, detectors: str) -> None:
    """Also where another detector, which they asked for, is not there."""
    monkeypatch.setenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", detectors)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=gpu-7,k8s.pod.name=llama-0,service.instance.id=blue")
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    recorder.close(SLOW_S)
    span, *_ = (span for payload in transport.payloads for span in protobuf.spans(payload))
    names = {key: span.resource.get(key) for key in ("host.name", "k8s.pod.name", "service.instance.id")}
    assert names == {"host.name": "gpu-7", "k8s.pod.name": "llama-0", "service.instance.id": "blue"}
    assert span.resource["service.name"] == "vllm"


def test_a_jump_of_the_wall_clock_moves_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines are judged by recorded time."""
    transport = MemoryTransport()
    recorder, request = a_recorder(transport), a_request()
    values = (700, 0, 0, 0, False, *(None,) * 6)

    def look_up() -> None:
        at_ns = time.monotonic_ns()
        recorder.record(Kind.LOOKUP.value, b"", recorder.contexts.of(request), at_ns, at_ns, values)

    began_ns, plain = time.time_ns(), time.time_ns
    look_up()
    assert recorder.flush(SLOW_S)
    monkeypatch.setattr(time, "time_ns", lambda: plain() - 3600 * 10**9)
    look_up()
    recorder.close(SLOW_S)
    before, after = transport.lookups()
    assert abs(before.start_ns - began_ns) < SLOW_S * 10**9, "Unix time"
    assert before.end_ns <= after.start_ns < before.end_ns + SLOW_S * 10**9
    *_, last = [event for event in transport.events() if isinstance(event, Heartbeat)]
    assert before.start_ns <= last.start_ns < before.end_ns + SLOW_S * 10**9


def test_the_sdk_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert recorder_module.of_process("disabled-engine", {}) is None


def test_an_accident_in_its_thread_is_not_the_end_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    assert recorder.flush(SLOW_S)
    with monkeypatch.context() as broken:
        asked = threading.Event()

        def raises(*_: Any, **__: Any) -> Any:
            asked.set()
            raise RuntimeError("an accident")

        broken.setattr(recorder._ring, "take", raises)
        record(recorder, a_request())
        recorder.flush(timeout_s=0)
        assert asked.wait(SLOW_S)
    record(recorder, a_request())
    recorder.close(SLOW_S)
    assert len(transport.lookups()) == 2


@pytest.mark.parametrize("protocol", ["", "grpc", "http/protobuf"])
def test_without_an_exporter_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setattr(environment, "_has_exporter", lambda _: False)
    with caplog.at_level(logging.WARNING, "vllm.kvtrail"):
        assert recorder_module.of_process(f"engine-that-cannot-send-{protocol}", {}) is None
    assert [record.exc_info for record in caplog.records if "nothing is recorded" in record.message] == [None]
    assert "pip install opentelemetry-exporter-otlp-proto-grpc. The engine runs without it" in caplog.text


def test_a_recorder_that_cannot_be_made_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise ImportError("no exporter is installed")

    monkeypatch.setattr(exporter, "from_environment", refuse)
    assert recorder_module.of_process("engine-without-exporter", {}) is None


def start(recorder: Recorder, name: str, **changes: Any) -> Any:
    """A request that begins."""
    request = a_request(name, num_tokens=700, num_prompt_tokens=700, **changes)
    SchedulerInstrumentation(recorder, source=b"").on_request_start(request)
    return request


def test_requests_that_are_open_at_the_goodbye_get_their_roots_before_it() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    opened = start(recorder, "open")
    ended = start(recorder, "ended")
    recorder.contexts.end(recorder.contexts.of(ended))
    record(recorder, opened)
    record(recorder, a_request("only named, by a worker"))
    recorder.close(SLOW_S)
    *_, root, goodbye = transport.events()
    assert isinstance(goodbye, Heartbeat)
    assert goodbye.recorder_closed
    assert isinstance(root, CutOff)
    assert (root.request, root.outcome, root.prompt, root.request_sequence) == ("open", semconv.CUT_OFF, 700, 2)
    assert [event.request for event in transport.events() if isinstance(event, CutOff)] == ["open"]
    assert [event.sequence for event in transport.events()] == list(range(len(transport.events())))


def test_there_may_be_more_open_requests_than_fit_into_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "BATCH", 8)
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    for number in range(20):
        start(recorder, f"r-{number}")
    recorder.close(SLOW_S)
    events = transport.events()
    assert sum(isinstance(event, CutOff) for event in events) == 20
    assert isinstance(events[-1], Heartbeat)
    assert goodbyes(transport)[-1:] == [True]


class Request(SimpleNamespace):
    """vLLM's can be referred to weakly."""


def test_a_request_that_was_cut_off_ends_no_second_time() -> None:
    """A connector that has shut down may still be notified of the end."""
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    instrumentation, request = SchedulerInstrumentation(recorder), Request(**vars(a_request("open", num_tokens=700)))
    instrumentation.on_request_start(request)
    instrumentation.on_shutdown()
    instrumentation.on_request_finished(request, (False, None))
    recorder.close(SLOW_S)
    assert [type(event) for event in transport.events() if event.kind in semconv.ROOTS] == [CutOff]


class Foreign(MemoryTransport):
    """A receiver that is no kvtrail."""

    is_kvtrail = False


def beats(transport: MemoryTransport, heartbeats: Heartbeats = Heartbeats.AUTO) -> list[bool]:
    """The heartbeats of a recorder that is due to send one three times; whether each is the goodbye."""
    recorder = Recorder("engine", {semconv.HEARTBEATS.key: heartbeats.value}, InProcessExporter(transport))
    for _ in range(3):
        recorder._heartbeat_s = float("-inf")
        record(recorder, a_request())
        assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert len(transport.lookups()) == 3
    assert [event.sequence for event in transport.events()] == list(range(len(transport.events()))), "none is missing"
    return goodbyes(transport)


def test_heartbeats_are_for_kvtrail() -> None:
    assert beats(MemoryTransport())[-4:] == [False, False, False, True]


def test_another_receiver_gets_the_goodbye_alone_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vllm.kvtrail"):
        assert beats(Foreign()) == [True]
    (said,) = [each.getMessage() for each in caplog.records if "heartbeats" in each.getMessage()]
    assert said.startswith("kvtrail sends no heartbeats: the receiver at memory is not kvtrail.")
    assert "KVTRAIL_HEARTBEATS=spans" in said


def test_behind_another_receiver_they_are_sent_when_asked_for() -> None:
    assert beats(Foreign(), Heartbeats.SPANS)[-4:] == [False, False, False, True]


def test_they_can_be_off_and_then_no_goodbye_is_said_either() -> None:
    assert beats(MemoryTransport(), Heartbeats.OFF) == []


def test_who_receives_is_asked_when_there_is_nothing_to_send() -> None:
    """So that an engine without requests is known from its start on, and by no span where that is not wanted."""
    transport, foreign = MemoryTransport(), Foreign()
    for each in (transport, foreign):
        recorder = a_recorder(each)
        until(lambda: each.payloads)  # noqa: B023 - this turn's
        assert recorder.flush(SLOW_S)
        assert list(protobuf.spans(each.payloads[0])) == []
        recorder.close(SLOW_S)
    assert goodbyes(transport)[0] is False
    assert goodbyes(foreign) == [True]


def test_a_receiver_that_becomes_kvtrail_hears_them_from_then_on() -> None:
    transport = Foreign()
    recorder = a_recorder(transport)
    record(recorder, a_request())
    assert recorder.flush(SLOW_S)
    transport.is_kvtrail = True
    record(recorder, a_request())
    assert recorder.flush(SLOW_S)
    recorder._heartbeat_s = float("-inf")
    assert recorder.flush(SLOW_S)
    assert goodbyes(transport) == [False]
    recorder.close(SLOW_S)

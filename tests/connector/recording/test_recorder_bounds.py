"""Nothing switches the recording off: what is too large is cut, split, or dropped and counted, and the rest arrives."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from memory import MemoryTransport, a_recorder, a_request, record
from processes import SLOW_S, Tracer, free_port, serve, until

from kvtrail.connector.recording import recorder as recorder_module
from kvtrail.connector.recording import transport as transport_module
from kvtrail.connector.recording.encoder import MAX_BYTES, Encoder
from kvtrail.connector.recording.exporter import ExportProcess, InProcessExporter
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.recording.request_names import naming
from kvtrail.connector.recording.ring import EVERYTHING, EventTuple, Ring, bytes_of
from kvtrail.connector.recording.transport import Refused
from kvtrail.connector.recording.values import MAX_ITEMS, MAX_TEXT
from kvtrail.tracer.events import ids, semconv
from kvtrail.tracer.events.events import FIELDS, STEP_FIELDS, Heartbeat, Schedule, place
from kvtrail.tracer.events.losses import Lost
from kvtrail.tracer.events.semconv import STEP_SPAN, Kind
from kvtrail.tracer.ingest import protobuf
from kvtrail.tracer.serve.receive.grpc_receiver import MAX_MESSAGE_BYTES

MIB = 1 << 20
START = Kind.REQUEST_START.value
_HASHES = place(Kind.REQUEST_START, "block_hashes")
_SCHEDULE = FIELDS[Kind.SCHEDULE]


def an_event(number: int, size: int = 0) -> EventTuple:
    """The start of a request with this number of bytes of hashes."""
    values: list[Any] = [None] * len(FIELDS[Kind.REQUEST_START])
    values[_HASHES] = bytes(size) if size else None
    return (START, b"", (b"r" * 24, b"", "r", True), number, number, 0, 1, 1, None, tuple(values))


def start(recorder: Recorder, request: Any, size: int) -> None:
    """Record the start of a request with this number of bytes of hashes."""
    recorder.record(START, b"", recorder.contexts.of(request), 1, 2, an_event(0, size)[9])


def schedule(recorder: Recorder, request: Any, blocks: tuple[int, ...]) -> None:
    """Record the first step of a request with this block table."""
    said = {"computed": 0, "scheduled": 1, "blocks_ids": blocks}
    values = tuple(said.get(each.field) for each in _SCHEDULE)
    recorder.record(Kind.SCHEDULE.value, b"", recorder.contexts.of(request), 1, 2, values)


# Requests are cut by bytes.


def test_requests_are_cut_by_their_bytes() -> None:
    encoder = Encoder({}, 1, 0)
    events = [an_event(n, 100_000) for n in range(40)]
    sizes = [len(payload) for payload in encoder.requests(events, 512)]
    assert len(sizes) == 8
    assert max(sizes) < MAX_BYTES + 1000


def test_what_is_larger_alone_is_alone() -> None:
    encoder = Encoder({}, 1, 0)
    events = [an_event(0), an_event(1, MAX_BYTES), an_event(2)]
    assert [len(list(protobuf.spans(each))) for each in encoder.requests(events, 512)] == [1, 1, 1]


def test_a_step_of_very_many_rows_is_sent_in_parts() -> None:
    transport = MemoryTransport()
    recorder, count = a_recorder(transport), 20_000
    contexts = [recorder.contexts.of(a_request(f"{n:0{ids.MOST}}")) for n in range(count)]
    blocks = [(n, n + 1) if n % 3 else () for n in range(count)]
    numbers = tuple(range(count))
    recorder.record_step(b"", contexts, 1, numbers, numbers, (2,) * count, [[each] for each in blocks], 7, count)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    assert max(map(len, transport.payloads)) < MAX_MESSAGE_BYTES, "kvtrail refuses what has more over gRPC"
    rows = [event for event in transport.events() if isinstance(event, Schedule)]
    reported = [
        (row.request, row.computed, row.scheduled, row.drafted, row.blocks_ids, row.scheduler_step) for row in rows
    ]
    assert reported == [(f"{n:0{ids.MOST}}", n, n, 2, blocks[n], 7) for n in range(count)]
    assert recorder.dropped == 0


def test_a_few_large_events_do_not_wait_for_more() -> None:
    """Else the backlog of long prompts leaves at one batch each half a second, however fast the receiver is."""
    ring = Ring(1000, 64 * MIB)
    for n in range(50):
        size = 300_000
        ring.append_large(an_event(n, size), size)
    batches = []
    while batch := ring.take(2048, least=1024):
        batches.append(len(batch))
    assert (len(batches), set(batches)) == (7, {7}), "each of about two MiB"
    assert len(ring.waiting) == 1, "it is not worth a batch of its own"
    assert len(ring.take(2048)) == 1
    assert ring._unpacked_bytes == ring.large_bytes == 0


# What is refused is split.


class Strict(MemoryTransport):
    """It refuses requests that hold a certain text, or too many bytes; and all, while it is `broken`."""

    most = 1 << 30
    unwanted = b"unwanted"
    broken = False
    asked = 0

    def wants(self, payload: bytes) -> bool:
        self.asked += 1
        if self.broken or self.unwanted in payload:
            raise Refused(Lost.REFUSED)
        if len(payload) > self.most:
            raise Refused(Lost.TOO_LARGE)
        return True


def test_of_what_is_refused_the_single_span_is_dropped_and_counted() -> None:
    transport = Strict()
    recorder = a_recorder(transport)
    with transport.held_up():
        record(recorder, a_request("before"), 100)
        record(recorder, a_request("unwanted"))
        record(recorder, a_request("after"), 100)
    assert recorder.flush(SLOW_S)
    assert len(transport.lookups()) == 200
    assert transport.asked < 40, "in halves, and not one by one"
    assert (recorder.dropped, recorder.dropped_by) == (1, {Lost.REFUSED: 1})
    recorder.close(SLOW_S)
    goodbye = [event for event in transport.events() if isinstance(event, Heartbeat)][-1]
    assert (goodbye.recorder_dropped, goodbye.recorder_dropped_by) == (1, ("refused:1",))
    assert goodbye.recorder_recorded == 201 + len(transport.events()) - 200 - 1, "dropped ones included, each once"


def test_a_receiver_that_takes_less_gets_it_in_parts() -> None:
    transport = Strict()
    transport.most = 50_000
    recorder = a_recorder(transport)
    for n in range(20):
        start(recorder, a_request(f"r-{n}"), 60_000 if n == 7 else 20_000)
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    starts = {event.request for event in transport.events() if event.kind == Kind.REQUEST_START}
    assert starts == {f"r-{n}" for n in range(20)} - {"r-7"}
    assert recorder.dropped_by == {Lost.TOO_LARGE: 1}


def test_nothing_is_dropped_for_a_receiver_that_refuses_everything() -> None:
    """An address that is no OTLP receiver's answers everything with an error: it is not the events that it refuses."""
    transport = Strict()
    transport.broken = True
    recorder = a_recorder(transport)
    record(recorder, a_request(), 100)
    assert not recorder.flush(timeout_s=0)
    until(lambda: transport.asked > 20)
    assert recorder.dropped == 0
    transport.broken = False
    assert recorder.flush(SLOW_S)
    assert len(transport.lookups()) == 100
    recorder.close(SLOW_S)


@pytest.mark.parametrize(
    ("code", "trailing", "why"),
    [
        ("UNAVAILABLE", [], None),
        ("DEADLINE_EXCEEDED", [], None),
        ("RESOURCE_EXHAUSTED", [], Lost.TOO_LARGE),
        ("RESOURCE_EXHAUSTED", [("google.rpc.retryinfo-bin", b"x")], None),
        ("RESOURCE_EXHAUSTED", [("grpc-status-details-bin", b"type.googleapis.com/google.rpc.RetryInfo")], None),
        ("INVALID_ARGUMENT", [], Lost.REFUSED),
        ("INTERNAL", [], Lost.REFUSED),
    ],
)
def test_what_a_grpc_error_says_of_a_request(code: str, trailing: Any, why: Lost | None) -> None:
    assert code in grpc.StatusCode.__members__
    assert transport_module._refusal(code, trailing) is why


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_real_sidecar_that_takes_less_gets_it_in_parts(
    start_tracer: Callable[..., Tracer], monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Requests of at most 1 MiB: what is larger alone is dropped and counted, and what came with it arrives."""
    tracer = start_tracer("--max-request-mib", "1")
    is_http = protocol == "http/protobuf"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", tracer.url if is_http else f"http://127.0.0.1:{tracer.grpc_port}")
    monkeypatch.setattr("kvtrail.connector.recording.recorder.bounded", lambda _, values: (values, False))
    recorder = Recorder("engine", {}, ExportProcess())
    record(recorder, a_request("before"))
    start(recorder, a_request("large"), MIB + 1000)
    record(recorder, a_request("after"))
    assert recorder.flush(SLOW_S)
    assert recorder.dropped_by == {Lost.TOO_LARGE: 1}
    until(lambda: {each["request"] for each in tracer.get("/api/requests")} == {"before", "after"})
    recorder.close(SLOW_S)
    (known,) = tracer.get("/api/health")["recorders"]
    assert (known["dropped"], known["dropped_by"], known["missing"]) == (1, {"too_large": 1}, 1)
    reason = 'kvtrail_events_dropped_by_reason_total{engine="engine",reason="too_large"} 1.0'
    assert reason in tracer.read("/metrics")


# What callers give is bounded.


def test_a_long_id_is_shortened_and_can_still_be_joined() -> None:
    long = "x" * 900_000
    assert ids.bounded("chatcmpl-7-0123abcd") == "chatcmpl-7-0123abcd"
    short = ids.bounded(f"{long}-0123abcd")
    assert len(short) < ids.MOST
    assert semconv.external_id(short) == ids.bounded(long), "who knows what the caller gave finds it"
    assert ids.bounded(short) == short
    assert ids.bounded(f"{long}y") != ids.bounded(long)
    assert len(ids.bounded("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 150).encode()) < ids.MOST
    assert ids.bounded("\ud800" * 1000).isprintable(), "no UTF-8 at all"


def test_hashed_names_of_a_long_id_and_of_its_short_form_are_equal() -> None:
    named = naming({"KVTRAIL_HASH_IDS": "key"})
    assert named is not None
    assert named("x" * 1000 + "-0123abcd") == named(ids.bounded("x" * 1000 + "-0123abcd"))


def test_a_long_id_is_kept_nowhere_once_its_request_has_ended() -> None:
    recorder = a_recorder(MemoryTransport())
    request = a_request("x" * 900_000)
    context = recorder.contexts.of(request)
    recorder.contexts.end(context, delayed=True)
    assert max(map(len, [*recorder.contexts._ended, *recorder.contexts.delayed, context.request_id])) < ids.MOST
    assert recorder.contexts.of_id(request.request_id) is context, "late events find it"
    recorder.contexts.release(request.request_id)
    assert not recorder.contexts.delayed
    recorder.close(SLOW_S)


def test_what_is_too_large_for_a_span_is_unknown_and_counted() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    schedule(recorder, a_request(), tuple(range(MAX_ITEMS + 1)))
    recorder.record(Kind.FAILURE.value, b"", None, 1, 2, ("c" * 1_000_000,), "E: " + "e" * 1_000_000)
    recorder.close(SLOW_S)
    step, failure = [event for event in transport.events() if not isinstance(event, Heartbeat)]
    assert step.blocks_ids is None  # type: ignore[attr-defined]
    assert len(failure.call) < MAX_TEXT  # type: ignore[attr-defined]
    assert len(failure.error or "") <= 2000
    goodbye = [event for event in transport.events() if isinstance(event, Heartbeat)][-1]
    assert goodbye.recorder_unrecorded == ("kv.schedule:1",)


# The ring is bounded in bytes.


def test_the_ring_is_bounded_in_bytes_and_counts_what_it_drops() -> None:
    ring = Ring(65_536, 8 * MIB)
    count, size = 2000, 100_000
    for n in range(count):
        event = an_event(n, size)
        ring.append_large(event, bytes_of(START, event[9]))
        assert ring.large_bytes <= 3 * MIB
    assert ring.dropped == ring.crowded_out == count - len(ring.waiting)
    taken = ring.take(1 << 62, most_bytes=1 << 62)
    assert [event[3] for event in taken] == list(range(count - len(taken), count)), "the latest are kept"
    assert all(len(event[9][_HASHES]) == size for event in taken)
    assert (ring.large_bytes, ring.dropped) == (0, count - len(taken))


def test_a_step_that_is_crowded_out_counts_as_many_events_as_it_has_rows() -> None:
    ring, rows, steps = Ring(100, 8 * MIB), 50, 5
    values = (tuple(f"r{row}" for row in range(rows)), *[None] * (len(STEP_FIELDS) - 1))
    for step in range(steps):
        ring.append_large((STEP_SPAN, *an_event(step * rows)[1:9], values), 2 * MIB)
    assert len(ring.waiting) == 1, "two need more than three MiB"
    assert ring.dropped == ring.crowded_out == (steps - 1) * rows
    assert len(ring.take(EVERYTHING)) == 1
    assert ring.dropped == ring.crowded_out


def test_small_events_push_out_large_ones_and_their_bytes() -> None:
    ring = Ring(16, 8 * MIB)
    for n in range(200):
        event = an_event(n, 100_000 if n % 10 == 0 else 0)
        if n % 10:
            ring.waiting.append(event)
        else:
            ring.append_large(event, 100_000)
    assert ring.large_bytes <= 3 * 100_000
    assert ring.crowded_out == 0
    assert ring.dropped == 200 - 16


def test_lists_of_a_ring_that_is_not_emptied_are_packed() -> None:
    ring, blocks = Ring(65_536, 8 * MIB), tuple(range(1 << 16, (1 << 16) + 8192))
    values = tuple(blocks if a.field == "blocks_ids" else None for a in _SCHEDULE)
    event = (Kind.SCHEDULE.value, *an_event(0)[1:9], values)
    for n in range(50):
        ring.append_large((*event[:3], n, *event[4:]), bytes_of(event[0], values))  # type: ignore[arg-type]
    assert ring.dropped == 0, "unpacked they take 14 MB"
    assert {each[9] for each in ring.take(1 << 62, most_bytes=1 << 62)} == {values}


def test_a_batch_is_bounded_in_bytes() -> None:
    ring = Ring(65_536, 64 * MIB)
    for n in range(20):
        event = an_event(n, 500_000)
        ring.append_large(event, 500_000)
    assert len(ring.take(2048)) == 5


def test_threads_that_record_together_lose_no_bytes_of_the_account() -> None:
    ring = Ring(65_536, 1 << 40)

    def add(first: int) -> None:
        for n in range(first, first + 2000):
            ring.append_large(an_event(n), 1000)

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 10_000)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert ring.large_bytes <= 4000 * 1000
    ring.take(1 << 62, most_bytes=1 << 62)
    ring.append_large(an_event(30_000), 1000)
    assert ring.large_bytes == 1000


def test_what_was_dropped_in_an_outage_is_said_by_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    transport.accepts = False
    recorder = Recorder("engine", {}, InProcessExporter(transport), queue_bytes=4 * MIB)
    for n in range(200):
        start(recorder, a_request(f"r-{n}"), 50_000)
    transport.await_refusal()
    transport.accepts = True
    assert recorder.flush(SLOW_S)
    arrived = [event for event in transport.events() if event.kind == Kind.REQUEST_START]
    assert recorder.dropped_by[Lost.QUEUE_BYTES] > 0
    assert recorder.dropped == sum(recorder.dropped_by.values()) == 200 - len(arrived)
    assert re.search(rf"{recorder.dropped} events were dropped so far \(.*queue_bytes", caplog.text)
    recorder.close(SLOW_S)


def test_recording_is_whole_again_after_an_outage_with_long_prompts(
    start_tracer: Callable[..., Tracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sidecar is killed while prompts of 128k tokens come, and one request has an id of 900 kB; what is recorded after its
    return arrives, and what does not arrive is counted."""
    monkeypatch.setattr(recorder_module, "HEARTBEAT_S", 1e9)  # none comes between a look and the kill
    tracer = start_tracer()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{tracer.grpc_port}")
    recorder = Recorder("engine", {}, ExportProcess(), queue_bytes=16 * MIB)
    record(recorder, a_request("first"))
    assert recorder.flush(SLOW_S)
    (before,) = tracer.get("/api/health")["recorders"]
    tracer.kill()
    draw = random.Random(5)
    for n in range(300):
        request = a_request(f"long-{n}" if n % 50 else "x" * 900_000 + f"-{n:08x}")
        blocks = tuple(draw.randrange(1 << 20) for _ in range(8192))
        start(recorder, request, 65_536)
        schedule(recorder, request, blocks)
    again = start_tracer(store=tracer.store, grpc_port=tracer.grpc_port)
    record(recorder, a_request("last"))
    assert recorder.flush(SLOW_S)
    assert again.get("/api/requests/last")["request"]["request"] == "last"
    assert again.get("/api/requests", search="long-299")
    recorder.close(SLOW_S)
    (known,) = again.get("/api/health")["recorders"]
    assert known["dropped"] == recorder.dropped == sum(known["dropped_by"].values()) > 0
    assert before["received"] + known["received"] + known["dropped"] == recorder._ring.next, (
        "and nothing else is missing"
    )


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_sender_does_not_sleep_while_no_receiver_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """The SDK waits for up to four seconds between two attempts; the recorder asks again each half second."""
    port = free_port()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")

    def sleep(*_: Any) -> None:
        raise AssertionError("it sleeps")

    sender: Any = transport_module.from_environment()
    waits = sender._exporter._shutdown_in_progress if protocol == "grpc" else sender._client._shutdown_event
    monkeypatch.setattr(waits, "wait", sleep)
    for _ in range(5):
        assert not sender.send(b"")
    tracer = serve(tmp_path, **{"grpc_port" if protocol == "grpc" else "http_port": port})  # type: ignore[arg-type]
    try:
        until(lambda: sender.send(b""))
        assert sender.is_kvtrail
    finally:
        sender.close()
        tracer.end()


def test_the_whole_id_of_a_caller_finds_its_request(
    start_tracer: Callable[..., Tracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = start_tracer()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{tracer.grpc_port}")
    recorder = Recorder("engine", {}, ExportProcess())
    long = "tenant-" + "x" * 5000
    record(recorder, a_request(f"{long}-0123abcd"))
    assert recorder.flush(SLOW_S)
    recorder.close(SLOW_S)
    short = ids.bounded(f"{long}-0123abcd")
    for name in (long, f"{long}-0123abcd", short):
        assert tracer.get(f"/api/requests/{name}")["request"]["request"] == short
        assert [each["request"] for each in tracer.get("/api/requests", search=name)] == [short]
        assert [each["request"] for each in tracer.get("/api/requests", near=name)] == []

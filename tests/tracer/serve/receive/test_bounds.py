"""What is too much at a time: the sender is asked to try again, nothing of it is lost, and all of it is counted."""

from __future__ import annotations

import asyncio
import gzip
import re
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from history import history
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from processes import SLOW_S, Tracer, until
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from wire import encoded

from kvtrail.connector.recording import transport
from kvtrail.tracer.ingest.protobuf import spans
from kvtrail.tracer.serve.http_server import HttpServer
from kvtrail.tracer.serve.limits import RETRY_S, Limits
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive import grpc_receiver, http_receiver, intake
from kvtrail.tracer.serve.receive.intake import Intake

Start = Callable[..., Tracer]
BODY = {"content-type": "application/x-protobuf"}
CHANNEL = [("grpc.use_local_subchannel_pool", 1)]
"""Options of a channel with a connection of its own."""
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
PAYLOAD = encoded(history("L 749 c0 h256 -> 256\nA 256"))


def readable(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """Those with something to read, or that are closed. `select` would take no descriptor above 1,023."""
    poll, by_number = select.poll(), {each.fileno(): each for each in sockets}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(0)]


def rejected(page: str, transport: str, reason: str) -> int:
    """How many requests a page of metrics says were turned away."""
    pattern = rf'^kvtrail_rejected_total\{{reason="{reason}",transport="{transport}"\}} (\S+)$'
    found = re.search(pattern, page, re.MULTILINE)
    assert found, page
    return int(float(found[1]))


class SlowPipeline:
    """One that takes a request only when it may, and keeps the ids of what it has taken."""

    def __init__(self) -> None:
        self.may, self.entered = threading.Event(), threading.Semaphore(0)
        self.stored: set[str] = set()
        self.errors = None

    def ingest(self, payload: bytes, *, transport: str) -> None:
        self.entered.release()
        assert self.may.wait(SLOW_S)
        self.stored |= {span.span_id for span in spans(payload)}


@pytest.fixture
def slow() -> Iterator[SimpleNamespace]:
    """A gRPC server of a slow pipeline."""
    pipeline, metrics = SlowPipeline(), Metrics()
    receiver = grpc_receiver.GrpcReceiver("127.0.0.1", 0)
    receiver.start(Intake(pipeline, most_bytes=2**22), metrics)  # type: ignore[arg-type]
    yield SimpleNamespace(pipeline=pipeline, port=receiver.port, page=lambda: metrics.expose("")[0].decode())
    pipeline.may.set()
    receiver.stop(0)


def test_over_grpc_too_many_heavy_ones_are_asked_to_try_again(slow: SimpleNamespace) -> None:
    """By the details that OTLP wants, and by those that OpenTelemetry's SDK for Python reads."""
    heavy = PAYLOAD * (intake.HEAVY_BYTES // len(PAYLOAD) + 1)
    with grpc.insecure_channel(f"127.0.0.1:{slow.port}") as channel, ThreadPoolExecutor(20) as pool:
        export = channel.unary_unary(EXPORT)
        calls = [pool.submit(export, heavy, timeout=SLOW_S) for _ in range(intake.HEAVY_WAITING + 2)]
        refusal = next(as_completed(calls)).exception(SLOW_S)
        assert isinstance(refusal, grpc.RpcError)
        assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        reported = dict(refusal.trailing_metadata())
        info = RetryInfo()
        assert Status.FromString(reported["grpc-status-details-bin"]).details[0].Unpack(info)
        assert info == RetryInfo.FromString(reported["google.rpc.retryinfo-bin"])
        assert info.retry_delay.seconds == RETRY_S
        assert rejected(slow.page(), "grpc", "busy") == 1
        slow.pipeline.may.set()
        assert [each.exception(SLOW_S) for each in calls].count(None) == intake.HEAVY_WAITING + 1


def test_over_grpc_a_recorder_tries_again_where_calls_are_too_many(
    slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{slow.port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")  # so that the SDK does not come again
    channels = [grpc.insecure_channel(f"127.0.0.1:{slow.port}", CHANNEL) for _ in range(grpc_receiver.CALLS_AT_ONCE)]
    calls = [channel.unary_unary(EXPORT).future(PAYLOAD, timeout=SLOW_S) for channel in channels]
    for _ in calls:
        assert slow.pipeline.entered.acquire(timeout=SLOW_S)
    sender = transport.from_environment()
    assert not sender.send(PAYLOAD)  # and no `Refused`
    slow.pipeline.may.set()
    assert all(call.result(SLOW_S) == b"" for call in calls)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")
    later = transport.from_environment()
    assert later.send(PAYLOAD)
    for each in (sender, later, *channels):
        each.close()


def exported(exporters: list[Any], overload: Callable[[], object], end: Callable[[], object]) -> set[str]:
    """Let every exporter of the SDK send two batches while there is too much of it; returns the spans' ids."""
    providers, ids = [], set()
    for exporter in exporters:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=20))
        providers.append(provider)
    for provider in providers:
        for number in range(40):
            with provider.get_tracer("test").start_as_current_span(f"span {number}") as span:
                ids.add(f"{span.get_span_context().span_id:016x}")
    with ThreadPoolExecutor() as pool:
        flushed = [pool.submit(provider.force_flush) for provider in providers]
        overload()
        end()
        assert all(each.result(SLOW_S) for each in flushed)
    for provider in providers:
        provider.shutdown()
    return ids


class SlowWithHeavy(SlowPipeline):
    """One that takes light requests at once."""

    def ingest(self, payload: bytes, *, transport: str) -> None:
        if len(payload) > intake.PART_BYTES // 2:
            super().ingest(payload, transport=transport)


def test_light_bodies_wait_for_no_heavy_ones() -> None:
    """However many of these wait for their turn; of those that find no place, the senders try again."""
    pipeline = SlowWithHeavy()
    app = FastAPI()
    app.include_router(http_receiver.http_routes(Intake(pipeline, most_bytes=2**22), Metrics(), Limits()))  # type: ignore[arg-type]
    heavy = PAYLOAD * (intake.HEAVY_BYTES // len(PAYLOAD) + 1)

    async def post_all() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar", headers=BODY) as client:
            waiting = [asyncio.create_task(client.post("/v1/traces", content=heavy)) for _ in range(15)]
            # All of them have asked for a place before one is free again.
            refused: set[asyncio.Task[httpx.Response]] = set()
            while len(refused) < 6:
                done, _ = await asyncio.wait({*waiting} - refused, return_when=asyncio.FIRST_COMPLETED, timeout=SLOW_S)
                assert {each.result().status_code for each in done} == {429}
                refused |= done
            light = await asyncio.wait_for(client.post("/v1/traces", content=PAYLOAD), SLOW_S)
            assert light.status_code == 200
            pipeline.may.set()
            codes = Counter([(await each).status_code for each in waiting])
            assert codes == {200: 9, 429: 6}

    asyncio.run(post_all())


def half_sent(tracer: Tracer, body: bytes, first: int) -> socket.socket:
    """A connection on which this number of bytes of a body have been sent."""
    connection = socket.create_connection(("127.0.0.1", tracer.http_port), timeout=SLOW_S)
    head = f"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BODY['content-type']}\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:first])
    return connection


def test_over_http_an_exporter_loses_nothing(start_tracer: Start) -> None:
    """Those who have sent half of a long request have all the room."""
    tracer = start_tracer(limits={"receive_seconds": 600})
    longest = bytes(Limits().request_bytes)
    with ExitStack() as stack:
        half = [stack.enter_context(half_sent(tracer, longest, 10)) for _ in range(http_receiver.LARGEST_WAITING)]
        until(lambda: f"kvtrail_http_requests_waiting {len(half)}.0" in tracer.read("/metrics"))
        refusal = httpx.post(f"{tracer.url}/v1/traces", content=PAYLOAD, headers=BODY)
        assert (refusal.status_code, refusal.headers["retry-after"]) == (429, str(RETRY_S))

        def overload() -> None:
            until(lambda: rejected(tracer.read("/metrics"), "http", "busy") >= 2)

        ids = exported([HttpExporter(f"{tracer.url}/v1/traces", timeout=SLOW_S)], overload, half[0].close)
    assert ids <= {span["span_id"] for span in tracer.get("/api/spans", limit=1000)}


def test_a_body_that_does_not_come_gives_its_place_back(start_tracer: Start) -> None:
    tracer = start_tracer(limits={"receive_seconds": 1})
    with half_sent(tracer, PAYLOAD, 10) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
    tracer.post(PAYLOAD)
    page = tracer.read("/metrics")
    assert rejected(page, "http", "slow") == 1
    assert "kvtrail_http_requests_waiting 0.0" in page


def test_a_request_has_a_size_as_it_comes_and_unpacked(start_tracer: Start) -> None:
    tracer = start_tracer("--max-request-mib", "1")
    zeros = bytes(2**21)
    for body, headers in ((zeros, {}), (gzip.compress(zeros), {"content-encoding": "gzip"})):
        refusal = httpx.post(f"{tracer.url}/v1/traces", content=body, headers={**BODY, **headers}, timeout=SLOW_S)
        assert refusal.status_code == 413
    assert rejected(tracer.read("/metrics"), "http", "too_large") == 2
    for compression, payload in ((None, bytes(2**20 + 1)), (grpc.Compression.Gzip, zeros)):
        with grpc.insecure_channel(f"127.0.0.1:{tracer.grpc_port}", compression=compression) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(EXPORT)(payload, timeout=SLOW_S)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "larger than max" in refused.value.details()
    assert rejected(tracer.read("/metrics"), "grpc", "too_large") == 1  # gRPC's library does not say what it refuses


def test_a_body_that_is_too_long_is_refused_before_it_comes(start_tracer: Start) -> None:
    tracer = start_tracer(limits={"receive_seconds": 600})
    with half_sent(tracer, bytes(2**23), 10) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", tracer.http_port), timeout=SLOW_S) as connection:
        head = f"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BODY['content-type']}\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n400001\r\n".encode() + bytes(2**22 + 1))
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_of_too_many_connections_those_that_only_wait_are_closed(start_tracer: Start) -> None:
    tracer = start_tracer(limits={"max_connections": 3, "receive_seconds": 600})
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", tracer.http_port), timeout=SLOW_S))
            for _ in range(5)
        ]
        until(lambda: len(readable(silent)) == 2)  # closed by the other side
        assert httpx.get(f"{tracer.url}/healthz", timeout=SLOW_S).status_code == 200


def test_connections_that_only_wait_make_room_for_who_asks(start_tracer: Start) -> None:
    """As many as there may be, each with the beginning of a request."""
    tracer = start_tracer(limits={"max_connections": 3, "receive_seconds": 600})
    with ExitStack() as stack:
        for _ in range(3):
            silent = socket.create_connection(("127.0.0.1", tracer.http_port), timeout=SLOW_S)
            stack.enter_context(silent).sendall(b"GET / HTTP/1.1\r\nX: ")
        assert httpx.get(f"{tracer.url}/api/health", timeout=SLOW_S).status_code == 200


class Answering:
    """A connection of uvicorn's with a request that is being answered."""

    cycle = SimpleNamespace(response_complete=False)


def test_beyond_the_connections_only_probes_are_answered() -> None:
    refused: list[None] = []
    server = HttpServer(
        PlainTextResponse("here"),
        limits=Limits(max_connections=2),
        drain_s=1,
        on_refusal=lambda: refused.append(None),
    )
    client = TestClient(server._admit)
    assert client.get("/api/fleet").text == "here"
    server.server_state.connections |= {Answering(), Answering(), Answering()}  # type: ignore[arg-type]
    refusal = client.get("/api/fleet")
    assert (refusal.status_code, refusal.headers["retry-after"]) == (503, str(RETRY_S))
    assert client.get("/healthz").text == "here"
    assert len(refused) == 1

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from history import history
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from processes import SLOW_S, Tracer, until
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from wire import encoded

from kvtrail.tracer.ingest.protobuf import spans
from kvtrail.tracer.serve.http_server import HttpServer, bound
from kvtrail.tracer.serve.limits import RETRY_S, Limits
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive import receivers, turns

Start = Callable[..., Tracer]
BODY = {"content-type": "application/x-protobuf"}
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
def slow(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A gRPC server of a slow pipeline, in which only two requests may wait."""
    pipeline, metrics = SlowPipeline(), Metrics()
    receiver = receivers.GrpcReceiver(
        pipeline,  # type: ignore[arg-type]
        metrics,
        listener := bound("127.0.0.1", 0),
        tmp_path / "grpc",
        limits=Limits(max_waiting=2),
        most_connections=10,
    )
    port = listener.getsockname()[1]
    yield SimpleNamespace(pipeline=pipeline, port=port, page=lambda: metrics.expose("")[0].decode())
    pipeline.may.set()
    receiver.stop(0)


def test_over_grpc_too_many_are_asked_to_try_again(slow: SimpleNamespace) -> None:
    """By the details that OTLP wants, and by those that OpenTelemetry's SDK for Python reads."""
    with grpc.insecure_channel(f"127.0.0.1:{slow.port}") as channel, ThreadPoolExecutor() as pool:
        export = channel.unary_unary(EXPORT)
        calls = [pool.submit(export, PAYLOAD, timeout=SLOW_S) for _ in range(2)]
        for _ in calls:
            assert slow.pipeline.entered.acquire(timeout=SLOW_S)
        with pytest.raises(grpc.RpcError) as refusal:
            export(PAYLOAD, timeout=SLOW_S)
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        reported = dict(refusal.value.trailing_metadata())
        info = RetryInfo()
        assert Status.FromString(reported["grpc-status-details-bin"]).details[0].Unpack(info)
        assert info == RetryInfo.FromString(reported["google.rpc.retryinfo-bin"])
        assert info.retry_delay.seconds == RETRY_S
        assert rejected(slow.page(), "grpc", "busy") == 1
        assert 'kvtrail_requests_waiting{transport="grpc"} 2.0' in slow.page()
        slow.pipeline.may.set()
        for call in calls:
            call.result(SLOW_S)
    until(lambda: 'kvtrail_requests_waiting{transport="grpc"} 0.0' in slow.page())


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


def test_over_grpc_an_exporter_loses_nothing(slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "RETRY_S", 1)
    exporters = [GrpcExporter(f"http://127.0.0.1:{slow.port}", timeout=SLOW_S) for _ in range(6)]

    def overload() -> None:
        until(lambda: rejected(slow.page(), "grpc", "busy") >= 4)

    assert slow.pipeline.stored == set()
    assert exported(exporters, overload, slow.pipeline.may.set) == slow.pipeline.stored


class SlowWithHeavy(SlowPipeline):
    """One that takes light requests at once."""

    def ingest(self, payload: bytes, *, transport: str) -> None:
        if len(payload) > turns.HEAVY_BYTES:
            super().ingest(payload, transport=transport)


def test_light_bodies_wait_for_no_heavy_ones() -> None:
    """However many of these wait for their turn; of those that find no place, the senders try again."""
    pipeline = SlowWithHeavy()
    app = FastAPI()
    app.include_router(receivers.http_routes(pipeline, Metrics(), Limits(max_waiting=80)))  # type: ignore[arg-type]
    heavy = PAYLOAD * (turns.HEAVY_BYTES // len(PAYLOAD) + 1)

    async def post_all() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar", headers=BODY) as client:
            waiting = [asyncio.create_task(client.post("/v1/traces", content=heavy)) for _ in range(60)]
            # All of them have asked for a place before one is free again.
            refused: set[asyncio.Task[httpx.Response]] = set()
            while len(refused) < 20:
                done, _ = await asyncio.wait({*waiting} - refused, return_when=asyncio.FIRST_COMPLETED, timeout=SLOW_S)
                assert {each.result().status_code for each in done} == {429}
                refused |= done
            light = await asyncio.wait_for(client.post("/v1/traces", content=PAYLOAD), SLOW_S)
            assert light.status_code == 200
            pipeline.may.set()
            codes = Counter([(await each).status_code for each in waiting])
            assert codes == {200: 40, 429: 20}

    asyncio.run(post_all())


def half_sent(tracer: Tracer, body: bytes, first: int) -> socket.socket:
    """A connection on which this number of bytes of a body have been sent."""
    connection = socket.create_connection(("127.0.0.1", tracer.http_port), timeout=SLOW_S)
    head = f"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BODY['content-type']}\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:first])
    return connection


def test_over_http_an_exporter_loses_nothing(start_tracer: Start) -> None:
    """Somebody who has sent half of a request has the only place."""
    tracer = start_tracer(limits={"max_waiting": 1, "receive_seconds": 600})
    connection = half_sent(tracer, PAYLOAD, 10)
    until(lambda: 'kvtrail_requests_waiting{transport="http"} 1.0' in tracer.read("/metrics"))
    refusal = httpx.post(f"{tracer.url}/v1/traces", content=PAYLOAD, headers=BODY)
    assert (refusal.status_code, refusal.headers["retry-after"]) == (429, str(RETRY_S))

    def overload() -> None:
        until(lambda: rejected(tracer.read("/metrics"), "http", "busy") >= 2)

    def end() -> None:
        connection.sendall(PAYLOAD[10:])
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()

    ids = exported([HttpExporter(f"{tracer.url}/v1/traces", timeout=SLOW_S)], overload, end)
    assert ids <= {span["span_id"] for span in tracer.get("/api/spans", limit=1000)}


def test_of_bodies_that_are_too_much_together_the_longest_is_given_up(start_tracer: Start) -> None:
    """It makes room for the others, which are stored."""
    tracer = start_tracer(limits={"max_waiting_mib": 1, "receive_seconds": 600})
    body = PAYLOAD * (900_000 // len(PAYLOAD))
    with half_sent(tracer, body + b"x", len(body)) as longest:
        until(lambda: 'kvtrail_requests_waiting{transport="http"} 1.0' in tracer.read("/metrics"))
        tracer.post(body[: len(PAYLOAD) * 300])
        assert longest.recv(100).startswith(b"HTTP/1.1 429")
    assert rejected(tracer.read("/metrics"), "http", "memory") == 1


def test_a_body_that_does_not_come_gives_its_place_back(start_tracer: Start) -> None:
    tracer = start_tracer(limits={"max_waiting": 1, "receive_seconds": 1})
    with half_sent(tracer, PAYLOAD, 10) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
    tracer.post(PAYLOAD)
    assert rejected(tracer.read("/metrics"), "http", "slow") == 1


def test_a_request_has_a_size_as_it_comes_and_unpacked(start_tracer: Start) -> None:
    tracer = start_tracer("--max-request-mib", "1")
    zeros = bytes(2**21)
    for body, headers in ((zeros, {}), (gzip.compress(zeros), {"content-encoding": "gzip"})):
        refusal = httpx.post(f"{tracer.url}/v1/traces", content=body, headers={**BODY, **headers}, timeout=SLOW_S)
        assert refusal.status_code == 413
    assert rejected(tracer.read("/metrics"), "http", "too_large") == 2
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        with grpc.insecure_channel(f"127.0.0.1:{tracer.grpc_port}", compression=compression) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(EXPORT)(zeros, timeout=SLOW_S)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "larger than max" in refused.value.details()
    assert rejected(tracer.read("/metrics"), "grpc", "too_large") == 2


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


def test_of_too_many_bodies_that_do_not_come_the_first_makes_room(start_tracer: Start) -> None:
    tracer = start_tracer(limits={"max_waiting": 12, "receive_seconds": 600})
    most = int(12 * receivers.COMING_SHARE)
    with ExitStack() as stack:
        stalled = [stack.enter_context(half_sent(tracer, PAYLOAD, 10)) for _ in range(most)]
        until(lambda: f'kvtrail_requests_waiting{{transport="http"}} {most}.0' in tracer.read("/metrics"))
        tracer.post(PAYLOAD)
        until(lambda: readable(stalled))
        assert [each.recv(12) for each in readable(stalled)] == [b"HTTP/1.1 429"]
    assert rejected(tracer.read("/metrics"), "http", "slow") == 1


class Answering:
    """A connection of uvicorn's with a request that is being answered."""

    cycle = SimpleNamespace(response_complete=False)


def test_beyond_the_connections_only_probes_are_answered() -> None:
    refused: list[None] = []
    server = HttpServer(
        PlainTextResponse("here"),
        limits=Limits(max_connections=2),
        drain_s=1,
        on_exit=lambda: None,
        on_refusal=lambda: refused.append(None),
    )
    client = TestClient(server._admit)
    assert client.get("/api/fleet").text == "here"
    server.server_state.connections |= {Answering(), Answering(), Answering()}  # type: ignore[arg-type]
    refusal = client.get("/api/fleet")
    assert (refusal.status_code, refusal.headers["retry-after"]) == (503, str(RETRY_S))
    assert client.get("/healthz").text == "here"
    assert len(refused) == 1

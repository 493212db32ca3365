"""What is too much at a time: the sender is asked to try again, nothing of it is lost, and all of it is counted."""

from __future__ import annotations

import gzip
import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from history import history
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from processes import SLOW_S, Tracer, free_port, until
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from wire import encoded

from kvtrail.tracer.ingest.protobuf import spans
from kvtrail.tracer.serve import receivers
from kvtrail.tracer.serve.http_server import HttpServer
from kvtrail.tracer.serve.limits import RETRY_S, Limits
from kvtrail.tracer.serve.metrics import Metrics

Start = Callable[..., Tracer]
BODY = {"content-type": "application/x-protobuf"}
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
PAYLOAD = encoded(history("L 749 c0 h256 -> 256\nA 256"))


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
    """A gRPC server of a slow pipeline, in which only two requests may wait."""
    pipeline, metrics, port = SlowPipeline(), Metrics(), free_port()
    server = receivers.serve_grpc(pipeline, metrics, "127.0.0.1", port, limits=Limits(max_waiting=2))  # type: ignore[arg-type]
    yield SimpleNamespace(pipeline=pipeline, port=port, page=lambda: metrics.expose("")[0].decode())
    pipeline.may.set()
    server.stop(0).wait()


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
        told = dict(refusal.value.trailing_metadata())
        info = RetryInfo()
        assert Status.FromString(told["grpc-status-details-bin"]).details[0].Unpack(info)
        assert info == RetryInfo.FromString(told["google.rpc.retryinfo-bin"])
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
    exporters = [GrpcExporter(f"http://127.0.0.1:{slow.port}", timeout=60) for _ in range(6)]

    def overload() -> None:
        until(lambda: rejected(slow.page(), "grpc", "busy") >= 4)

    assert slow.pipeline.stored == set()
    assert exported(exporters, overload, slow.pipeline.may.set) == slow.pipeline.stored


def half_sent(tracer: Tracer, body: bytes, first: int) -> socket.socket:
    """A connection on which so many bytes of a body have been sent."""
    connection = socket.create_connection(("127.0.0.1", tracer.http_port), timeout=SLOW_S)
    head = f"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BODY['content-type']}\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:first])
    return connection


def test_over_http_an_exporter_loses_nothing(start_tracer: Start) -> None:
    """Somebody who has sent half of a request has the only place."""
    tracer = start_tracer("--max-waiting", "1", "--receive-seconds", "600")
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

    ids = exported([HttpExporter(f"{tracer.url}/v1/traces", timeout=60)], overload, end)
    assert ids <= {span["span_id"] for span in tracer.get("/api/spans", limit=1000)}


def test_bodies_that_are_too_much_together_are_refused(start_tracer: Start) -> None:
    tracer = start_tracer("--max-waiting-mib", "1", "--receive-seconds", "600")
    body = bytes(900_000)
    with half_sent(tracer, body + b"x", len(body)):
        until(lambda: 'kvtrail_requests_waiting{transport="http"} 1.0' in tracer.read("/metrics"))
        refusal = httpx.post(f"{tracer.url}/v1/traces", content=body, headers=BODY, timeout=SLOW_S)
        assert (refusal.status_code, refusal.headers["retry-after"]) == (429, str(RETRY_S))
        assert rejected(tracer.read("/metrics"), "http", "memory") == 1
    until(lambda: rejected(tracer.read("/metrics"), "http", "cut_off") == 1)
    tracer.post(PAYLOAD)


def test_a_body_that_does_not_come_gives_its_place_back(start_tracer: Start) -> None:
    tracer = start_tracer("--max-waiting", "1", "--receive-seconds", "1")
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


def test_of_too_many_connections_those_that_only_wait_are_closed(start_tracer: Start) -> None:
    tracer = start_tracer("--max-connections", "3", "--receive-seconds", "600")
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", tracer.http_port), timeout=SLOW_S))
            for _ in range(5)
        ]
        until(lambda: len(select.select(silent, [], [], 0)[0]) == 2)  # closed by the other side
        assert httpx.get(f"{tracer.url}/healthz", timeout=SLOW_S).status_code == 200


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
    server.server_state.connections |= {object(), object(), object()}  # type: ignore[arg-type]
    refusal = client.get("/api/fleet")
    assert (refusal.status_code, refusal.headers["retry-after"]) == (503, str(RETRY_S))
    assert client.get("/healthz").text == "here"
    assert len(refused) == 1

"""OTLP receivers as others run them, over gRPC and over HTTP, which keep what they get and refuse on demand."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from kvtrail.tracer.events import semconv

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass
class Refusal:
    """What a receiver says instead of taking a request: a status, and when to come back."""

    code: grpc.StatusCode | int
    after: str | float | None = None
    text: str = "not now"


@dataclass
class Backend:
    """A receiver.

    Attributes:
        endpoint: its address, as exporters are given it.
        payloads: what it has taken, decompressed.
        headers: those of each request that came, with names in lower case.
        paths: the path of each request, over HTTP.
        refusals: what it says to the next requests instead of taking them.
        rejects: spans of each request that it says it has rejected.
        open: while this is not set, no request is answered.
    """

    endpoint: str = ""
    payloads: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    refusals: deque[Refusal] = field(default_factory=deque)
    rejects: int = 0
    open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.open.set()

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    def answer(self, payload: bytes, headers: Mapping[str, str]) -> Refusal | bytes:
        self.headers.append(headers)
        self.open.wait()
        if self.refusals:
            return self.refusals.popleft()
        self.payloads.append(payload)
        answer = ExportTraceServiceResponse()
        if self.rejects:
            answer.partial_success.rejected_spans, answer.partial_success.error_message = self.rejects, "too old"
        return answer.SerializeToString()

    def requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(payload) for payload in list(self.payloads)]

    def spans(self, name: str = "") -> list[Span]:
        """The spans with names that begin like this, in the order in which they came."""
        lists = (s.spans for each in self.requests() for r in each.resource_spans for s in r.scope_spans)
        return [span for spans in lists for span in spans if span.name.startswith(name)]

    def names(self) -> list[str]:
        """The names of the spans, but for those of engines."""
        return [span.name for span in self.spans() if span.name != semconv.ENGINE_SPAN]


class _HttpServer(ThreadingHTTPServer):
    """Ends its connections with itself, as a process does."""

    def __init__(self, *where: Any) -> None:
        self._connections: list[socket.socket] = []
        super().__init__(*where)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def hang_up(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@dataclass
class Certificates:
    """PEM files: those of the receiver, and the authority that must have signed a client's."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@contextmanager
def over_grpc(port: int = 0, tls: Certificates | None = None) -> Iterator[Backend]:
    """A receiver on a port of this machine."""
    backend = Backend()

    def export(payload: bytes, context: grpc.ServicerContext) -> bytes:
        answer = backend.answer(payload, dict(context.invocation_metadata()))
        if isinstance(answer, bytes):
            return answer
        if answer.after is not None:
            info, packed = RetryInfo(), AnyMessage()
            info.retry_delay.FromMilliseconds(int(float(answer.after) * 1000))
            packed.Pack(info)
            details = Status(code=1, message=answer.text, details=[packed]).SerializeToString()
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(answer.code, answer.text)
        raise AssertionError

    server = grpc.server(ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
    methods = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    if tls is None:
        bound, scheme = server.add_insecure_port(f"127.0.0.1:{port}"), "http"
    else:
        chain = [(tls.key.read_bytes(), tls.certificate.read_bytes())]
        ca = None if tls.client_ca is None else tls.client_ca.read_bytes()
        credentials = grpc.ssl_server_credentials(chain, ca, require_client_auth=ca is not None)
        bound, scheme = server.add_secure_port(f"127.0.0.1:{port}", credentials), "https"
    assert bound, "the port is taken"
    backend.endpoint = f"{scheme}://127.0.0.1:{bound}"
    server.start()
    try:
        yield backend
    finally:
        backend.open.set()
        server.stop(None).wait()


@contextmanager
def over_http(port: int = 0, tls: Certificates | None = None) -> Iterator[Backend]:
    """A receiver on a port of this machine."""
    backend = Backend()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            backend.paths.append(self.path)
            plain = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
            answer = backend.answer(plain, headers)
            code, reported = 200, answer
            after = None
            if isinstance(answer, Refusal):
                code, reported, after = int(answer.code), Status(message=answer.text).SerializeToString(), answer.after
            assert isinstance(reported, bytes)
            self.send_response(code)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(reported)))
            if after is not None:
                self.send_header("retry-after", str(after))
            self.end_headers()
            self.wfile.write(reported)

        def log_message(self, *_: object) -> None:
            """Nothing is to be printed."""

    server = _HttpServer(("127.0.0.1", port), Handler)
    scheme = "http"
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    backend.endpoint = f"{scheme}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield backend
    finally:
        backend.open.set()
        server.shutdown()
        server.hang_up()
        server.server_close()
        thread.join()

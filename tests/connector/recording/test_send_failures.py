"""The engine's log says why its tracer does not take what is sent, and what to do, over gRPC and over HTTP."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from memory import a_request, record
from processes import Tracer, free_port, listening, until

from kvtrail.connector.recording import send_failures, transport
from kvtrail.connector.recording.exporter import Exporter, ExportProcess, InProcessExporter
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.recording.send_failures import SendFailure
from kvtrail.connector.recording.transport import Refused

PROTOCOLS = ("grpc", "http/protobuf")


@contextmanager
def each_connection(do: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of a listener that does this with each of its connections."""
    held: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    held.append(do(listener.accept()[0]))
                except ssl.SSLError:  # whoever came does not speak TLS, or does not trust it
                    continue
                except OSError:  # it is closed
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def answering(protocol: str, http: int, code: grpc.StatusCode) -> Iterator[int]:
    """The port of a server that answers every request so."""
    if protocol == "grpc":

        def refuse(_: bytes, context: grpc.ServicerContext) -> None:
            context.abort(code, "not today")

        handler = grpc.unary_unary_rpc_method_handler(refuse)
        name = "opentelemetry.proto.collector.trace.v1.TraceService"
        server = grpc.server(ThreadPoolExecutor(max_workers=2))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield port
        server.stop(0)
        return

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(http)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield web.server_port
        web.shutdown()


def why(monkeypatch: pytest.MonkeyPatch, protocol: str, endpoint: str) -> SendFailure:
    """Why one request is not taken there."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    sender = transport.from_environment()
    try:
        assert not sender.send(b"")
    except Refused:
        pass
    finally:
        sender.close()
    return sender.failure


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_where_no_receiver_listens(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    assert why(monkeypatch, protocol, f"http://127.0.0.1:{free_port()}") is SendFailure.NOBODY


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_hangs_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with each_connection(lambda connection: connection) as port:
        assert why(monkeypatch, protocol, f"http://127.0.0.1:{port}") is SendFailure.TIMEOUT


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("scheme", "expected"), [("https", SendFailure.TLS), ("http", SendFailure.CLOSED)])
def test_without_the_authority_or_without_tls_no_connection_can_be_made(
    monkeypatch: pytest.MonkeyPatch, protocol: str, scheme: str, expected: SendFailure
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with each_connection(lambda connection: context.wrap_socket(connection, server_side=True)) as port:
        assert why(monkeypatch, protocol, f"{scheme}://127.0.0.1:{port}") is expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("http", "code", "expected"),
    [
        (401, grpc.StatusCode.UNAUTHENTICATED, SendFailure.TOKEN),
        (403, grpc.StatusCode.PERMISSION_DENIED, SendFailure.TOKEN),
        (404, grpc.StatusCode.UNIMPLEMENTED, SendFailure.NO_OTLP),
        (503, grpc.StatusCode.UNAVAILABLE, SendFailure.BUSY),
        (500, grpc.StatusCode.INTERNAL, SendFailure.REFUSES),
    ],
)
def test_what_a_receiver_answers(
    monkeypatch: pytest.MonkeyPatch, protocol: str, http: int, code: grpc.StatusCode, expected: SendFailure
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")  # so that the SDK does not come again
    with answering(protocol, http, code) as port:
        assert why(monkeypatch, protocol, f"http://127.0.0.1:{port}") is expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_port_of_the_other_protocol_takes_no_spans(
    monkeypatch: pytest.MonkeyPatch, start_tracer: Callable[..., Tracer], protocol: str
) -> None:
    tracer = start_tracer()
    port = tracer.url.rpartition(":")[2] if protocol == "grpc" else tracer.grpc_port
    assert why(monkeypatch, protocol, f"http://127.0.0.1:{port}") in (SendFailure.NO_OTLP, SendFailure.CLOSED)


@pytest.mark.parametrize(
    "text",
    [
        "ConnectionError: Failed to resolve 'ssl.example' ([Errno -2] Name or service not known)",
        "errors resolving timeout.example:4317: [field:hostname lookup error:address lookup failed: Domain name not found]",
    ],
)
def test_a_name_without_an_address(text: str) -> None:
    assert send_failures.of_text(text) is SendFailure.UNRESOLVED


@pytest.fixture(
    params=[ExportProcess, lambda: InProcessExporter(transport.from_environment())], ids=["process", "thread"]
)
def make_exporter(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_log_names_a_refused_token_and_the_setting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
    make_exporter: Callable[[], Exporter],
) -> None:
    (tmp_path / "token").write_text("right")
    tracer = listening(tmp_path, "--token-file", str(tmp_path / "token"))
    endpoint = tracer.url if protocol == "http/protobuf" else f"http://127.0.0.1:{tracer.grpc_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20wrong")
    recorder = Recorder("engine", {}, make_exporter())

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if "it refuses the token" in each.getMessage()]

    try:
        record(recorder, a_request())
        until(lambda: said() or recorder.flush(0.1))
        assert f"no tracer answers at {endpoint}: it refuses the token; " in said()[0]
        assert "OTEL_EXPORTER_OTLP_HEADERS='authorization=Bearer%20TOKEN'" in said()[0]
        assert recorder.dropped == 0, "it waits for the right one"
    finally:
        recorder.close(0.1)
        tracer.end()


def test_each_reason_has_its_words() -> None:
    assert all(each.advice.endswith(".") for each in SendFailure)
    assert len({each.why for each in SendFailure}) == len(SendFailure)
    assert all(each.why.startswith(": ") for each in SendFailure if each is not SendFailure.UNKNOWN)

"""Findings leave as OpenTelemetry log records, which a backend shows at the span."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from history import history
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from processes import SLOW_S, free_port, serve, until
from wire import encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.ingest.protobuf import attributes
from kvtrail.tracer.model.findings import Finding, Severity, Witness
from kvtrail.tracer.serve.finding_log import FindingLog

DRIFT = history("start 749\nL 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nA 256\nend")
LOOKUP = [event for event in DRIFT if event.kind == "kv.lookup"][-1]
VARIABLES = ("OTEL_LOGS_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL")


@dataclass
class Backend:
    """A receiver of log records over HTTP."""

    endpoint: str = ""
    requests: list[ExportLogsServiceRequest] = field(default_factory=list)

    def records(self) -> list[Any]:
        return [
            record
            for request in self.requests
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]


@contextmanager
def listening() -> Iterator[Backend]:
    backend = Backend()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/logs"
            body = self.rfile.read(int(self.headers["content-length"]))
            backend.requests.append(ExportLogsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ExportLogsServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        backend.endpoint = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield backend
        server.shutdown()


def exporting(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def found(witness: list[Witness], *, trace_id: str = "0f" * 16, healed: int = 0) -> Finding:
    return Finding(
        "stale-lookup", "A stale answer", Severity.CRASH, "e", "r-1", "r", trace_id, "X", 1, 5, 7, 2, healed, {}, witness,
        "It was wrong.", "Look there.",
    )  # fmt: skip


def witness(span_id: str, trace_id: str) -> Witness:
    return Witness("L1", "kv.lookup", span_id, 5, 0, {}, trace_id)


def test_a_sidecar_exports_a_finding_once_at_the_span_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as backend:
        exporting(
            monkeypatch,
            OTEL_EXPORTER_OTLP_ENDPOINT=backend.endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=one",
        )
        tracer = serve(tmp_path)
        try:
            payload = encoded(DRIFT)
            tracer.post(payload)
            tracer.post(payload)
            (finding,) = tracer.get("/api/findings")
        finally:
            tracer.process.send_signal(signal.SIGTERM)
            assert tracer.process.wait(SLOW_S) == 0
        (record,) = backend.records()
        (resource,) = backend.requests[0].resource_logs
    assert (
        attributes(resource.resource.attributes).items() >= {"service.name": "kvtrail", "k8s.pod.name": "one"}.items()
    )
    assert resource.scope_logs[0].scope.name == semconv.FINDINGS_SCOPE
    assert (record.event_name, record.severity_text) == (semconv.FINDING_EVENT, "ERROR")
    assert record.trace_id.hex() == finding["trace_id"]
    assert record.span_id.hex() == finding["witness"][-1]["span_id"]
    assert record.body.string_value == finding["explanation"]
    about = attributes(record.attributes)
    assert set(about) <= {each.key for each in (*semconv.FINDING_FIELDS, *semconv.COMMON, semconv.ENGINE_ID)}
    assert (about["kvtrail.finding.rule"], about["kvtrail.finding.known"]) == ("stale-lookup", False)
    assert about[semconv.REQUEST_ID.key] == finding["request"]


@pytest.mark.parametrize(
    ("variables", "is_on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        (
            {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            True,
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_LOGS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, False),
    ],
)
def test_the_variables_of_opentelemetry_switch_it_on(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_on: bool
) -> None:
    exporting(monkeypatch, **variables)
    log = FindingLog.from_environment()
    assert (log is not None) == is_on
    if log is not None:
        log.close(within_s=SLOW_S)


@pytest.mark.parametrize(
    ("finding", "trace", "span", "severity"),
    [
        (found([witness("1a" * 8, "0f" * 16), witness("2b" * 8, "33" * 16)]), "0f" * 16, "1a" * 8, "ERROR"),
        (found([witness("2b" * 8, "33" * 16)], healed=2), "0f" * 16, "", "WARN"),
        (found([witness("2b" * 8, "33" * 16)], trace_id=""), "33" * 16, "2b" * 8, "ERROR"),
        (found([], trace_id=""), "", "", "ERROR"),
    ],
)
def test_the_span_is_the_last_one_in_the_trace_of_the_request(
    monkeypatch: pytest.MonkeyPatch, finding: Finding, trace: str, span: str, severity: str
) -> None:
    with listening() as backend:
        exporting(
            monkeypatch, OTEL_EXPORTER_OTLP_ENDPOINT=backend.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"
        )
        log = FindingLog.from_environment()
        assert log is not None
        log.write(finding, known=True)
        log.close(within_s=SLOW_S)
        (record,) = backend.records()
    assert record.trace_id.hex().strip("0") == trace.strip("0")
    assert record.span_id.hex().strip("0") == span.strip("0")
    assert (record.severity_text, record.time_unix_nano) == (severity, 7)


def test_a_receiver_that_is_away_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporting(monkeypatch, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}")
    tracer = serve(tmp_path)
    try:
        tracer.post(encoded(DRIFT))
        until(lambda: tracer.get("/api/findings"))
    finally:
        tracer.process.send_signal(signal.SIGTERM)
        assert tracer.process.wait(SLOW_S) == 0
    assert "Traceback" not in tracer.log.read_text()

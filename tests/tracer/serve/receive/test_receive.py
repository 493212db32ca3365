"""The real tracer process, fed by the OpenTelemetry SDK's own exporters, over gRPC and HTTP."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from history import history
from msgspec.structs import replace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from processes import SLOW_S, Tracer, free_port, until
from wire import as_request, encoded, to_json_line

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import KEYS

STORY = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend"
Start = Callable[..., Tracer]


def grpc_exporter(tracer: Tracer) -> SpanExporter:
    return GrpcExporter(endpoint=f"http://127.0.0.1:{tracer.grpc_port}", insecure=True)


def http_exporter(tracer: Tracer) -> SpanExporter:
    return HttpExporter(endpoint=f"{tracer.url}/v1/traces")


def gzip_exporter(tracer: Tracer) -> SpanExporter:
    return HttpExporter(endpoint=f"{tracer.url}/v1/traces", compression=Compression.Gzip)


@pytest.mark.parametrize("exporter", [grpc_exporter, http_exporter, gzip_exporter])
def test_plain_sdk_spans_are_understood(start_tracer: Start, exporter: Callable[[Tracer], SpanExporter]) -> None:
    """Somebody else's connector may write the spans with the SDK: the vocabulary is what counts."""
    tracer = start_tracer()
    own = {semconv.ENGINE_ID.key: "sdk-engine", semconv.RECORDER_ID.key: "sdk-recorder"}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter(tracer)))
    writer = provider.get_tracer(semconv.SCOPE)
    for number, (computed, returned) in enumerate([(0, 256), (336, 256)]):
        attributes: dict[str, Any] = {
            semconv.REQUEST_ID.key: "sdk-1",
            semconv.REQUEST_SEQUENCE.key: number,
            semconv.SEQUENCE.key: number,
            KEYS["total"]: 749,
            KEYS["computed"]: computed,
            KEYS["matched"]: 256,
            KEYS["returned"]: returned,
        }
        writer.start_span(semconv.Kind.LOOKUP, attributes=attributes).end()
    foreign = provider.get_tracer("gateway").start_span("POST /v1/completions")
    foreign.end()
    provider.shutdown()
    (finding,) = tracer.get("/api/findings")
    assert (finding["rule"], finding["request"]) == ("stale-lookup", "sdk-1")
    tail = tracer.get("/api/spans")
    assert [span["name"] for span in tail] == ["kv.lookup", "kv.lookup", "POST /v1/completions"]


def test_json_is_understood(start_tracer: Start) -> None:
    tracer = start_tracer()
    body = to_json_line(encoded(history(STORY)))
    answer = httpx.post(
        f"{tracer.url}/v1/traces", content=body, headers={"content-type": "application/json"}, timeout=SLOW_S
    )
    assert (answer.status_code, answer.json()) == (200, {})
    zipped = gzip.compress(body.encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert httpx.post(f"{tracer.url}/v1/traces", content=zipped, headers=headers, timeout=SLOW_S).status_code == 200
    (request,) = tracer.get("/api/requests")
    assert request["lookups"] == 2


@pytest.mark.parametrize(
    ("content", "headers", "code", "said"),
    [
        (b"{", {"content-type": "application/json"}, 400, "Expecting"),
        (b"{}", {"content-type": "application/json"}, 400, "no resourceSpans"),
        (b"[]", {"content-type": "application/json"}, 400, "no resourceSpans"),
        (b"\xff\xff", {"content-type": "application/x-protobuf"}, 400, "not an OTLP trace request"),
        (b"x", {"content-type": "text/plain"}, 415, "send application/x-protobuf or application/json"),
        (b"x", {"content-type": "application/json", "content-encoding": "gzip"}, 400, "gzip"),
        (b"x", {"content-type": "application/json", "content-encoding": "br"}, 400, "send gzip, or no encoding"),
    ],
)
def test_bad_requests_are_refused_with_a_reason(
    api: Tracer, content: bytes, headers: dict[str, str], code: int, said: str
) -> None:
    answer = httpx.post(f"{api.url}/v1/traces", content=content, headers=headers, timeout=SLOW_S)
    assert answer.status_code == code
    assert said in answer.content.decode(errors="replace")


def test_damaged_bytes_are_refused_over_grpc_for_good(api: Tracer) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{api.grpc_port}") as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        with pytest.raises(grpc.RpcError) as refused:
            export(b"\xff\xff", timeout=SLOW_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "not an OTLP trace request" in refused.value.details()
        assert export(b"", timeout=SLOW_S) == b""


def test_a_span_that_lacks_what_it_needs_is_stored_counted_and_harmless(start_tracer: Start) -> None:
    tracer = start_tracer()
    request = as_request(history(STORY))
    attributes = request.resource_spans[0].scope_spans[0].spans[1].attributes
    del attributes[:]
    headers = {"content-type": "application/x-protobuf"}
    answer = httpx.post(f"{tracer.url}/v1/traces", content=request.SerializeToString(), headers=headers, timeout=SLOW_S)
    assert answer.status_code == 200
    assert "kvtrail_spans_malformed_total 1.0" in httpx.get(f"{tracer.url}/metrics", timeout=SLOW_S).text


def test_damaged_spans_harm_no_other_spans(start_tracer: Start) -> None:
    """Absurd times, counts and types: that span is stored and counted; its batch, and all that come after, are judged."""
    tracer = start_tracer()
    headers = {"content-type": "application/x-protobuf"}
    for number, damage in enumerate(["time", "count", "type", "foreign"]):
        request = as_request(history(STORY, request=f"r-{number}-0123abcd", recorder=f"rec-{number}"))
        scope_spans = request.resource_spans[0].scope_spans[0]
        span = scope_spans.spans[-1]
        if damage == "time":
            span.start_time_unix_nano = 2**63 + 5
        elif damage == "foreign":
            foreign = request.resource_spans[0].scope_spans.add().spans.add()
            foreign.attributes.add(key="gen_ai.request.id").value.array_value.values.add(string_value="a")
            foreign.attributes.add(key="x").value.double_value = float("nan")
        else:
            for attribute in span.attributes:
                if attribute.key == KEYS["total"] and damage == "count":
                    attribute.value.int_value = 2**62
                if attribute.key == semconv.REQUEST_SEQUENCE.key and damage == "type":
                    attribute.value.string_value = "zero"
        answer = httpx.post(
            f"{tracer.url}/v1/traces", content=request.SerializeToString(), headers=headers, timeout=SLOW_S
        )
        assert answer.status_code == 200, answer.text
    requests = tracer.get("/api/requests")
    assert [r["verdict"] for r in requests] == ["drift"] * 4
    assert tracer.get("/api/totals")
    assert "kvtrail_spans_malformed_total 3.0" in httpx.get(f"{tracer.url}/metrics", timeout=SLOW_S).text


def test_a_late_event_of_a_finished_request_does_not_wipe_its_verdict(start_tracer: Start) -> None:
    tracer = start_tracer()
    headers = {"content-type": "application/x-protobuf"}
    events = history(STORY)
    httpx.post(f"{tracer.url}/v1/traces", content=encoded(events), headers=headers, timeout=SLOW_S)
    tracer.end()
    again = start_tracer(store=tracer.store)
    late = replace(events[3], request_sequence=len(events), sequence=len(events))
    httpx.post(f"{again.url}/v1/traces", content=encoded([late]), headers=headers, timeout=SLOW_S)
    (request,) = again.get("/api/requests")
    assert (request["verdict"], request["findings"], request["lookups"]) == ("drift", 1, 2)


def test_a_gap_that_is_given_up_is_seen_in_the_store(start_tracer: Start) -> None:
    tracer = start_tracer()
    events = history("L 749 c0 h256 -> 256\nA 256\nS 256+80\nend")
    content = encoded([*events[:2], *events[3:]])
    httpx.post(
        f"{tracer.url}/v1/traces", content=content, headers={"content-type": "application/x-protobuf"}, timeout=SLOW_S
    )

    def stored_request() -> Any:
        (request,) = tracer.get("/api/requests")
        return request

    until(lambda: stored_request()["status"] == "finished")
    assert (stored_request()["complete"], stored_request()["verdict"]) == (False, "unknown")


def test_a_second_tracer_on_the_same_store_is_refused(start_tracer: Start) -> None:
    tracer = start_tracer()
    ports = ["--grpc-port", str(free_port()), "--http-port", str(free_port())]
    command = [sys.executable, "-m", "kvtrail", "serve", "--store", str(tracer.store), *ports]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SLOW_S, check=False)
    assert run.returncode == 1
    assert f"Error: another tracer writes to the store {tracer.store}" in run.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--grpc-port", "99999"], ["--http-port", "-1"], ["--retain-hours", "nan"], ["--retain-hours", "1e300"],
     ["--max-requests", "0"], ["--grpc-port", "5000", "--http-port", "5000"]],
)  # fmt: skip
def test_bad_options_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "kvtrail", "serve", "--store", str(tmp_path / "s.db"), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SLOW_S, check=False)
    assert run.returncode == 2
    assert "Error: " in run.stderr
    assert "Traceback" not in run.stderr


def test_nothing_acknowledged_is_lost_by_kill_9(start_tracer: Start) -> None:
    tracer = start_tracer()
    headers = {"content-type": "application/x-protobuf"}
    acknowledged = []
    for number in range(50):
        body = encoded(history(STORY, request=f"r-{number}-0123abcd", recorder=f"rec-{number}"))
        if httpx.post(f"{tracer.url}/v1/traces", content=body, headers=headers, timeout=SLOW_S).status_code == 200:
            acknowledged.append(f"r-{number}-0123abcd")
    tracer.kill()
    again = start_tracer(store=tracer.store)
    stored = again.get("/api/requests", limit=1000)
    assert {request["request"] for request in stored} == set(acknowledged)
    assert len(acknowledged) == 50
    assert all(request["verdict"] == "drift" for request in stored)
    findings = again.get("/api/findings", limit=1000)
    assert len(findings) == 50


def test_a_taken_port_is_reported_in_one_sentence_and_the_other_tracer_is_left_alone(start_tracer: Start) -> None:
    tracer = start_tracer()
    store = tracer.store.with_suffix(".2.db")
    for port, option in ((tracer.grpc_port, "--grpc-port"), (tracer.http_port, "--http-port")):
        run = subprocess.run(
            [sys.executable, "-m", "kvtrail", "serve", "--store", str(store),
             "--grpc-port", str(port if option == "--grpc-port" else free_port()),
             "--http-port", str(port if option == "--http-port" else free_port())],
            capture_output=True, text=True, timeout=SLOW_S, check=False,
        )  # fmt: skip
        assert run.returncode == 1
        said = f"Error: cannot listen on 127.0.0.1:{port} (Address already in use). Choose another: {option}\n"
        assert run.stderr == said
        assert not store.exists()
    assert tracer.get("/api/health")

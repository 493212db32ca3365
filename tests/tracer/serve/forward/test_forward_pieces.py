"""Spans that are cut out of requests and put into others are what they were."""

from __future__ import annotations

from history import history
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from wire import encoded

from kvtrail.connector.recording.encoder import field
from kvtrail.tracer.events import semconv
from kvtrail.tracer.serve.forward.pieces import Cutter, Piece, joined


def foreign(*spans: bytes, service: str = "gateway", scope: str = "vllm") -> bytes:
    """A request in another encoding than Google's: the name of a span comes before its ids, and it has a field that is not
    known."""
    of_scope = ScopeSpans(schema_url="urn:scope")
    of_scope.scope.name, of_scope.scope.version = scope, "1"
    of_resource = ResourceSpans(schema_url="urn:resource")
    pair = of_resource.resource.attributes.add(key="service.name")
    pair.value.string_value = service
    body = of_scope.SerializeToString() + b"".join(field(2, span) for span in spans)
    return field(1, of_resource.SerializeToString() + field(2, body))


def odd_span(number: int = 1) -> bytes:
    """A span as only another encoder would write it."""
    span = Span(trace_id=bytes(15) + b"\x01", span_id=bytes(7) + bytes([number]), start_time_unix_nano=1)
    return b"\x2a\x04POST" + span.SerializeToString() + b"\xfa\x07\x03new"


def pieces_of(*payloads: bytes) -> list[Piece]:
    cutter = Cutter()
    return [Piece(origin, span) for each in payloads for origin, spans in cutter.cut(each) for span in spans]


def raw(payload: bytes) -> list[bytes]:
    return [piece.span for piece in pieces_of(payload)]


def test_bytes_stay_as_they_are() -> None:
    payload = foreign(odd_span(1), odd_span(2))
    assert raw(payload) == [odd_span(1), odd_span(2)]
    again = joined(pieces_of(payload))
    assert odd_span(1) in again
    assert odd_span(2) in again
    assert ExportTraceServiceRequest.FromString(again) == ExportTraceServiceRequest.FromString(payload)


def test_spans_of_several_requests_become_one() -> None:
    """Each keeps its resource, its scope and the urls of their schemas."""
    story = encoded(history("L 749 c0 h256 -> 256\nA 256\nend"))
    payloads = [foreign(odd_span(1)), story, foreign(odd_span(2), service="other"), foreign(odd_span(3))]
    request = ExportTraceServiceRequest.FromString(joined(pieces_of(*payloads)))
    by_service = {each.resource.attributes[0].value.string_value: each for each in request.resource_spans}
    assert set(by_service) == {"gateway", "test", "other"}
    (scope,) = by_service["gateway"].scope_spans
    assert [span.span_id[-1] for span in scope.spans] == [1, 3]
    assert (scope.scope.name, scope.scope.version, scope.schema_url) == ("vllm", "1", "urn:scope")
    assert by_service["other"].schema_url == "urn:resource"
    (ours,) = by_service["test"].scope_spans
    (sent,) = ExportTraceServiceRequest.FromString(story).resource_spans[0].scope_spans
    assert ours == sent
    assert ours.scope.name == semconv.SCOPE

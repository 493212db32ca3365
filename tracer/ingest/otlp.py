"""OTLP in and out: protobuf, JSON and JSON Lines <-> `Span`.

Formats: https://opentelemetry.io/docs/specs/otlp/ (JSON has hexadecimal ids and 64-bit integers as strings) and the file
exporter's JSON Lines, one `ExportTraceServiceRequest` a line, in no particular order.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kvtrail.tracer.model.spans import LATEST_NS, Span

_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")


SPANS_A_LINE = 256
"""Spans in a line of a trace file that we write."""


class MalformedOtlp(ValueError):
    """Bytes or JSON that are no `ExportTraceServiceRequest`; the text says why."""


def from_protobuf(payload: bytes) -> ExportTraceServiceRequest:
    """Parse the binary encoding.

    Raises:
        MalformedOtlp: the bytes are no such message.
    """
    try:
        return ExportTraceServiceRequest.FromString(payload)
    except Exception as error:  # protobuf's own DecodeError has moved between its versions
        raise MalformedOtlp(f"not an OTLP trace request: {error}") from error


def from_json(data: Any) -> ExportTraceServiceRequest:
    """Parse the JSON encoding, already loaded; unknown fields are passed over, as the specification asks.

    Raises:
        MalformedOtlp: the data is no such message.
    """
    if not isinstance(data, dict) or ("resourceSpans" not in data and "resource_spans" not in data):
        raise MalformedOtlp("not an OTLP trace request: no resourceSpans")
    try:
        return ParseDict(_ids_to_base64(data), ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        raise MalformedOtlp(f"not an OTLP trace request: {error}") from error


def to_json_line(request: ExportTraceServiceRequest) -> str:
    """One line of a trace file, without the newline."""
    text: str = MessageToJson(request, indent=None, ensure_ascii=False, use_integers_for_enums=True)
    return json.dumps(_ids_to_hex(json.loads(text)), separators=(",", ":"), ensure_ascii=False)


def spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    """The spans of a request, one by one."""
    for resource_spans in request.resource_spans:
        resource = {kv.key: value(kv.value) for kv in resource_spans.resource.attributes}
        for scope_spans in resource_spans.scope_spans:
            scope = scope_spans.scope.name
            for span in scope_spans.spans:
                yield _span(span, resource, scope)


def _span(span: ProtoSpan, resource: dict[str, Any], scope: str) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        start_ns=min(span.start_time_unix_nano, LATEST_NS),
        end_ns=min(span.end_time_unix_nano, LATEST_NS),
        attributes={kv.key: value(kv.value) for kv in span.attributes},
        resource=resource,
        scope=scope,
        error=(span.status.message or "error") if span.status.code == Status.STATUS_CODE_ERROR else None,
        events=[
            {
                "name": e.name,
                "time_ns": e.time_unix_nano,
                "attributes": {kv.key: value(kv.value) for kv in e.attributes},
            }
            for e in span.events
        ],
    )


def spans_to_json_line(spans: Iterable[Span]) -> str:
    """One line of a trace file, without the newline, that holds these spans."""
    by_source: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        by_source.setdefault((repr(span.resource), span.scope), []).append(span)
    told = [
        {
            "resource": {"attributes": _attributes(held[0].resource)},
            "scopeSpans": [{"scope": {"name": scope}, "spans": [_span_to_json(span) for span in held]}],
        }
        for (_, scope), held in by_source.items()
    ]
    return json.dumps({"resourceSpans": told}, separators=(",", ":"), ensure_ascii=False)


def spans_to_json_lines(spans: Sequence[Span]) -> Iterator[str]:
    """The lines of a trace file that holds these spans, with their newlines."""
    for first in range(0, len(spans), SPANS_A_LINE):
        yield spans_to_json_line(spans[first : first + SPANS_A_LINE]) + "\n"


def _span_to_json(span: Span) -> dict[str, Any]:
    data: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": ProtoSpan.SPAN_KIND_INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.error is not None:
        data["status"] = {"code": Status.STATUS_CODE_ERROR, "message": span.error}
    if span.events:
        data["events"] = [
            {"name": e["name"], "timeUnixNano": str(e["time_ns"]), "attributes": _attributes(e["attributes"])}
            for e in span.events
        ]
    return data


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value_to_json(item)} for key, item in values.items()]


def _value_to_json(item: Any) -> dict[str, Any]:
    """OTLP's JSON has 64-bit integers as text."""
    match item:
        case None:
            return {}
        case bool():
            return {"boolValue": item}
        case int():
            return {"intValue": str(item)}
        case float():
            return {"doubleValue": item}
        case list() | tuple():
            return {"arrayValue": {"values": [_value_to_json(one) for one in item]}}
        case dict():
            return {"kvlistValue": {"values": _attributes(item)}}
        case _:
            return {"stringValue": str(item)}


def value(any_value: AnyValue) -> Any:
    """The Python value of an attribute; bytes become base64 text, since they are stored as JSON."""
    kind = any_value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [value(item) for item in any_value.array_value.values]
    if kind == "kvlist_value":
        return {kv.key: value(kv.value) for kv in any_value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(any_value.bytes_value).decode()
    if kind == "double_value" and not math.isfinite(any_value.double_value):
        return str(any_value.double_value)  # JSON has no NaN
    return getattr(any_value, kind)


def _ids_to_base64(data: Any) -> Any:
    if isinstance(data, dict):
        return {
            key: _id_to_base64(item) if key in _IDS and isinstance(item, str) else _ids_to_base64(item)
            for key, item in data.items()
        }
    if isinstance(data, list):
        return [_ids_to_base64(item) for item in data]
    return data


def _id_to_base64(text: str) -> str:
    """Writers that know protobuf's JSON, but not OTLP's, leave ids in base64, whose padding no hexadecimal id has."""
    return text if text.endswith("=") else base64.b64encode(bytes.fromhex(text)).decode()


def _ids_to_hex(data: Any) -> Any:
    if isinstance(data, dict):
        return {
            key: base64.b64decode(item).hex() if key in _IDS and isinstance(item, str) else _ids_to_hex(item)
            for key, item in data.items()
        }
    if isinstance(data, list):
        return [_ids_to_hex(item) for item in data]
    return data

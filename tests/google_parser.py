"""Spans read by Google's own parsers, against which the codec is held."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kvtrail.tracer.events.spans import LATEST_NS, Span
from kvtrail.tracer.ingest import otlp_json


def of_bytes(payload: bytes) -> list[Span] | None:
    """The spans of a request; None where the parser refuses it."""
    try:
        request = ExportTraceServiceRequest.FromString(payload)
    except DecodeError:
        return None
    return [
        Span(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            name=span.name,
            start_ns=min(span.start_time_unix_nano, LATEST_NS),
            end_ns=min(span.end_time_unix_nano, LATEST_NS),
            attributes=_attributes(span),
            resource=_attributes(resource_spans.resource),
            scope=scope_spans.scope.name,
            error=(span.status.message or "error") if span.status.code == Status.STATUS_CODE_ERROR else None,
            events=[{"name": e.name, "time_ns": e.time_unix_nano, "attributes": _attributes(e)} for e in span.events],
        )
        for resource_spans in request.resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


def of_json(text: str) -> list[Span] | None:
    """The spans of a line; None where the parser refuses it."""
    try:
        return of_bytes(otlp_json.to_protobuf(json.loads(text)))
    except (ValueError, RecursionError):
        return None


def _attributes(message: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in message.attributes}


def _value(value: AnyValue) -> Any:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return {pair.key: _value(pair.value) for pair in value.kvlist_value.values}
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "double_value" if not math.isfinite(value.double_value):
            return str(value.double_value)
        case kind:
            return getattr(value, kind)

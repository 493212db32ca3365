"""OTLP's JSON form, in and out: https://opentelemetry.io/docs/specs/otlp/ (ids are hexadecimal, 64-bit integers are strings).

A line of a trace file is one `ExportTraceServiceRequest`. Google's parser takes twenty times as long for a line, so it reads
only requests over HTTP.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from google.protobuf.json_format import ParseDict, ParseError
from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import astuple
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kvtrail.tracer.events.events import IN_BYTES
from kvtrail.tracer.events.spans import LATEST_NS, Span
from kvtrail.tracer.ingest.decode import Decoder, Ids, MalformedOtlp

SPANS_A_LINE = 256
"""Number of spans per line of a trace file that kvtrail writes."""
_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
_TRACE_ID, _SPAN_ID = 32, 16
"""Hexadecimal digits."""

_Time = Annotated[int, Meta(ge=0, le=LATEST_NS)]


class _Part(Struct, rename="camel", gc=False):
    """A JSON object with the fields that are read. Other fields are ignored, as the specification requires."""


class _Value(_Part):
    """An `AnyValue`: at most one of its fields is set."""

    string_value: str | UnsetType = UNSET
    int_value: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | UnsetType = UNSET
    array_value: _Values | UnsetType = UNSET
    bytes_value: str | UnsetType = UNSET
    double_value: float | UnsetType = UNSET
    kvlist_value: _Pairs | UnsetType = UNSET
    bool_value: Any = UNSET  # a `bool` would be read from text and numbers, too, as times are


class _Values(_Part):
    values: list[_Value] = []


class _Attribute(_Part):
    key: str = ""
    value: _Value = field(default_factory=_Value)


class _Pairs(_Part):
    values: list[_Attribute] = []


class _Status(_Part):
    code: int = 0
    message: str = ""


class _Event(_Part):
    time_unix_nano: _Time = 0
    name: str = ""
    attributes: list[_Attribute] = []


class _Span(_Part):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    name: str = ""
    start_time_unix_nano: _Time = 0
    end_time_unix_nano: _Time = 0
    attributes: list[_Attribute] = []
    events: tuple[_Event, ...] = ()
    status: _Status | None = None


class _Resource(_Part):
    attributes: list[_Attribute] = []


class _Scope(_Part):
    name: str = ""


class _ScopeSpans(_Part):
    scope: _Scope = field(default_factory=_Scope)
    spans: list[_Span] = []


class _ResourceSpans(_Part):
    resource: _Resource = field(default_factory=_Resource)
    scope_spans: list[_ScopeSpans] = []


class _Request(_Part):
    resource_spans: list[_ResourceSpans]


_NO_VALUE = len(_Value.__struct_fields__)
_read_request = msgspec.json.Decoder(_Request, strict=False).decode  # numbers may be strings


class JsonDecoder(Decoder[str]):
    """Decodes requests in JSON. It raises msgspec.DecodeError or ValueError for anything else."""

    def _lists(self, data: str) -> Iterator[tuple[dict[str, Any], str, Sequence[_Span]]]:
        for resource_spans in _read_request(data).resource_spans:
            resource = _by_key(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                yield resource, scope_spans.scope.name, scope_spans.spans

    def _ids(self, span: _Span) -> Ids:
        error = None
        if span.status is not None and span.status.code == Status.STATUS_CODE_ERROR:
            error = span.status.message or "error"
        trace_id, span_id, parent_id = span.trace_id, span.span_id, span.parent_span_id
        if len(trace_id) != _TRACE_ID or len(span_id) != _SPAN_ID or len(parent_id) not in (0, _SPAN_ID):
            raise ValueError("an id of another length")
        ids = bytes.fromhex(trace_id + span_id + parent_id).hex()
        start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        return ids[:_TRACE_ID], ids[_TRACE_ID : _TRACE_ID + _SPAN_ID], start_ns, end_ns, error

    def _attributes(self, span: _Span) -> dict[str, Any]:
        return _by_key(span.attributes)

    def _rest(self, span: _Span) -> tuple[str, list[dict[str, Any]]]:
        events = [
            {"name": event.name, "time_ns": event.time_unix_nano, "attributes": _by_key(event.attributes)}
            for event in span.events
        ]
        return bytes.fromhex(span.parent_span_id).hex(), events


def _by_key(attributes: Iterable[_Attribute]) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: _Value) -> Any:
    """The Python value of an attribute, the same as from `protobuf.value`. Raises ValueError if Google's parser would too."""
    if (unset := astuple(value).count(UNSET)) != _NO_VALUE - 1:
        if unset == _NO_VALUE:
            return None
        raise ValueError("an attribute of several values")
    if (number := value.int_value) is not UNSET:
        return number
    if (text := value.string_value) is not UNSET:
        return text
    if (array := value.array_value) is not UNSET:
        return [_value(item) for item in array.values]
    if (pairs := value.kvlist_value) is not UNSET:
        return _by_key(pairs.values)
    if (encoded := value.bytes_value) is not UNSET:
        return base64.b64encode(base64.b64decode(encoded, validate=True)).decode()
    if isinstance(value.bool_value, bool):
        return value.bool_value
    if (real := value.double_value) is not UNSET and math.isfinite(real):
        return real
    raise ValueError("neither a truth value nor a finite number")


def to_protobuf(data: Any) -> bytes:
    """A request in binary form; `data` is its parsed JSON. Unknown fields are ignored, as the specification requires.

    Raises:
        MalformedOtlp: the data is not an `ExportTraceServiceRequest`.
    """
    if not isinstance(data, dict) or ("resourceSpans" not in data and "resource_spans" not in data):
        raise MalformedOtlp("not an OTLP trace request: no resourceSpans")
    try:
        request = ParseDict(_with_base64_ids(data), ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        raise MalformedOtlp(f"not an OTLP trace request: {error}") from error
    return request.SerializeToString()


def spans_to_json_line(spans: Iterable[Span]) -> str:
    """One line of a trace file, without the newline, that holds these spans."""
    by_source: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        by_source.setdefault((repr(span.resource), span.scope), []).append(span)
    resource_spans = [
        {
            "resource": {"attributes": _attributes(held[0].resource)},
            "scopeSpans": [{"scope": {"name": scope}, "spans": [_span_to_json(span) for span in held]}],
        }
        for (_, scope), held in by_source.items()
    ]
    return json.dumps({"resourceSpans": resource_spans}, separators=(",", ":"), ensure_ascii=False)


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
    return [
        {"key": key, "value": {"bytesValue": item} if key in IN_BYTES else _value_to_json(item)}
        for key, item in values.items()
    ]


def _value_to_json(item: Any) -> dict[str, Any]:
    """A value in OTLP's JSON form, where 64-bit integers are strings."""
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


def _with_base64_ids(data: Any) -> Any:
    """OTLP's JSON in the form that Google's parser reads."""
    if isinstance(data, dict):
        return {
            key: _to_base64(item) if key in _IDS and isinstance(item, str) else _with_base64_ids(item)
            for key, item in data.items()
        }
    if isinstance(data, list):
        return [_with_base64_ids(item) for item in data]
    return data


def _to_base64(text: str) -> str:
    """An id in base64. Writers of protobuf's generic JSON use base64 already; its padding tells it from hexadecimal."""
    return text if text.endswith("=") else base64.b64encode(bytes.fromhex(text)).decode()

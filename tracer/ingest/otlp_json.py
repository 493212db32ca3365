"""OTLP's JSON form, in and out: https://opentelemetry.io/docs/specs/otlp/ (ids are hexadecimal, 64-bit integers are strings).

A line of a trace file is one `ExportTraceServiceRequest`. The form that the OpenTelemetry Collector and kvtrail write is read
here. Other spellings of the same JSON (snake_case, base64 ids, names of enums, ...) and damage are left to Google's parser,
which reads a line ten times slower and says what is wrong with it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from msgspec import Meta, Raw, Struct, convert, field
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kvtrail.tracer.ingest.protobuf import Attributes, MalformedOtlp, ProtobufDecoder
from kvtrail.tracer.model.spans import LATEST_NS, Span

SPANS_A_LINE = 256
"""Spans in a line of a trace file that we write."""
_MOST = 2**63
_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
_FIRST, _NEXT, _LAST = b'[{"key":"', b'},{"key":"', b"}]"

_Integer = str | int
_Small = Annotated[int, Meta(ge=0, lt=2**31)]
_NO_ATTRIBUTES = Raw(b"[]")


class _Part(Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A JSON object of the common form: it has no other fields, and none of another type."""


class _Attribute(_Part):
    key: str = ""
    value: dict[str, Any] = {}


class _Status(_Part):
    code: _Small = 0
    message: str = ""


class _Event(_Part):
    time_unix_nano: _Integer = 0
    name: str = ""
    attributes: Raw = _NO_ATTRIBUTES


class _Link(_Part):
    trace_id: str = ""
    span_id: str = ""
    attributes: Raw = _NO_ATTRIBUTES


class _Span(_Part):
    trace_id: str = ""
    span_id: str = ""
    trace_state: str = ""
    parent_span_id: str = ""
    flags: _Small = 0
    name: str = ""
    kind: _Small = 0
    start_time_unix_nano: _Integer = 0
    end_time_unix_nano: _Integer = 0
    attributes: Raw = _NO_ATTRIBUTES
    dropped_attributes_count: _Small = 0
    events: list[_Event] = []
    dropped_events_count: _Small = 0
    links: list[_Link] = []
    dropped_links_count: _Small = 0
    status: _Status | None = None


class _Resource(_Part):
    attributes: Raw = _NO_ATTRIBUTES


class _Scope(_Part):
    name: str = ""
    version: str = ""


class _ScopeSpans(_Part):
    scope: _Scope = field(default_factory=_Scope)
    spans: list[_Span] = []
    schema_url: str = ""


class _ResourceSpans(_Part):
    resource: _Resource = field(default_factory=_Resource)
    scope_spans: list[_ScopeSpans] = []
    schema_url: str = ""


class _Request(_Part):
    resource_spans: list[_ResourceSpans] = []


_read_request = msgspec.json.Decoder(_Request).decode
_read_attribute = msgspec.json.Decoder(_Attribute).decode
_read_attributes = msgspec.json.Decoder(list[_Attribute]).decode


class JsonDecoder:
    """Decodes requests. It remembers attributes, so use one for as many requests as possible; it is not thread-safe."""

    def __init__(self) -> None:
        self._remembered = Attributes(_piece)
        self._protobuf = ProtobufDecoder()

    def spans(self, text: str) -> list[Span]:
        """The spans of a request, in its order.

        Raises:
            ValueError: the text is not JSON, or not an `ExportTraceServiceRequest`; MalformedOtlp is one.
        """
        try:
            return self._spans(text)
        except (msgspec.DecodeError, ValueError, KeyError):
            return self._protobuf.spans(to_protobuf(json.loads(text)))

    def _spans(self, text: str) -> list[Span]:
        """The spans of a request of the common form. Raises one of the errors above for any other."""
        spans: list[Span] = []
        for resource_spans in _read_request(text).resource_spans:
            resource = self._attributes(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                scope = scope_spans.scope.name
                for span in scope_spans.spans:
                    error = None
                    if span.status is not None and span.status.code == Status.STATUS_CODE_ERROR:
                        error = span.status.message or "error"
                    for link in span.links:  # they are not used, but damage in them is damage
                        _id(link.trace_id), _id(link.span_id), self._attributes(link.attributes)
                    spans.append(
                        Span(
                            trace_id=_id(span.trace_id),
                            span_id=_id(span.span_id),
                            parent_id=_id(span.parent_span_id),
                            name=span.name,
                            start_ns=_time(span.start_time_unix_nano),
                            end_ns=_time(span.end_time_unix_nano),
                            attributes=self._attributes(span.attributes),
                            resource=resource,
                            scope=scope,
                            error=error,
                            events=[self._event(event) for event in span.events] if span.events else [],
                        )
                    )
        return spans

    def _event(self, event: _Event) -> dict[str, Any]:
        time_ns = _integer(event.time_unix_nano)
        return {"name": event.name, "time_ns": time_ns, "attributes": self._attributes(event.attributes)}

    def _attributes(self, raw: Raw) -> dict[str, Any]:
        """Attributes as a rule come as `[{"key":"a","value":..},{"key":"b","value":..}]`. Quotes within a JSON string are
        escaped, so the text between two of these keys is one attribute, or, in a nested list, not JSON."""
        encoded = bytes(raw)
        if encoded.startswith(_FIRST) and encoded.endswith(_LAST):
            pieces = encoded[len(_FIRST) : -len(_LAST)].split(_NEXT)
            try:
                return dict(map(self._remembered.__getitem__, pieces))
            except msgspec.DecodeError:
                pass
        return _by_key(_read_attributes(encoded))


def spans(text: str) -> list[Span]:
    """The spans of one request. Raises ValueError as `JsonDecoder.spans` does."""
    return JsonDecoder().spans(text)


def _piece(piece: bytes) -> tuple[str, Any]:
    """An attribute without its beginning and its end."""
    attribute = _read_attribute(b'{"key":"' + piece + b"}")
    return attribute.key, _value(attribute.value)


def _by_key(attributes: Iterable[_Attribute]) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(data: dict[str, Any]) -> Any:
    """The Python value of an attribute, as `protobuf.value` gives it. Raises KeyError or ValueError for any other data."""
    if not data:
        return None
    ((kind, held),) = data.items()
    if kind == "intValue":
        return _integer(held)
    if type(held) is _PLAIN.get(kind):
        return held
    return _NESTED[kind](held)


class _Values(_Part):
    values: list[dict[str, Any]] = []


class _Pairs(_Part):
    values: list[_Attribute] = []


def _double(held: Any) -> float:
    number: float = convert(held, float)
    if not math.isfinite(number):
        raise ValueError(held)
    return number


_PLAIN = {"stringValue": str, "boolValue": bool}
_NESTED: dict[str, Callable[[Any], Any]] = {
    "doubleValue": _double,
    "arrayValue": lambda held: [_value(item) for item in convert(held, _Values).values],
    "kvlistValue": lambda held: _by_key(convert(held, _Pairs).values),
    "bytesValue": lambda held: base64.b64encode(base64.b64decode(held, validate=True)).decode(),
}


def _integer(held: Any) -> int:
    """A 64-bit integer. Raises ValueError for what Google's parser refuses, or may read otherwise."""
    if type(held) is str and " " not in held:
        held = int(held)
    if type(held) is not int or not -_MOST <= held < _MOST:
        raise ValueError(f"not a 64-bit integer: {held!r}")
    return held


def _time(held: str | int) -> int:
    time_ns = _integer(held)
    if time_ns < 0:
        raise ValueError(f"not a time: {held!r}")
    return min(time_ns, LATEST_NS)


def _id(text: str) -> str:
    """An id in lower case. Raises ValueError where it is not hexadecimal."""
    return bytes.fromhex(text).hex()


def to_protobuf(data: Any) -> bytes:
    """A request in binary form; `data` is its JSON, loaded. Unknown fields are ignored, as the specification asks.

    Raises:
        MalformedOtlp: the data is not an `ExportTraceServiceRequest`.
    """
    if not isinstance(data, dict) or ("resourceSpans" not in data and "resource_spans" not in data):
        raise MalformedOtlp("not an OTLP trace request: no resourceSpans")
    try:
        request = ParseDict(_ids_to_base64(data), ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        raise MalformedOtlp(f"not an OTLP trace request: {error}") from error
    return request.SerializeToString()


def to_json_line(payload: bytes) -> str:
    """A request in binary form as one line of a trace file, without the newline."""
    request = ExportTraceServiceRequest.FromString(payload)
    text: str = MessageToJson(request, indent=None, ensure_ascii=False, use_integers_for_enums=True)
    return json.dumps(_ids_to_hex(json.loads(text)), separators=(",", ":"), ensure_ascii=False)


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

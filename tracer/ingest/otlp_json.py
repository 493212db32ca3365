"""OTLP's JSON form, in and out: https://opentelemetry.io/docs/specs/otlp/ (ids are hexadecimal, 64-bit integers are strings).

A line of a trace file is one `ExportTraceServiceRequest`. The form that the OpenTelemetry Collector and kvtrail write is read
here. Other spellings of the same JSON (snake_case, base64 ids, names of enums, ...) and damage are left to Google's parser,
which reads a line ten times slower and says what is wrong with it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from msgspec import Meta, Raw, Struct, convert, field
from msgspec.structs import fields
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CLASSES, LONGEST_NS, Event
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.spans import LATEST_NS, Span
from kvtrail.tracer.ingest.decode import Decoded, Decoder, Ids, MalformedOtlp, Refused, Remembered, as_bytes
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder

SPANS_A_LINE = 256
"""Spans in a line of a trace file that we write."""
_MOST = 2**63
_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
_TRACE_ID, _SPAN_ID = 32, 16
"""Hexadecimal digits."""
_FIRST, _NEXT, _LAST = b'[{"key":"', b'},{"key":"', b"}]"

_Time = Annotated[int, Meta(ge=0, le=LATEST_NS)]
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
    time_unix_nano: _Time = 0
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
    start_time_unix_nano: _Time = 0
    end_time_unix_nano: _Time = 0
    attributes: Raw = _NO_ATTRIBUTES
    dropped_attributes_count: _Small = 0
    events: tuple[_Event, ...] = ()
    dropped_events_count: _Small = 0
    links: tuple[_Link, ...] = ()
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


_OURS = {
    attribute.key.encode(): attribute.key
    for attributes in (semconv.COMMON, *semconv.FIELDS.values())
    for attribute in attributes
}
_PLAIN_INTEGER, _END = b'","value":{"intValue":"', b'"}'
_LONGEST = 18 + len(_END)
_NUMBER, _STRING = rb'"intValue":"([0-9]{1,18})"', rb'"stringValue":"([ !#-\[\]-~]*)"'
"""What most lists hold: numbers, or strings of ASCII without escapes."""
_PLAIN_LIST = re.compile(
    rb'([\w.]+)","value":\{"arrayValue":\{"values":\['
    rb"(?:((?:\{" + _NUMBER + rb"\},?)+)|((?:\{" + _STRING + rb"\},?)+))\]\}\}",
    re.ASCII,
)
_NUMBERS, _STRINGS = re.compile(_NUMBER), re.compile(_STRING)
_UNUSUAL = (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError)
"""What is raised for another spelling, and for damage."""
_copy: Callable[[Event], Event] = Event.__copy__  # type: ignore[attr-defined]  # msgspec's types leave it out
_read_request = msgspec.json.Decoder(_Request, strict=False).decode  # numbers may be strings
_read_attribute = msgspec.json.Decoder(_Attribute).decode
_read_attributes = msgspec.json.Decoder(list[_Attribute]).decode


_SEQUENCE = f'}},{{"key":"{semconv.SEQUENCE.key}","value":{{"intValue":"'.encode()
_SEQUENCE_END = b'"}},{"key":"'
_MOST_DIGITS = 12
"""A number with so many digits is below `events.MOST_EVENTS`."""
_FIELDS = {
    field.encode_name: (field.name, field.type)
    for cls in CLASSES.values()
    for field in fields(cls)
    if field.encode_name != field.name  # ids, times and the error are the span's own, and no attribute's
}
"""Attribute -> the event's field and its type. An attribute means the same in every kind of event."""
_OF_RESOURCES = {attribute.key for attribute in semconv.RESOURCE}
_REQUIRED = {name: [field.name for field in fields(cls) if field.required] for name, cls in CLASSES.items()}
_NEEDED = {name: required[len(_REQUIRED[Kind.HEARTBEAT]) :] for name, required in _REQUIRED.items()}
"""What an event's kind requires beyond what all kinds do."""


class JsonDecoder(Decoder[str, _Span]):
    """Decodes requests in JSON.

    A recorder's spans begin with the same attributes, up to the event's number. So an event is a copy of one that has these
    fields already. Spans in any other form, and malformed ones, are decoded attribute by attribute.
    """

    def __init__(self) -> None:
        self._remembered = Remembered(_piece)
        self._checked = Remembered(_checked)
        self._ids_in_lower_case = Remembered(_id)
        self._protobuf = ProtobufDecoder()

    def spans(self, data: str) -> list[Span]:
        try:
            return super().spans(data)
        except _UNUSUAL:
            return self._protobuf.spans(to_protobuf(json.loads(data)))

    def decoded(self, data: str) -> Decoded:
        try:
            return super().decoded(data)
        except _UNUSUAL:
            return self._protobuf.decoded(to_protobuf(json.loads(data)))

    def _add(self, decoded: Decoded, spans: Iterable[_Span], common: Mapping[str, Any]) -> None:
        patterns: dict[tuple[bytes, str], Event] = {}
        append, checked, ids = decoded.events.append, self._checked.__getitem__, self._ids_in_lower_case
        for span in spans:  # written out in one piece: a call for each span would cost a tenth of reading
            try:
                encoded, name = bytes(span.attributes), span.name
                at = encoded.index(_SEQUENCE)
                end = encoded.index(_SEQUENCE_END, at)
                source, number = encoded[:at], encoded[at + len(_SEQUENCE) : end]
                trace_id, span_id, parent_id = span.trace_id, span.span_id, span.parent_span_id
                start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
                usual = number.isdigit() and len(number) <= _MOST_DIGITS and encoded.endswith(_LAST)
                plain = not (span.status or span.events or span.links)
                timed = start_ns < LATEST_NS and end_ns < LATEST_NS and end_ns - (start_ns or end_ns) <= LONGEST_NS
                named = len(trace_id) == _TRACE_ID and len(span_id) == _SPAN_ID and len(parent_id) in (0, _SPAN_ID)
                if not (usual and plain and timed and named):
                    raise ValueError("not what recorders usually write")
                if (pattern := patterns.get((source, name))) is None:
                    pattern = patterns[source, name] = self._pattern(source, name, common)
                event = _copy(pattern)
                event.trace_id, event.span_id, _ = ids[trace_id], _id(span_id), ids[parent_id]
                event.sequence, event.start_ns, event.end_ns = int(number), start_ns or end_ns, end_ns
                for field_name, value in map(checked, encoded[end + len(_SEQUENCE_END) : -len(_LAST)].split(_NEXT)):
                    setattr(event, field_name, value)
                for needed in _NEEDED[name]:
                    if getattr(event, needed) is None:
                        raise ValueError(f"a span without {needed}")
                append(event)
            except _UNUSUAL:
                decoded.add_ours(span.name, self._ids(span), self._attributes(span), common)

    def _pattern(self, source: bytes, name: str, common: Mapping[str, Any]) -> Event:
        """An event with what its span begins with, and None in the other fields that its kind requires."""
        if not source.startswith(_FIRST):
            raise ValueError("a span without a recorder")
        values: dict[str, Any] = dict.fromkeys(_REQUIRED[name])
        values |= map(self._checked.__getitem__, source[len(_FIRST) :].split(_NEXT))
        values |= {_FIELDS[key][0]: convert(value, _FIELDS[key][1]) for key, value in common.items()}
        return CLASSES[name](**values)

    def _lists(self, data: str) -> Iterator[tuple[dict[str, Any], str, Sequence[_Span]]]:
        for resource_spans in _read_request(data).resource_spans:
            resource = self._attributes(resource_spans.resource)
            for scope_spans in resource_spans.scope_spans:
                yield resource, scope_spans.scope.name, scope_spans.spans

    def _ids(self, span: _Span) -> Ids:
        error = None
        if span.status is not None and span.status.code == Status.STATUS_CODE_ERROR:
            error = span.status.message or "error"
        if span.links or span.events:
            self._check(span)
        trace_id, span_id, parent_id = span.trace_id, span.span_id, span.parent_span_id
        if len(trace_id) != _TRACE_ID or len(span_id) != _SPAN_ID or len(parent_id) not in (0, _SPAN_ID):
            raise ValueError("an id of another length")
        ids = bytes.fromhex(trace_id + span_id + parent_id).hex()
        start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        return ids[:_TRACE_ID], ids[_TRACE_ID : _TRACE_ID + _SPAN_ID], start_ns, end_ns, error

    def _check(self, span: _Span) -> None:
        """Nobody needs links, nor the events of our spans, but damage in them is damage of the request."""
        for link in span.links:
            _id(link.trace_id), _id(link.span_id), self._attributes(link)
        for event in span.events:
            self._event(event)

    def _attributes(self, holder: _Span | _Resource | _Event | _Link) -> dict[str, Any]:
        """Attributes usually come as `[{"key":"a","value":..},{"key":"b","value":..}]`. Quotes within a JSON string are
        escaped, so the text between two of these keys is one attribute, or, in a nested list, not JSON."""
        encoded = bytes(holder.attributes)
        if encoded.startswith(_FIRST) and encoded.endswith(_LAST):
            try:
                return dict(map(self._remembered.__getitem__, encoded[len(_FIRST) : -len(_LAST)].split(_NEXT)))
            except msgspec.DecodeError:
                pass
        return _by_key(_read_attributes(encoded))

    def _rest(self, span: _Span) -> tuple[str, list[dict[str, Any]]]:
        return _id(span.parent_span_id), [self._event(event) for event in span.events]

    def _event(self, event: _Event) -> dict[str, Any]:
        return {"name": event.name, "time_ns": event.time_unix_nano, "attributes": self._attributes(event)}


def _piece(piece: bytes) -> tuple[str, Any]:
    """An attribute without its beginning and its end."""
    key, _, rest = piece.partition(_PLAIN_INTEGER)
    if (name := _OURS.get(key)) is not None and rest.endswith(_END) and len(rest) < _LONGEST:
        digits = rest[: -len(_END)]
        if digits.isdigit():
            return name, int(digits)
    if (plain := _PLAIN_LIST.fullmatch(piece)) is not None:
        key, numbers, _, strings, _ = plain.groups()
        if numbers is not None:
            return key.decode(), list(map(int, _NUMBERS.findall(numbers)))
        return key.decode(), list(map(bytes.decode, _STRINGS.findall(strings)))
    attribute = _read_attribute(b'{"key":"' + piece + b"}")
    value = _value(attribute.value)
    return attribute.key, as_bytes(attribute.key, value) if "stringValue" in attribute.value else value


def _checked(piece: bytes) -> tuple[str, Any]:
    """The event's field that an attribute fills, and its value. Raises one of `_UNUSUAL` where no event has it."""
    key, value = _piece(piece)
    if key in _OF_RESOURCES:
        raise KeyError(key)
    name, type_ = _FIELDS[key]
    return name, convert(value, type_)


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
        request = ParseDict(_with_ids(data, _to_base64), ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        raise MalformedOtlp(f"not an OTLP trace request: {error}") from error
    return request.SerializeToString()


def salvaged(data: Any) -> tuple[bytes, Refused | None]:
    """A request in binary form with those of its spans that are OTLP, and how many are not; `data` is its JSON, loaded.

    Raises:
        MalformedOtlp: the data is no request, or none of its spans is OTLP.
    """
    try:
        return to_protobuf(data), None
    except MalformedOtlp as error:
        rest, refused = _readable(data)
        if not rest:
            raise
        return to_protobuf({"resourceSpans": rest}), Refused(refused, str(error))


def _readable(data: Any) -> tuple[list[dict[str, Any]], int]:
    """The resources of a request with those of their spans that are OTLP, and how many spans are not. Each resource is read
    once: it may be long, and its spans many."""
    rest, refused = [], 0
    for resource_spans in _held(data, "resourceSpans", "resource_spans"):
        of_resource = {"resource": resource_spans.get("resource")}
        has_source = _is_otlp(of_resource)
        scopes = []
        for scope_spans in _held(resource_spans, "scopeSpans", "scope_spans"):
            of_scope, spans = {"scope": scope_spans.get("scope")}, [*_held(scope_spans, "spans")]
            good: list[dict[str, Any]] = []
            if has_source and _is_otlp({"scopeSpans": [of_scope]}):
                good += (span for span in spans if _is_otlp({"scopeSpans": [{"spans": [span]}]}))
            if good:
                scopes.append({**of_scope, "spans": good})
            refused += len(spans) - len(good)
        if scopes:
            rest.append({**of_resource, "scopeSpans": scopes})
    return rest, refused


def _is_otlp(resource_spans: dict[str, Any]) -> bool:
    try:
        to_protobuf({"resourceSpans": [resource_spans]})
    except MalformedOtlp:
        return False
    return True


def _held(data: Any, *names: str) -> Iterator[dict[str, Any]]:
    """The objects in a list that has one of these names."""
    for name in names:
        if isinstance(data, dict) and isinstance(held := data.get(name), list):
            yield from (each for each in held if isinstance(each, dict))


def to_json_line(payload: bytes) -> str:
    """A request in binary form as one line of a trace file, without the newline."""
    request = ExportTraceServiceRequest.FromString(payload)
    text: str = MessageToJson(request, indent=None, ensure_ascii=False, use_integers_for_enums=True)
    return json.dumps(with_hex_ids(json.loads(text)), separators=(",", ":"), ensure_ascii=False)


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
        {"key": key, "value": {"bytesValue": item} if key in semconv.IN_BYTES else _value_to_json(item)}
        for key, item in values.items()
    ]


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


def _with_ids(data: Any, change: Callable[[str], str]) -> Any:
    """JSON data with its ids changed."""
    if isinstance(data, dict):
        return {
            key: change(item) if key in _IDS and isinstance(item, str) else _with_ids(item, change)
            for key, item in data.items()
        }
    if isinstance(data, list):
        return [_with_ids(item, change) for item in data]
    return data


def with_hex_ids(data: Any) -> Any:
    """OTLP's JSON of what Google's writer makes, whose ids are base64."""
    return _with_ids(data, _to_hex)


def _to_base64(text: str) -> str:
    """Writers that know protobuf's JSON, but not OTLP's, leave ids in base64, whose padding no hexadecimal id has."""
    return text if text.endswith("=") else base64.b64encode(bytes.fromhex(text)).decode()


def _to_hex(text: str) -> str:
    return base64.b64decode(text).hex()

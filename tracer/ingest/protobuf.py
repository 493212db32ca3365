"""OTLP's binary form -> spans.

Google's parser reads a request with a modified schema, in which a span's attributes are bytes. Most attributes repeat (the
recorder's, the request's, small numbers), so they are looked up by their bytes, and only unseen ones are parsed. The parser
refuses a request if a single byte is wrong. A second schema, in which each span is bytes, then separates the readable spans
from the others.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import KEYS
from kvtrail.tracer.events.spans import LATEST_NS, Span
from kvtrail.tracer.ingest.decode import (
    Decoded,
    Decoder,
    Ids,
    MalformedOtlp,
    Refused,
    split_step_spans,
)

_ONCE = frozenset({semconv.SEQUENCE.key, KEYS["chunk_keys"]})
"""Attributes whose values rarely repeat. Caching them would evict values that do."""
_MAX_REMEMBERED = 8192
"""Maximum number of cached attributes. A full cache is cleared."""
_LONGEST_REMEMBERED = 500
"""Maximum size of a cached encoding in bytes. Longer ones rarely repeat."""
_MORE = 0x80
"""The continuation bit of a varint's byte: another byte follows."""
_KEY, _VALUE = 0x0A, 0x12
"""The tags of an attribute's key and value. A length in bytes follows each tag."""
_TEXT, _NUMBER, _LIST = 0x0A, 0x18, 0x2A
"""The tags of a value that is a text, a number, or a list."""
_OF_ONE = {size: bytes((size - 2, _KEY, size - 4, _TEXT, size - 6)) for size in range(6, _MORE)}
"""The bytes between the tag and the text of a value that is a list of one text, by the size of the value."""
_MOST_SAME = 2**18
_same: dict[int, int] = {}
"""Numbers in lists, up to `_MOST_SAME`, so that equal ones share one object: a long prompt has thousands of block ids."""
MAX_PARTS = 1_000
"""Maximum number of attributes of a span or a resource, and of events of a span."""
MAX_ATTRIBUTE_BYTES = 2**20
"""Maximum size of one encoded attribute in bytes: a recorder writes lists of at most 65,536 numbers."""
MAX_SPANS = 65_536
"""Maximum number of spans in one request, its resources and scopes included."""
_SHORTEST = 2
"""Minimum size of a part in bytes."""
_LONGEST_NUMBER = 10
"""Maximum size of a number in bytes, with its tag. A longer number is negative, or damaged."""


class ProtobufDecoder(Decoder[bytes]):
    """Decodes requests in binary form. Raises MalformedOtlp for a request that it refuses."""

    def __init__(self) -> None:
        self._remembered = _Attributes()

    def numbered(self, data: bytes, *, first: int) -> Iterator[tuple[int, Span]]:
        """The result of `spans`, each with its number, beginning with `first`. All rows of a step have the step's number."""
        numbers = count(first)
        for resource, scope, spans in self._lists(data):
            for span, number in zip(spans, numbers, strict=False):
                yield from ((number, each) for each in split_step_spans(self._span(span, resource, scope)))

    def salvaged(self, data: bytes) -> tuple[bytes, list[tuple[Mapping[str, Any], Decoded]], Refused | None]:
        """The readable spans of a request, as a request and in the form of `parts`, and the number of unreadable ones.

        Raises:
            MalformedOtlp: the bytes are no request, or none of its spans can be read.
        """
        try:
            return data, self.parts(data), None
        except MalformedOtlp as error:
            rest, refused = self._readable(data)
            if not rest:
                raise
            return rest, self.parts(rest), Refused(refused, str(error))

    def _readable(self, data: bytes) -> tuple[bytes, int]:
        """A request without its unreadable spans, and their number. The request is empty if it has no readable spans. Each
        resource is read and kept once, since it may be long and have many spans."""
        rest, refused = Parts.Request(), 0
        for resource_spans in _loosely(Parts.Request, data).resource_spans:
            of_resource = _loosely(Parts.ResourceSpans, resource_spans)
            kept = Parts.ResourceSpans(resource=of_resource.resource)
            has_source = self._can_read(kept)
            for scope_spans in of_resource.scope_spans:
                of_scope = _loosely(Parts.ScopeSpans, scope_spans)
                in_scope = Parts.ScopeSpans(scope=of_scope.scope)
                if has_source and self._can_read(Parts.ResourceSpans(scope_spans=[in_scope.SerializeToString()])):
                    in_scope.spans.extend(filter(self._can_read_span, of_scope.spans))
                if in_scope.spans:
                    kept.scope_spans.append(in_scope.SerializeToString())
                refused += len(of_scope.spans) - len(in_scope.spans)
            if kept.scope_spans:
                rest.resource_spans.append(kept.SerializeToString())
        return rest.SerializeToString(), refused

    def _can_read_span(self, span: bytes) -> bool:
        alone = Parts.ScopeSpans(spans=[span])
        return self._can_read(Parts.ResourceSpans(scope_spans=[alone.SerializeToString()]))

    def _can_read(self, resource_spans: Any) -> bool:
        try:
            self.decoded(Parts.Request(resource_spans=[resource_spans.SerializeToString()]).SerializeToString())
        except MalformedOtlp:
            return False
        return True

    def _lists(self, data: bytes) -> Iterator[tuple[dict[str, Any], str, Sequence[Any]]]:
        for resource_spans in _parsed(Request, data).resource_spans:
            resource = attributes(_few(resource_spans.resource.attributes))
            for scope_spans in resource_spans.scope_spans:
                yield resource, scope_spans.scope.name, scope_spans.spans

    def _ids(self, span: Any) -> Ids:
        error = None
        if span.HasField("status") and span.status.code == Status.STATUS_CODE_ERROR:
            error = span.status.message or "error"
        start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        if start_ns > LATEST_NS or end_ns > LATEST_NS:
            start_ns, end_ns = min(start_ns, LATEST_NS), min(end_ns, LATEST_NS)
        return span.trace_id.hex(), span.span_id.hex(), start_ns, end_ns, error

    def _attributes(self, span: Any) -> dict[str, Any]:
        return dict(map(self._remembered.__getitem__, _few(span.attributes)[:]))

    def _rest(self, span: Any) -> tuple[str, list[dict[str, Any]]]:
        return span.parent_span_id.hex(), [_event(event) for event in _few(events)] if (events := span.events) else []


def _parsed(message: Any, data: bytes) -> Any:
    """The message in these bytes. Raises MalformedOtlp if they are not one."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise MalformedOtlp(f"not an OTLP trace request: {error}") from error


def spans(payload: bytes) -> list[Span]:
    """The spans of one request.

    Raises:
        MalformedOtlp: the bytes are not an `ExportTraceServiceRequest`.
    """
    return ProtobufDecoder().spans(payload)


def value(any_value: AnyValue) -> Any:
    """The Python value of an attribute; bytes become base64 text, since they are stored as JSON."""
    kind = any_value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        # In a long list of numbers, one access per value is enough: other values read as 0.
        return [
            (_same.setdefault(number, number) if 0 < (number := item.int_value) < _MOST_SAME else number) or value(item)
            for item in any_value.array_value.values
        ]
    if kind == "kvlist_value":
        return attributes(any_value.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(any_value.bytes_value).decode()
    if kind == "double_value" and not math.isfinite(any_value.double_value):
        return str(any_value.double_value)  # JSON has no NaN
    return getattr(any_value, kind)


def _few(parts: Any) -> Any:
    """Attributes or events, unchanged. Raises MalformedOtlp if they are too many."""
    if len(parts) > MAX_PARTS:
        raise MalformedOtlp(f"more than {MAX_PARTS} attributes or events")
    return parts


class _Attributes(dict[bytes, tuple[str, Any]]):
    """Attributes by their bytes, each parsed when it is first seen. The values are shared: treat them as read-only."""

    def __missing__(self, encoded: bytes) -> tuple[str, Any]:
        parsed = _attribute(encoded)
        if len(encoded) <= _LONGEST_REMEMBERED and parsed[0] not in _ONCE:
            if len(self) >= _MAX_REMEMBERED:
                self.clear()
            self[encoded] = parsed
        return parsed


def _attribute(encoded: bytes) -> tuple[str, Any]:
    if len(encoded) < _MORE and (short := _short(encoded)) is not None:
        return short
    if len(encoded) > MAX_ATTRIBUTE_BYTES:
        raise MalformedOtlp(f"an attribute of more than {MAX_ATTRIBUTE_BYTES} bytes")
    attribute = _parsed(KeyValue, encoded)
    return attribute.key, value(attribute.value)


def _short(encoded: bytes) -> tuple[str, Any] | None:
    """An attribute that is a number, a text or a list of one text, and so short that each length fits into one byte; None for
    any other. Most attributes are of this form, and Google's parser takes four times as long for them."""
    try:
        begin = 2 + encoded[1]
        size = len(encoded) - begin - 2
        if encoded[0] != _KEY or encoded[begin] != _VALUE or encoded[begin + 1] != size:
            return None
        key, kind = encoded[2:begin].decode(), encoded[begin + 2]
        if kind == _NUMBER and size <= _LONGEST_NUMBER:
            number = shift = 0
            for byte in encoded[begin + 3 :]:
                number |= (byte & ~_MORE) << shift
                shift += 7
                if byte < _MORE:
                    return (key, number) if shift == 7 * (size - 1) else None
        elif kind == _TEXT and encoded[begin + 3] == size - 2:
            return key, encoded[begin + 4 :].decode()
        elif kind == _LIST and encoded[begin + 3 : begin + 8] == _OF_ONE.get(size):
            return key, [encoded[begin + 8 :].decode()]
    except (IndexError, UnicodeDecodeError):
        pass
    return None


def attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes by key."""
    return {pair.key: value(pair.value) for pair in pairs}


def _event(event: ProtoSpan.Event) -> dict[str, Any]:
    return {"name": event.name, "time_ns": event.time_unix_nano, "attributes": attributes(event.attributes)}


def divided(data: bytes, *, most_bytes: int) -> Iterator[bytes]:
    """Split a request into requests with at most `most_bytes` of spans each. A larger span gets a request of its own.

    Raises:
        MalformedOtlp: the bytes are long and not a request, or have more than `MAX_SPANS` spans and lists of spans.
    """
    if len(data) <= min(MAX_SPANS * _SHORTEST, most_bytes):
        yield data
        return
    request = _parsed(_Cut, data)
    parts = len(request.resource_spans)
    lists = [
        (each.resource, scope) for each in request.resource_spans[:MAX_SPANS] for scope in each.scope_spans[:MAX_SPANS]
    ]
    if parts + len(lists) + sum(len(scope.spans) for _, scope in lists) > MAX_SPANS:
        raise MalformedOtlp(f"more than {MAX_SPANS} spans and lists of spans in one request: send smaller batches")
    if len(data) <= most_bytes:
        yield data
        return
    part, size = _Cut(), 0
    for resource, scope in lists:
        within = None
        for span in scope.spans:
            if size and size + len(span) > most_bytes:
                yield part.SerializeToString()
                part, size, within = _Cut(), 0, None
            if within is None:
                within = part.resource_spans.add(resource=resource).scope_spans.add(scope=scope.scope)
            within.spans.append(span)
            size += len(span) + _SHORTEST
    yield part.SerializeToString()


def cut(data: bytes, marks: Collection[bytes]) -> bytes:
    """A request reduced to the spans whose bytes contain any of these marks."""
    request = _Cut.FromString(data)
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            scope_spans.spans[:] = [span for span in scope_spans.spans if any(mark in span for mark in marks)]
    few: bytes = request.SerializeToString()
    return few


def _loosely(message: Any, data: bytes) -> Any:
    """The message in the bytes, or an empty message if they cannot be parsed."""
    try:
        return message.FromString(data)
    except DecodeError:
        return message()


def _with_bytes(fields: Collection[tuple[str, str]]) -> DescriptorPool:
    """OTLP's messages, with these fields (message, name) declared as bytes of the same wire format: the encoded messages."""
    pool = DescriptorPool()
    _add(trace_service_pb2.DESCRIPTOR, pool, set(), fields)
    return pool


def _add(file: FileDescriptor, pool: DescriptorPool, added: set[str], fields: Collection[tuple[str, str]]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for needed in file.dependencies:
        _add(needed, pool, added, fields)
    copy = FileDescriptorProto.FromString(file.serialized_pb)
    for message in copy.message_type:
        for field in message.field:
            if (message.name, field.name) in fields:
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
    pool.Add(copy)


def _message(pool: DescriptorPool, name: str) -> Any:
    return GetMessageClass(pool.FindMessageTypeByName(name))


_REQUEST = f"{trace_service_pb2.DESCRIPTOR.package}.ExportTraceServiceRequest"
Request = _message(_with_bytes({("Span", "attributes")}), _REQUEST)
"""A request with the attributes of its spans as bytes."""

_Cut = _message(_with_bytes({("ResourceSpans", "resource"), ("ScopeSpans", "spans")}), _REQUEST)


class Parts:
    """Messages whose parts are bytes. Parts that are not read stay unchanged."""

    _pool = _with_bytes(
        {
            ("ExportTraceServiceRequest", "resource_spans"),
            ("ResourceSpans", "resource"),
            ("ResourceSpans", "scope_spans"),
            ("ScopeSpans", "scope"),
            ("ScopeSpans", "spans"),
        }
    )
    Request = _message(_pool, _REQUEST)
    ResourceSpans = _message(_pool, f"{ProtoSpan.DESCRIPTOR.file.package}.ResourceSpans")
    ScopeSpans = _message(_pool, f"{ProtoSpan.DESCRIPTOR.file.package}.ScopeSpans")

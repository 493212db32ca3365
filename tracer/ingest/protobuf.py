"""OTLP's binary form -> spans.

Google's parser reads a request, but with a schema of our own: a span's attributes are bytes in it. So they can be looked up
by their bytes, and only those that were not seen before are parsed.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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

from kvtrail.tracer.ingest.decode import Decoded, Decoder, Ids, MalformedOtlp, Remembered
from kvtrail.tracer.model.spans import LATEST_NS, Span


class ProtobufDecoder(Decoder[bytes, Any]):
    """Decodes requests in binary form. What it refuses is MalformedOtlp."""

    def __init__(self) -> None:
        self._remembered = Remembered(_attribute)

    def spans(self, data: bytes) -> list[Span]:
        with _refusal():
            return super().spans(data)

    def decoded(self, data: bytes) -> Decoded:
        with _refusal():
            return super().decoded(data)

    def _lists(self, data: bytes) -> Iterator[tuple[dict[str, Any], str, Iterable[Any]]]:
        for resource_spans in _Request.FromString(data).resource_spans:
            resource = attributes(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                yield resource, scope_spans.scope.name, scope_spans.spans

    def _ids(self, span: Any) -> Ids:
        error = None
        if span.HasField("status") and span.status.code == Status.STATUS_CODE_ERROR:
            error = span.status.message or "error"
        start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        return span.trace_id.hex(), span.span_id.hex(), min(start_ns, LATEST_NS), min(end_ns, LATEST_NS), error

    def _attributes(self, span: Any) -> dict[str, Any]:
        return dict(map(self._remembered.__getitem__, span.attributes[:]))

    def _rest(self, span: Any) -> tuple[str, list[dict[str, Any]]]:
        return span.parent_span_id.hex(), [_event(event) for event in events] if (events := span.events) else []


@contextmanager
def _refusal() -> Iterator[None]:
    try:
        yield
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
        return [value(item) for item in any_value.array_value.values]
    if kind == "kvlist_value":
        return attributes(any_value.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(any_value.bytes_value).decode()
    if kind == "double_value" and not math.isfinite(any_value.double_value):
        return str(any_value.double_value)  # JSON has no NaN
    return getattr(any_value, kind)


def _attribute(encoded: bytes) -> tuple[str, Any]:
    attribute = KeyValue.FromString(encoded)
    return attribute.key, value(attribute.value)


def attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes by key."""
    return {pair.key: value(pair.value) for pair in pairs}


def _event(event: ProtoSpan.Event) -> dict[str, Any]:
    return {"name": event.name, "time_ns": event.time_unix_nano, "attributes": attributes(event.attributes)}


def _shallow() -> Any:
    """`ExportTraceServiceRequest`, but `Span.attributes` is a list of bytes: the encoded attributes. On the wire it is the
    same message."""
    pool = DescriptorPool()
    request = trace_service_pb2.DESCRIPTOR
    _add(request, pool, set())
    return GetMessageClass(pool.FindMessageTypeByName(f"{request.package}.ExportTraceServiceRequest"))


def _add(file: FileDescriptor, pool: DescriptorPool, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for needed in file.dependencies:
        _add(needed, pool, added)
    copy = FileDescriptorProto.FromString(file.serialized_pb)
    for message in copy.message_type:
        for field in message.field:
            if message.name == "Span" and field.name == "attributes":
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
    pool.Add(copy)


_Request = _shallow()

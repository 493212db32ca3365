"""OTLP's binary form -> spans.

Google's parser reads a request, but with a schema of our own: a span's attributes are bytes in it. Most attributes come again
and again (the recorder's, the request's, small numbers), so each is parsed once and then looked up by its bytes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable
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

from kvtrail.tracer.model.spans import LATEST_NS, Span

_MOST_REMEMBERED = 8192
_LONGEST_REMEMBERED = 200
"""Bytes of an attribute. A longer one is hardly ever seen twice."""


class MalformedOtlp(ValueError):
    """Bytes or JSON that are not an `ExportTraceServiceRequest`; the text says why."""


class Attributes(dict[bytes, tuple[str, Any]]):
    """The encoded attributes that were seen -> key and value. Bounded: it is emptied when it is full."""

    def __init__(self, parse: Callable[[bytes], tuple[str, Any]]) -> None:
        super().__init__()
        self._parse = parse

    def __missing__(self, encoded: bytes) -> tuple[str, Any]:
        attribute = self._parse(encoded)
        if len(encoded) <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[encoded] = attribute
        return attribute


class ProtobufDecoder:
    """Decodes requests. It remembers attributes, so use one for as many requests as possible; it is not thread-safe."""

    def __init__(self) -> None:
        self._attributes = Attributes(_attribute)

    def spans(self, payload: bytes) -> list[Span]:
        """The spans of a request, in its order.

        Raises:
            MalformedOtlp: the bytes are not an `ExportTraceServiceRequest`.
        """
        spans: list[Span] = []
        attribute = self._attributes.__getitem__
        try:
            for resource_spans in _Request.FromString(payload).resource_spans:
                resource = attributes(resource_spans.resource.attributes)
                for scope_spans in resource_spans.scope_spans:
                    scope = scope_spans.scope.name
                    for span in scope_spans.spans:
                        error = None
                        if span.HasField("status") and span.status.code == Status.STATUS_CODE_ERROR:
                            error = span.status.message or "error"
                        spans.append(
                            Span(
                                trace_id=span.trace_id.hex(),
                                span_id=span.span_id.hex(),
                                parent_id=span.parent_span_id.hex(),
                                name=span.name,
                                start_ns=min(span.start_time_unix_nano, LATEST_NS),
                                end_ns=min(span.end_time_unix_nano, LATEST_NS),
                                attributes=dict(map(attribute, span.attributes[:])),
                                resource=resource,
                                scope=scope,
                                error=error,
                                events=[_event(event) for event in events] if (events := span.events) else [],
                            )
                        )
        except DecodeError as error:
            raise MalformedOtlp(f"not an OTLP trace request: {error}") from error
        return spans


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

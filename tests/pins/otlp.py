"""The bytes on the wire: of each kind of span with every attribute, and of what else the encoder writes, field by field."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, get_type_hints

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from kvtrail import __version__
from kvtrail.connector.recording.encoder import Encoder, attribute
from kvtrail.connector.recording.ring import EventTuple, Identity
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CLASSES, FIELDS, STEP_FIELDS
from kvtrail.tracer.events.semconv import Attribute, Kind
from pins import written

ROOT, CALLER = bytes(range(24)), b"caller's"
REQUEST: Identity = (ROOT, b"", "cmpl-1-0-0123abcd", True)
NOBODY: Identity = (ROOT, b"", "", True)
BASE_NS = 1_764_725_076 * 10**9
SOURCE = b"".join(
    attribute(of.key, value)
    for of, value in (
        (semconv.CONNECTOR, "OffloadConnector"), (semconv.CONNECTOR_ID, "nixl"), (semconv.ROLE, "worker"),
        (semconv.RANK, 3), (semconv.CHUNK_SIZE, 256),
    )
)  # fmt: skip
OF_TEXTS = {semconv.ROW_REQUESTS.field}
"""The lists of a step that hold texts."""
OF_BOOLS = {semconv.ROW_SAMPLED.field}
OF_NO_REQUEST = (Kind.RESET, Kind.PREFIX_CACHE, Kind.EVICT, Kind.KEY, Kind.HOLDINGS, Kind.HEARTBEAT)


def otlp() -> dict[str, Any]:
    """Each span by what it shows."""
    spans = {str(kind): event(kind) for kind in FIELDS}
    spans |= {f"{kind} of nobody": event(kind, NOBODY) for kind in OF_NO_REQUEST}
    error = "OSError: no space left"
    spans |= {
        semconv.STEP_SPAN: (semconv.STEP_SPAN, SOURCE, NOBODY, 5, 0, 0, 5, 9, None, tuple(map(_value, STEP_FIELDS))),
        "only what is required": event(Kind.LOOKUP, empty=True),
        "raised": event(Kind.ALLOC, error=error),
        "raised without a text": event(Kind.ALLOC, error="KeyError"),
        "not sampled": event(Kind.LOOKUP, (ROOT, b"", "cmpl-2-0-0123abcd", False)),
        "a caller's": event(Kind.REQUEST, (ROOT, CALLER, "chatcmpl-3-0123abcd", True)),
        "large numbers": event(Kind.LOOKUP, sequence=2**35 + 12_345, epoch=2**20, at_ns=2**50),
    }
    made = {name: _encoded(each) for name, each in spans.items()}
    return {"spans": made, "resource": _resource()}


def event(
    kind: Kind,
    identity: Identity = REQUEST,
    *,
    sequence: int = 77,
    epoch: int = 2,
    at_ns: int = 1_000_000,
    error: str | None = None,
    empty: bool = False,
) -> EventTuple:
    """A recorded event, with a value of its own for every attribute."""
    values = tuple(None if empty and n > 1 else _value(of, kind) for n, of in enumerate(FIELDS[kind]))
    return (kind.value, SOURCE, identity, sequence, sequence - 70, epoch, at_ns, at_ns + 12_345, error, values)


def _value(of: Attribute, kind: Kind | None = None) -> Any:
    """A value that depends on the attribute's name alone, so that a new attribute changes no other's."""
    number = zlib.crc32(of.key.encode()) % 10_000 - 1_000
    if of.type is tuple:
        hint = "" if kind is None else repr(get_type_hints(CLASSES[kind])[of.field])
        if "str" in hint or of.field in OF_TEXTS:
            return (f"text {number}", "ü")
        return (True, False) if of.field in OF_BOOLS else (number, 1, -(2**62))
    values = {bool: number % 2 == 0, int: number, float: number / 8, str: f"text {number}", bytes: of.key.encode()}
    return values[of.type]


def _encoded(recorded: EventTuple) -> dict[str, Any]:
    encoder = Encoder({semconv.ENGINE_ID.key: "engine", semconv.SERVED_MODEL.key: "llama"}, 0x1000, BASE_NS)
    (part,) = encoder.parts([recorded], 1)
    (message,) = ExportTraceServiceRequest.FromString(encoder.request(part)).resource_spans
    spans = [_fields(span) for span in message.scope_spans[0].spans]
    digest = hashlib.sha256(b"".join(body for body, _ in part)).hexdigest()[:16]
    return {"sha256": digest, "spans": spans}


def _fields(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ids": f"trace {span.trace_id.hex()} span {span.span_id.hex()} parent {span.parent_span_id.hex()} flags {span.flags}",
        "name": f"{span.name} kind {span.kind}",
        "times": f"{span.start_time_unix_nano} {span.end_time_unix_nano}",
        "attributes": [_pair(pair) for pair in span.attributes],
    }
    if span.status.code or span.status.message:
        found["status"] = f"{span.status.code} {span.status.message}"
    if span.events:
        found["events"] = [[e.name, e.time_unix_nano, *map(_pair, e.attributes)] for e in span.events]
    return found


def _pair(pair: KeyValue) -> str:
    return f"{pair.key} = {_typed(pair.value)}"


def _typed(value: AnyValue) -> str:
    """A value after the name of its type on the wire."""
    name = value.WhichOneof("value") or "nothing"
    if name == "array_value":
        return f"[{', '.join(map(_typed, value.array_value.values))}]"
    content = getattr(value, name, None)
    text = content.hex() if isinstance(content, bytes) else written(content)
    return f"{name.removesuffix('_value')} {text}"


def _resource() -> dict[str, Any]:
    """A resource with every attribute of a recorder, and the scope."""
    resource = {"service.name": "vllm", **{of.key: _value(of) for of in semconv.RESOURCE}}
    encoder = Encoder(resource, 0x1000, BASE_NS)
    (message,) = ExportTraceServiceRequest.FromString(encoder.request([])).resource_spans
    scope = message.scope_spans[0].scope
    return {
        "attributes": [_pair(pair) for pair in message.resource.attributes],
        "scope": f"{scope.name} {scope.version.replace(__version__, 'VERSION')}",
    }

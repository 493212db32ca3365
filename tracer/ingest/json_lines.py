"""OTLP's binary form -> lines of OTLP JSON, for a trace file that is written while spans arrive.

Ten times as fast as Google's JSON writer, since it caches the text of attributes. A span with more than the usual fields is
left to that writer, so that nothing of it is lost.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from kvtrail.tracer.ingest.decode import Remembered
from kvtrail.tracer.ingest.otlp_json import with_hex_ids
from kvtrail.tracer.ingest.protobuf import Request

_USUAL = frozenset(
    {
        "trace_id", "span_id", "parent_span_id", "flags", "name", "kind", "start_time_unix_nano", "end_time_unix_nano",
        "attributes",
    }
)  # fmt: skip


class JsonLines:
    """Writes requests. It caches attributes: reuse one for as many requests as possible; not thread-safe."""

    def __init__(self) -> None:
        self._remembered: Remembered[str] = Remembered(_attribute)

    def line(self, payload: bytes) -> str:
        """A request as a line, without the newline. Raises DecodeError if it is none."""
        return (
            f'{{"resourceSpans":[{",".join(map(self._resource_spans, Request.FromString(payload).resource_spans))}]}}'
        )

    def _resource_spans(self, part: Any) -> str:
        scopes = ",".join(map(self._scope_spans, part.scope_spans))
        part.ClearField("scope_spans")
        rest = _rest(part)
        return f'{{{rest}{"," * bool(rest)}"scopeSpans":[{scopes}]}}'

    def _scope_spans(self, part: Any) -> str:
        spans = ",".join(map(self._span, part.spans))
        part.ClearField("spans")
        rest = _rest(part)
        return f'{{{rest}{"," * bool(rest)}"spans":[{spans}]}}'

    def _span(self, span: Any) -> str:
        attributes = ",".join(map(self._remembered.__getitem__, span.attributes))
        if not _USUAL.issuperset([field.name for field, _ in span.ListFields()]):
            span.ClearField("attributes")
            return f'{{{_rest(span)},"attributes":[{attributes}]}}'
        parent = f'"parentSpanId":"{span.parent_span_id.hex()}",' if span.parent_span_id else ""
        flags = f'"flags":{span.flags},' if span.flags else ""
        return (
            f'{{"traceId":"{span.trace_id.hex()}","spanId":"{span.span_id.hex()}",{parent}{flags}"name":{_text(span.name)},'
            f'"kind":{span.kind},"startTimeUnixNano":"{span.start_time_unix_nano}",'
            f'"endTimeUnixNano":"{span.end_time_unix_nano}","attributes":[{attributes}]}}'
        )


def _rest(message: Any) -> str:
    """The fields of a message, by Google's writer, without the braces."""
    fields = with_hex_ids(MessageToDict(message, use_integers_for_enums=True))
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)[1:-1]


def _text(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _attribute(encoded: bytes) -> str:
    attribute = KeyValue.FromString(encoded)
    value = attribute.value
    if (kind := value.WhichOneof("value")) == "string_value":
        text = f'{{"stringValue":{_text(value.string_value)}}}'
    elif kind == "int_value":
        text = f'{{"intValue":"{value.int_value}"}}'
    else:
        text = json.dumps(MessageToDict(value), separators=(",", ":"), ensure_ascii=False)
    return f'{{"key":{_text(attribute.key)},"value":{text}}}'

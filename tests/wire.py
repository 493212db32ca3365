"""Histories as OTLP, encoded by the connector's own encoder, as a recorder would send them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToJson
from history import BLOCK_SIZE
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvtrail.connector.recording.contexts import RequestContext, root_ids
from kvtrail.connector.recording.encoder import Encoder, attribute
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import otlp_json


def encoded(events: Sequence[Event], about: Mapping[str, str | int] | None = None) -> bytes:
    """The bytes of an `ExportTraceServiceRequest` with the events of one recorder; its resource says this, too."""
    resource = {
        "service.name": "test",
        semconv.ENGINE_ID.key: events[0].engine,
        semconv.RECORDER_ID.key: events[0].recorder,
        semconv.BLOCK_SIZE.key: BLOCK_SIZE,
        **(about or {}),
    }
    encoder = Encoder(resource, span_id_base=0x1000, base_ns=0)
    contexts: dict[str, RequestContext] = {}
    recorded = []
    for event in events:
        request = event.request or ""
        context = contexts.setdefault(
            request,
            RequestContext(
                request,
                request,
                root_ids(event.engine, request),
                sampled=event.sampled is not False,
                start_ns=event.start_ns,
            ),
        )
        source = attribute(semconv.CONNECTOR.key, event.connector) + attribute(semconv.ROLE.key, event.role)
        if event.connector_id:
            source += attribute(semconv.CONNECTOR_ID.key, event.connector_id)
        if event.chunk_size is not None:
            source += attribute(semconv.CHUNK_SIZE.key, event.chunk_size)
        values = tuple(getattr(event, a.field) for a in FIELDS[event.kind])
        recorded.append(
            (
                event.kind.value, source, context.identity, event.sequence, event.request_sequence, event.epoch,
                event.start_ns, event.end_ns, event.error, values,
            )
        )  # fmt: skip
    return b"".join(encoder.requests(recorded, len(recorded)))  # one after the other they are one request


def as_request(events: Sequence[Event]) -> ExportTraceServiceRequest:
    """The same, parsed."""
    return ExportTraceServiceRequest.FromString(encoded(events))


def as_payload(spans: Sequence[Span]) -> bytes:
    """The bytes of an `ExportTraceServiceRequest` with spans of anybody."""
    return otlp_json.to_protobuf(json.loads(otlp_json.spans_to_json_line(spans)))


def to_json_line(payload: bytes) -> str:
    """A request in binary form as one line of a trace file, as other programs write it, without the newline."""
    request = ExportTraceServiceRequest.FromString(payload)
    text: str = MessageToJson(request, indent=None, ensure_ascii=False, use_integers_for_enums=True)
    return json.dumps(_with_hex_ids(json.loads(text)), separators=(",", ":"), ensure_ascii=False)


def _with_hex_ids(data: Any) -> Any:
    """OTLP's JSON from that of Google's writer, which has base64 ids."""
    if isinstance(data, dict):
        return {
            key: base64.b64decode(item).hex() if key in ("traceId", "spanId", "parentSpanId") else _with_hex_ids(item)
            for key, item in data.items()
        }
    return [_with_hex_ids(item) for item in data] if isinstance(data, list) else data

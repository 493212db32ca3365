"""An imported event as a span, and spans as OTLP JSON Lines.

Ids are made of the engine, the process and the number, so that a log which is imported twice gives the same spans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from tracer import semconv
from tracer.events import Event
from tracer.spans import Span

_COMMON = (
    semconv.REQUEST_ID, semconv.EXTERNAL_ID, semconv.EPOCH, semconv.REQUEST_SEQUENCE, semconv.SEQUENCE,
    semconv.CONNECTOR, semconv.CONNECTOR_ID, semconv.ROLE, semconv.RANK,
)  # fmt: skip
_FIELD_OF = {semconv.REQUEST_ID.key: "request", semconv.EXTERNAL_ID.key: "external", semconv.EPOCH.key: "epoch",
             semconv.REQUEST_SEQUENCE.key: "request_sequence", semconv.SEQUENCE.key: "sequence",
             semconv.CONNECTOR.key: "connector", semconv.CONNECTOR_ID.key: "connector_id", semconv.ROLE.key: "role",
             semconv.RANK.key: "rank"}  # fmt: skip
_OF_A_REQUEST = {semconv.EPOCH.key, semconv.REQUEST_SEQUENCE.key}
_ERROR = 2


def span_of(event: Event) -> Span:
    """The span that carries an event."""
    common = {a.key: getattr(event, _FIELD_OF[a.key]) for a in _COMMON}
    if event.request is None:
        common = {key: value for key, value in common.items() if key not in _OF_A_REQUEST}
    own = {a.key: getattr(event, a.field) for a in semconv.FIELDS[event.kind]}
    return Span(
        trace_id=_digest(16, event.engine, event.request or event.recorder),
        span_id=_digest(8, event.recorder, str(event.sequence)),
        parent_id="",
        name=event.kind,
        start_ns=event.start_ns,
        end_ns=event.end_ns,
        attributes={key: value for key, value in (common | own).items() if value is not None and value != ""},
        resource={semconv.ENGINE_ID.key: event.engine, semconv.RECORDER_ID.key: event.recorder},
        scope=semconv.SCOPE,
        error=event.error,
    )


def to_json_line(spans: Iterable[Span]) -> str:
    """One line of a trace file, without the newline: an `ExportTraceServiceRequest` with these spans."""
    by_recorder: dict[str, list[Span]] = {}
    for span in spans:
        by_recorder.setdefault(span.resource[semconv.RECORDER_ID.key], []).append(span)
    resources = [
        {
            "resource": {"attributes": _attributes(dict(held[0].resource))},
            "scopeSpans": [{"scope": {"name": semconv.SCOPE}, "spans": [_span(span) for span in held]}],
        }
        for held in by_recorder.values()
    ]
    return json.dumps({"resourceSpans": resources}, separators=(",", ":"))


def _span(span: Span) -> dict[str, Any]:
    data: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.error is not None:
        data["status"] = {"code": _ERROR, "message": span.error}
    return data


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    """OTLP's JSON has 64-bit integers as text."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case _:
            return {"stringValue": str(value)}


def _digest(size: int, *parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=size).hexdigest()

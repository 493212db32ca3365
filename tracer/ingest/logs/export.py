"""An imported event as a span.

Ids are made of the engine, the process and the number, so that a log which is imported twice gives the same spans.
"""

from __future__ import annotations

import hashlib

from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.spans import Span

_COMMON = (
    semconv.REQUEST_ID, semconv.EXTERNAL_ID, semconv.EPOCH, semconv.REQUEST_SEQUENCE, semconv.SEQUENCE,
    semconv.CONNECTOR, semconv.CONNECTOR_ID, semconv.ROLE, semconv.RANK,
)  # fmt: skip
_FIELD_OF = {semconv.REQUEST_ID.key: "request", semconv.EXTERNAL_ID.key: "external", semconv.EPOCH.key: "epoch",
             semconv.REQUEST_SEQUENCE.key: "request_sequence", semconv.SEQUENCE.key: "sequence",
             semconv.CONNECTOR.key: "connector", semconv.CONNECTOR_ID.key: "connector_id", semconv.ROLE.key: "role",
             semconv.RANK.key: "rank"}  # fmt: skip
_OF_A_REQUEST = {semconv.EPOCH.key, semconv.REQUEST_SEQUENCE.key}


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


def _digest(size: int, *parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=size).hexdigest()

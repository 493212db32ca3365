"""An imported event as a span.

Ids are derived from the engine, the process and the number, so that importing a log twice gives equal spans.
"""

from __future__ import annotations

import hashlib

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, Event
from kvtrail.tracer.events.spans import Span

_OF_A_REQUEST = {semconv.EPOCH.key, semconv.REQUEST_SEQUENCE.key}


def span_of(event: Event) -> Span:
    """The span that carries an event."""
    common = {a.key: getattr(event, a.field) for a in semconv.COMMON}
    if event.request is None:
        common = {key: value for key, value in common.items() if key not in _OF_A_REQUEST}
    own = {a.key: getattr(event, a.field) for a in FIELDS[event.kind]}
    return Span(
        trace_id=_digest(16, event.engine, event.request or event.recorder),
        span_id=_digest(8, event.recorder, str(event.sequence)),
        parent_id="",
        name=event.kind,
        start_ns=event.start_ns,
        end_ns=event.end_ns,
        attributes={key: value for key, value in (common | own).items() if value not in (None, "", b"")},
        resource={
            semconv.ENGINE_ID.key: event.engine,
            semconv.RECORDER_ID.key: event.recorder,
            semconv.LACKS.key: event.lacks,
        },
        scope=semconv.SCOPE,
        error=event.error,
    )


def _digest(size: int, *parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=size).hexdigest()

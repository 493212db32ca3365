"""Events as a history that was loaded: each with a span that says all of it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs
from msgspec.structs import replace

from kvtrail.tracer.ingest.logs.export import span_of
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.replay.history import History, Moment, in_order


def loaded(events: Sequence[Event]) -> History:
    """The history that a trace file with these events would give."""
    return History(moments=tuple(in_order(map(_moment, events))))


def _moment(event: Event) -> Moment:
    span = span_of(event)
    resource = {**span.resource, **({semconv.BLOCK_SIZE.key: event.block_size} if event.block_size else {})}
    attributes = {**span.attributes, **({semconv.CHUNK_SIZE.key: event.chunk_size} if event.chunk_size else {})}
    told = replace(span, span_id=event.span_id or span.span_id, resource=resource, attributes=attributes)
    return structs.replace(event, span_id=told.span_id, trace_id=told.trace_id), told

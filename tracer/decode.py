"""How a span becomes an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracer import semconv
from tracer.events import CLASSES, Event
from tracer.spans import LATEST_NS, Span

_KEYS: dict[str, tuple[tuple[str, str, type], ...]] = {
    kind: tuple((a.key, a.field, a.type) for a in attributes) for kind, attributes in semconv.FIELDS.items()
}

COMMON = (
    (semconv.SEQUENCE.key, "sequence", int),
    (semconv.CONNECTOR.key, "connector", str),
    (semconv.CONNECTOR_ID.key, "connector_id", str),
    (semconv.ROLE.key, "role", str),
    (semconv.RANK.key, "rank", int),
    (semconv.REQUEST_ID.key, "request", str),
    (semconv.EXTERNAL_ID.key, "external", str),
    (semconv.REQUEST_SEQUENCE.key, "request_sequence", int),
    (semconv.EPOCH.key, "epoch", int),
    (semconv.CHUNK_SIZE.key, "chunk_size", int),
)
_MAY_BE_NEGATIVE = {
    a.key
    for a in (
        semconv.RETURNED, semconv.REFUSED, semconv.REFS, semconv.PINS, semconv.CACHED_TOTAL, semconv.FROM_CONNECTOR,
        semconv.POOL_USED, semconv.POOL_FREE, semconv.PRIORITY,
    )
}  # fmt: skip
"""What a connector or an engine says of itself is recorded as it is, however wrong."""
MOST = 2**50
"""Counts beyond this are taken for damage, and so sums of them always fit into 64 bits."""


class MalformedSpan(ValueError):
    """A span in kvtrail's scope that lacks what its kind needs; the text names the span and what is missing."""


def is_ours(span: Span) -> bool:
    """Whether a kvtrail recorder wrote it, this kvtrail's or a newer one's."""
    return span.scope == semconv.SCOPE


def from_span(span: Span) -> Event | None:
    """The event that a span carries; None for a foreign span or a kind that a newer kvtrail invented.

    Raises:
        MalformedSpan: the span has our scope and a known name, but not the attributes that its kind needs.
    """
    if not is_ours(span):
        return None
    cls = CLASSES.get(span.name)
    if cls is None:
        return None
    attributes, resource = span.attributes, span.resource
    try:
        fields = {field: _typed(attributes, key, type_) for key, field, type_ in _KEYS[span.name] if key in attributes}
        common = {field: _typed(attributes, key, type_) for key, field, type_ in COMMON if key in attributes}
        if not (span.span_id and 0 <= span.start_ns < LATEST_NS and 0 <= span.end_ns < LATEST_NS):
            raise TypeError(f"id {span.span_id!r} or time {span.start_ns} to {span.end_ns} is none")
        return cls(
            engine=_typed(resource, semconv.ENGINE_ID.key, str),
            recorder=_typed(resource, semconv.RECORDER_ID.key, str),
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            span_id=span.span_id,
            trace_id=span.trace_id,
            error=span.error,
            block_size=resource.get(semconv.BLOCK_SIZE.key),
            **{"connector": "", "role": "", "rank": 0, **common},
            **fields,
        )
    except KeyError as missing:
        raise MalformedSpan(f"span {span.span_id} ({span.name}) lacks {missing}") from missing
    except TypeError as wrong:
        raise MalformedSpan(f"span {span.span_id} ({span.name}): {wrong}") from wrong


def _typed(values: Mapping[str, Any], key: str, type_: type) -> Any:
    value: Any = values[key]
    if type_ is tuple:
        return _array(key, value)
    if type(value) is not type_:
        raise TypeError(f"{key} must be {type_.__name__}, not {value!r}")
    least = -MOST if key in _MAY_BE_NEGATIVE else 0
    if isinstance(value, int) and not least <= value <= MOST:
        raise TypeError(f"{key} is {value}, which no count can be")
    return value


def _array(key: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{key} must be an array, not {value!r}")
    for item in value:
        if type(item) is not str and not (type(item) is int and 0 <= item <= MOST):
            raise TypeError(f"{key} holds {item!r}, which is neither a key nor a block's id")
    return tuple(value)

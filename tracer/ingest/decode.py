"""How a span becomes an event."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import CLASSES, Event
from kvtrail.tracer.model.spans import LATEST_NS, Span

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
_FIELDS: dict[str, dict[str, tuple[str, type]]] = {
    kind: {
        **{key: (field, type_) for key, field, type_ in COMMON},
        **{a.key: (a.field, a.type) for a in attributes},
    }
    for kind, attributes in semconv.FIELDS.items()
}
"""By kind and attribute: the field that it fills, and its type."""
_FIELDS_OF_ANY = {key: told for fields in _FIELDS.values() for key, told in fields.items()}
_RESOURCE = {a.key for a in (*semconv.RESOURCE, *semconv.MINIMIZED)}
_NAMESPACE = f"{semconv.SCOPE}."
_MAY_BE_NEGATIVE = {
    a.key
    for a in (
        semconv.RETURNED, semconv.REFUSED, semconv.REFS, semconv.PINS, semconv.CACHED_TOTAL, semconv.FROM_CONNECTOR,
        semconv.POOL_USED, semconv.POOL_FREE, semconv.PRIORITY,
    )
}  # fmt: skip
"""What a connector or an engine says of itself is recorded as it is, however wrong."""
_OPTIONAL: dict[str, Any] = {"connector": "", "role": "", "rank": 0}
"""What a heartbeat, and the spans of no connector, leave out."""
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
    attributes, resource, known = span.attributes, span.resource, _FIELDS[span.name]
    try:
        fields = dict(_OPTIONAL)
        for key, value in attributes.items():
            if (told := known.get(key)) is not None:
                fields[told[0]] = _typed(key, value, told[1])
        if not (span.span_id and 0 <= span.start_ns < LATEST_NS and 0 <= span.end_ns < LATEST_NS):
            raise TypeError(f"id {span.span_id!r} or time {span.start_ns} to {span.end_ns} is none")
        return cls(
            engine=_id(resource, semconv.ENGINE_ID.key),
            recorder=_id(resource, semconv.RECORDER_ID.key),
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            span_id=span.span_id,
            trace_id=span.trace_id,
            error=span.error,
            block_size=resource.get(semconv.BLOCK_SIZE.key),
            capabilities=_declared(resource),
            **fields,
        )
    except KeyError as missing:
        raise MalformedSpan(f"span {span.span_id} ({span.name}) lacks {missing}") from missing
    except TypeError as wrong:
        raise MalformedSpan(f"span {span.span_id} ({span.name}): {wrong}") from wrong


def unknown_attributes(span: Span) -> list[str]:
    """The attributes in kvtrail's name that `from_span` passes over in an event's span, the resource's among them: a newer
    kvtrail's. Those in other names are others' business."""
    return _unknown(span.attributes, _FIELDS[span.name].keys()) + _unknown(span.resource, _RESOURCE)


def common(resource: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of an event that its resource tells, with those that a recorder may leave out; None where it tells too
    little for an event, or what a newer kvtrail says."""
    if _unknown(resource, _RESOURCE):
        return None
    try:
        return {
            "engine": _id(resource, semconv.ENGINE_ID.key),
            "recorder": _id(resource, semconv.RECORDER_ID.key),
            "block_size": resource.get(semconv.BLOCK_SIZE.key),
            "capabilities": _declared(resource),
            **_OPTIONAL,
        }
    except (KeyError, TypeError):
        return None


def field(key: str, value: Any) -> tuple[str, Any]:
    """The event's field that an attribute fills, and its value.

    Raises:
        KeyError: no event has such an attribute.
        TypeError: the value is none that it can have.
    """
    name, type_ = _FIELDS_OF_ANY[key]
    return name, _typed(key, value, type_)


def _unknown(attributes: Mapping[str, Any], known: Set[str]) -> list[str]:
    return [key for key in attributes if key.startswith(_NAMESPACE) and key not in known]


def _id(resource: Mapping[str, Any], key: str) -> Any:
    return _typed(key, resource[key], str)


def _declared(resource: Mapping[str, Any]) -> str | None:
    """The capabilities that a recorder declares; those of another type are ignored."""
    value = resource.get(semconv.CAPABILITIES.key)
    return value if isinstance(value, str) else None


def _typed(key: str, value: Any, type_: type) -> Any:
    if type_ is tuple:
        return _array(key, value)
    if type(value) is not type_:
        raise TypeError(f"{key} must be {type_.__name__}, not {value!r}")
    least = -MOST if key in _MAY_BE_NEGATIVE else 0
    if isinstance(value, int) and not least <= value <= MOST:
        raise TypeError(f"{key} is {value}, which no count can be")
    return value


def _array(key: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{key} must be an array, not {value!r}")
    for item in value:
        if type(item) is not str and not (type(item) is int and 0 <= item <= MOST):
            raise TypeError(f"{key} holds {item!r}, which is neither a key nor a block's id")
    return tuple(value)

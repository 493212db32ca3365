"""How a span becomes an event. The names and the checks of its fields are those of `model.events`."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from msgspec import ValidationError, convert
from msgspec.structs import fields

from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.events import CLASSES, Event
from kvtrail.tracer.model.spans import Span

_KNOWN = {name: frozenset(field.encode_name for field in fields(cls)) for name, cls in CLASSES.items()}
_RESOURCE = frozenset(a.key for a in (*semconv.RESOURCE, *semconv.MINIMIZED))
_NAMESPACE = f"{semconv.SCOPE}."
_ENGINE, _RECORDER = semconv.ENGINE_ID.key, semconv.RECORDER_ID.key
_OPTIONAL = ((semconv.BLOCK_SIZE.key, int), (semconv.CAPABILITIES.key, str))
"""Attributes of a resource that are fields of its events where they have this type."""


class MalformedSpan(ValueError):
    """A span in kvtrail's scope that lacks what its kind needs; the text names the span and what is wrong with it."""


def is_ours(span: Span) -> bool:
    """Whether a kvtrail recorder wrote the span: this version's, or a newer one's."""
    return span.scope == semconv.SCOPE


def from_span(span: Span) -> Event | None:
    """The event of a span; None for a foreign span and for a kind that only a newer kvtrail knows.

    Raises:
        MalformedSpan: the span has our scope and a known name, but not the attributes that its kind needs.
    """
    if span.scope != semconv.SCOPE or (cls := CLASSES.get(span.name)) is None:
        return None
    resource = span.resource
    try:
        values = {
            **span.attributes,
            _ENGINE: resource[_ENGINE],
            _RECORDER: resource[_RECORDER],
            "trace_id": span.trace_id,
            "span_id": span.span_id,
            "start_ns": span.start_ns,
            "end_ns": span.end_ns,
            "error": span.error,
        }
        for key, type_ in _OPTIONAL:
            if type(value := resource.get(key)) is type_:
                values[key] = value
        return convert(values, cls)
    except KeyError as missing:
        raise MalformedSpan(f"span {span.span_id} ({span.name}): the resource lacks {missing}") from missing
    except ValidationError as wrong:
        raise MalformedSpan(f"span {span.span_id} ({span.name}): {wrong}") from wrong


def unknown_attributes(span: Span) -> list[str]:
    """The names of an event's attributes, its resource's included, that are kvtrail's but not known to this version.
    Attributes with other names belong to others and are not listed."""
    known = _KNOWN[span.name]
    unknown = [] if span.attributes.keys() <= known else _unknown(span.attributes, known)
    return unknown + _unknown(span.resource, _RESOURCE)


def _unknown(attributes: Mapping[str, Any], known: Set[str]) -> list[str]:
    return [key for key in attributes if key.startswith(_NAMESPACE) and key not in known]

"""Spans from OTLP's JSON without the way over protobuf, which takes ten times as long.

It reads what the OpenTelemetry Collector and kvtrail write. What else the encoding allows (snake_case, names for enums, ...)
is `Odd`, and so is what it does not allow: `otlp.from_json` reads the one, and says what is wrong with the other.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

from kvtrail.tracer.model.spans import LATEST_NS, Span

_MOST = 2**63
_LONGEST_NUMBER = 20
_SPAN = frozenset((
    "traceId", "spanId", "traceState", "parentSpanId", "flags", "name", "kind", "startTimeUnixNano", "endTimeUnixNano",
    "attributes", "droppedAttributesCount", "events", "droppedEventsCount", "links", "droppedLinksCount", "status",
))  # fmt: skip
_EVENT = frozenset(("timeUnixNano", "name", "attributes"))
_LINK = frozenset(("traceId", "spanId", "attributes"))
_ATTRIBUTE = frozenset(("key", "value"))
_STATUS = frozenset(("code", "message"))
_RESOURCE = frozenset(("attributes",))
_SCOPE = frozenset(("name", "version"))
_SCOPE_SPANS = frozenset(("scope", "spans", "schemaUrl"))
_RESOURCE_SPANS = frozenset(("resource", "scopeSpans", "schemaUrl"))
_ID_LENGTHS = {"traceId": (32,), "spanId": (16,), "parentSpanId": (0, 16)}
_ERROR = 2


class Odd(ValueError):
    """Not what is read here: another dialect, or damage."""


def spans(data: Any) -> list[Span]:
    """The spans of a request that `json.loads` has read.

    Raises:
        Odd: it is not of the common form, or damaged.
    """
    return [span(each, resource, scope) for resource, scope, held in sections(data) for each in held]


def sections(data: Any) -> list[tuple[dict[str, Any], str, list[Any]]]:
    """The lists of spans in a request, each with its resource's attributes and its scope's name.

    Raises:
        Odd: as for `spans`.
    """
    found = []
    for resource_spans in _list(_object(data, frozenset(("resourceSpans",))), "resourceSpans"):
        _object(resource_spans, _RESOURCE_SPANS)
        resource = attributes(_object(resource_spans.get("resource", {}), _RESOURCE))
        _text(resource_spans, "schemaUrl")
        for scope_spans in _list(resource_spans, "scopeSpans"):
            scope = _object(_object(scope_spans, _SCOPE_SPANS).get("scope", {}), _SCOPE)
            _text(scope_spans, "schemaUrl")
            _text(scope, "version")
            found.append((resource, _text(scope, "name"), _list(scope_spans, "spans")))
    return found


def span(data: Any, resource: dict[str, Any], scope: str) -> Span:
    """One span.

    Raises:
        Odd: as for `spans`.
    """
    status = _object(_object(data, _SPAN).get("status", {}), _STATUS)
    code = _small(status, "code")
    for key in ("kind", "flags", "droppedAttributesCount", "droppedEventsCount", "droppedLinksCount"):
        _small(data, key)
    for link in _list(data, "links"):
        _id(_object(link, _LINK), "traceId")
        _id(link, "spanId")
        attributes(link)
    _text(data, "traceState")
    return Span(
        trace_id=_id(data, "traceId"),
        span_id=_id(data, "spanId"),
        parent_id=_id(data, "parentSpanId"),
        name=_text(data, "name"),
        start_ns=min(_time(data, "startTimeUnixNano"), LATEST_NS),
        end_ns=min(_time(data, "endTimeUnixNano"), LATEST_NS),
        attributes=attributes(data),
        resource=resource,
        scope=scope,
        error=(_text(status, "message") or "error") if code == _ERROR else None,
        events=[
            {"name": _text(e, "name"), "time_ns": _time(e, "timeUnixNano"), "attributes": attributes(e)}
            for each in _list(data, "events")
            for e in (_object(each, _EVENT),)
        ],
    )


def attributes(data: dict[str, Any]) -> dict[str, Any]:
    """The attributes that an object holds.

    Raises:
        Odd: as for `spans`.
    """
    return {_text(a, "key"): value(a.get("value", {})) for a in _list(data, "attributes") if _object(a, _ATTRIBUTE)}


def value(data: Any) -> Any:
    """The Python value of an attribute, as `otlp.value` gives it.

    Raises:
        Odd: as for `spans`.
    """
    if type(data) is not dict or len(data) > 1:
        raise Odd("value")
    for kind, held in data.items():
        if kind == "intValue":
            return integer(held)
        if kind == "stringValue" and type(held) is str:
            return held
        if kind == "boolValue" and type(held) is bool:
            return held
        if kind == "doubleValue" and type(held) in (int, float) and math.isfinite(held):
            return float(held)
        if kind == "arrayValue":
            return [value(item) for item in _list(_object(held, frozenset(("values",))), "values")]
        if kind == "kvlistValue":
            return attributes({"attributes": _list(_object(held, frozenset(("values",))), "values")})
        if kind == "bytesValue" and type(held) is str:
            return _base64(held)
        raise Odd(kind)
    return None


def integer(held: Any) -> int:
    """A 64-bit integer, which JSON has as text, and some writers as a number.

    Raises:
        Odd: it is none.
    """
    if type(held) is str and len(held) <= _LONGEST_NUMBER and held.isascii() and held.removeprefix("-").isdigit():
        held = int(held)
    if type(held) is not int or not -_MOST <= held < _MOST:
        raise Odd("integer")
    return held


def _object(data: Any, known: frozenset[str]) -> dict[str, Any]:
    if type(data) is not dict or not data.keys() <= known:
        raise Odd("object")
    return data


def _list(data: dict[str, Any], key: str) -> list[Any]:
    held = data.get(key, [])
    if type(held) is not list:
        raise Odd(key)
    return held


def _text(data: dict[str, Any], key: str) -> str:
    held = data.get(key, "")
    if type(held) is not str:
        raise Odd(key)
    return held


def _small(data: dict[str, Any], key: str) -> int:
    """A number that is none of 64 bits, and is of no interest unless it is damaged."""
    held = data.get(key, 0)
    if type(held) is not int or not 0 <= held < 2**31:
        raise Odd(key)
    return held


def _time(data: dict[str, Any], key: str) -> int:
    time_ns = integer(data.get(key, 0))
    if time_ns < 0:
        raise Odd(key)
    return time_ns


def _id(data: dict[str, Any], key: str) -> str:
    held = _text(data, key).lower()
    if len(held) not in _ID_LENGTHS[key] or held.strip("0123456789abcdef"):
        raise Odd(key)
    return held


def _base64(held: str) -> str:
    try:
        return base64.b64encode(base64.b64decode(held, validate=True)).decode()
    except binascii.Error as error:
        raise Odd("bytesValue") from error

"""How much a request is made of, before an object is made of any part of it.

An empty attribute takes two bytes on the wire, and a hundred times as much as an object. So a request's parts are counted
where they lie (https://protobuf.dev/programming-guides/encoding/), until they are too many: a hostile request costs a few
milliseconds, in which other threads have their turn, as they would not while Google's parser runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

MOST = 2**20
"""The weight of a request: a thousand spans of a hundred attributes weigh 416,000, and so does a list of 208,000 numbers."""
_WEIGHTS = {"Span": 16, "Event": 16, "Link": 16, "ScopeSpans": 16, "ResourceSpans": 16, "KeyValue": 4, "AnyValue": 2}
"""Roughly the time and the memory that each takes: about 400 bytes for 1. An item of a list is an `AnyValue`."""
_LOOKED_INTO = {"Span": 512, "KeyValue": 64, "AnyValue": 64}
"""Of these, what has more bytes. The rest weighs by its length: no list in it is long."""
_BYTES_A_WEIGHT = 11
"""Of those that are not looked into: about what spans of text have."""
_SHORTEST = 2
"""Bytes of a part."""
_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}
"""Kinds of fields, and the bytes of those that have always as many."""
_LONGEST_NUMBER = 10
_MORE = 0x80


class TooMuch(ValueError):
    """A request of more parts than are taken; the text says so."""

    def __init__(self) -> None:
        super().__init__(
            f"too many spans, attributes and items of lists in one request (weight over {MOST}): send fewer"
        )


class _Field(NamedTuple):
    """A field that holds messages: the weight of each, what is in it, and how long one is that is looked into."""

    weight: int
    inner: Any
    longer_than: int


_NO_MESSAGE = _Field(1, None, 2**63)


def of(data: bytes, most: int = MOST) -> int:
    """The weight of an encoded `ExportTraceServiceRequest`. What is damaged weighs as much as it could, and a field
    that holds no message, known or not, as an item of a list does: it takes as long to pass over.

    Raises:
        TooMuch: it weighs more than `most`.
    """
    weight = 0
    field: _Field
    waiting = [(_REQUEST, 0, len(data))]
    while waiting:
        fields, at, end = waiting.pop()
        while at < end:
            try:
                tag, at = data[at], at + 1
                if tag >= _MORE:
                    tag, at = _number(data, at - 1)
                kind = tag & 7
                if kind == _LENGTH:
                    length, at = data[at], at + 1
                    if length >= _MORE:
                        length, at = _number(data, at - 1)
                elif kind == _VARINT:
                    _, at = _number(data, at)
                    length = 0
                else:
                    length = _FIXED[kind]
                if at + length > end:
                    raise IndexError
            except (IndexError, KeyError):
                weight += (end - at) // _SHORTEST
                break
            field = fields.get(tag, _NO_MESSAGE)
            weight += field.weight
            if length > field.longer_than:
                waiting.append((field.inner, at, at + length))
            elif field.inner:
                weight += length // _BYTES_A_WEIGHT
            if weight > most:
                raise TooMuch
            at += length
    if weight > most:
        raise TooMuch
    return weight


def of_json(data: bytes, most: int = MOST) -> int:
    """About the weight of a request in JSON: of its objects and lists, and of what commas part.

    Raises:
        TooMuch: it weighs more than `most`.
    """
    weight = 2 * (data.count(b"{") + data.count(b"[")) + data.count(b",") // 2
    if weight > most:
        raise TooMuch
    return weight


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number that begins there, and where it ends. Raises IndexError if it does not."""
    number = shift = 0
    for byte in data[at : at + _LONGEST_NUMBER]:
        at += 1
        number |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return number, at
        shift += 7
    raise IndexError(at)


def _fields(descriptor: Any, known: dict[str, dict[int, _Field]]) -> dict[int, _Field]:
    """The fields of a message that hold messages, by what they begin with on the wire."""
    if (fields := known.get(descriptor.name)) is not None:
        return fields
    fields = known[descriptor.name] = {}
    for field in descriptor.fields:
        if (inner := field.message_type) is not None:
            held, weight = _fields(inner, known), _WEIGHTS.get(inner.name, 1)
            fields[field.number << 3 | _LENGTH] = _Field(weight, held, _LOOKED_INTO.get(inner.name, 0))
    return fields


_REQUEST = _fields(ExportTraceServiceRequest.DESCRIPTOR, {})

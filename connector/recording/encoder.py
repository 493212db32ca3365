"""Event tuples -> OTLP protobuf, by hand.

A span is a concatenation of byte strings: names, keys and ids are encoded once, frequent values are cached. A span takes 2.5
us; with messages of opentelemetry-proto, with cached attributes, it takes 10.6 us: the recorder would need twice its total of
6.2 us of CPU (`benchmarks/recorder.py`).

Wire format: https://protobuf.dev/programming-guides/encoding/. Field numbers: opentelemetry/proto/trace/v1/trace.proto and
opentelemetry/proto/common/v1/common.proto.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from kvtrail import __version__
from kvtrail.connector.recording.ring import EventTuple, Identity, numbers_of
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, STEP_FIELDS, place
from kvtrail.tracer.events.semconv import Attribute, Kind

Value = bool | int | float | str | bytes | tuple[int, ...] | tuple[str, ...]

_SPAN_ID = struct.Struct(">2sQ")
_TIMES = struct.Struct("<BQBQ")  # start_time_unix_nano (7) and end_time_unix_nano (8), both fixed64
_EVENT_TIME = struct.Struct("<BQ")  # time_unix_nano (1) of a span's event, a fixed64
_FLAGS = b"\x85\x01" + struct.pack("<I", 1)  # flags (16), a fixed32: its lowest bit says that the trace is sampled
_ROOTS = tuple(kind.value for kind in semconv.ROOTS)
_CUT_OFF, _REQUEST, _LOAD_ERROR = Kind.CUT_OFF.value, Kind.REQUEST.value, Kind.LOAD_ERROR.value
_OUTPUT = place(Kind.REQUEST, "output")
_FAILURES = {kind.value: (place(kind, name), value) for kind, (name, value) in semconv.FAILURES.items()}
"""By kind: the position of the value that shows a failure, and the failing value."""
_CHAT = "chatcmpl-"
"""Prefix of the ids of vLLM's chat API."""
MAX_BYTES = 1 << 19
"""Maximum size of a request with more than one event: kvtrail accepts 1 MiB over gRPC, and a Collector 4 MiB."""
Part = list[tuple[bytes, int]]
"""Spans of one request, each as a field of `ScopeSpans` with the number of sequence numbers that it represents."""
_remembered = lru_cache(8192, typed=True)
"""True, 1 and 1.0 are the same key of a dictionary, but not the same bytes."""
_MINUTES = 16
"""Maximum number of minutes with a remembered first event."""


def varint(value: int) -> bytes:
    """A protobuf varint; negative numbers as 64-bit two's complement."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(tag: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return varint(tag << 3 | 2) + varint(len(payload)) + payload


def _named(name: str) -> bytes:
    """The name of a span, and its kind: SPAN_KIND_INTERNAL."""
    return field(5, name.encode()) + b"\x30\x01"


def _any_value(value: Value) -> bytes:
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value)
    if isinstance(value, float):
        return b"\x21" + struct.pack("<d", value)
    if isinstance(value, bytes):
        return field(7, value)
    if isinstance(value, tuple):
        if value and type(value[0]) is int:
            return field(5, b"".join(map(_integer, value)))
        return field(5, b"".join(field(1, _any_value(item)) for item in value))
    return field(1, value.encode("utf-8", "replace"))


@_remembered
def _integer(number: int) -> bytes:
    """A number as an element of an array."""
    if type(number) is not int:
        raise TypeError(f"{number!r} is no number")
    return field(1, _any_value(number))


def key_value(key: str, value: Value) -> bytes:
    """The body of a `KeyValue` message."""
    return field(1, key.encode()) + field(2, _any_value(value))


def attribute(key: str, value: Value) -> bytes:
    """An attribute as a field of `Span`."""
    return field(9, key_value(key, value))


def of_span(span_id: bytes) -> bytes:
    """The id of a span as a field of `Span`. In an event's source it overrides the encoder's id: protobuf uses the last of
    duplicate fields."""
    return field(2, span_id)


def inside(parent_id: bytes) -> bytes:
    """The id of a span's parent as a field of `Span`."""
    return field(4, parent_id)


def _attribute(of: Attribute) -> Any:
    """A function that encodes the values of one attribute as fields of `Span`, and raises TypeError for a value of another
    type. Arrays, such as block tables or hashes, hardly ever recur: only other values are cached."""

    def encode(value: Value) -> bytes:
        if type(value) is not of.type:
            raise TypeError(f"{of.key} is {value!r}, which is no {of.type.__name__}")
        return attribute(of.key, value)

    return encode if of.type in (tuple, bytes) else _remembered(encode)


def numbered(key: str) -> Callable[[int], bytes]:
    """A function that encodes an attribute with a nonnegative number that is new each time: the bytes before the number are
    cached by the number's length."""
    before = {length: attribute(key, (1 << 7 * length) - 1)[:-length] for length in range(1, 10)}

    def encode(number: int) -> bytes:
        encoded = varint(number)
        return before[len(encoded)] + encoded

    return encode


def _status(error: str) -> bytes:
    """An error as a span's status."""
    return field(15, field(2, error.encode("utf-8", "replace")) + b"\x18\x02")  # STATUS_CODE_ERROR


_FAILED = _status(semconv.FAILED_REASON)


def _exception(error: str, at_ns: int) -> bytes:
    """A recorded error, `Class: message`, as an event of its span, named as in
    https://opentelemetry.io/docs/specs/semconv/exceptions/exceptions-spans/."""
    type_, _, text = error.partition(": ")
    exception = field(3, key_value("exception.type", type_)) + field(3, key_value("exception.message", text))
    return field(11, _EVENT_TIME.pack(0x09, at_ns) + field(2, b"exception") + exception)


def _shared_fields(of_root: bytes, identity: Identity) -> tuple[bytes, bytes, bytes, bytes]:
    """The common fields of a request's spans: the trace's id and flags; the root's id as a parent; the root's own fields
    instead, with its names for other tools; and the attributes that name the request and say whether it is sampled."""
    root, caller, request_id, sampled = identity
    trace, span_id, external = field(1, root[:16]), root[16:], semconv.external_id(request_id)
    trace += _FLAGS if sampled else b""
    own = trace + field(2, span_id)
    if not request_id:
        return trace, field(4, span_id), own, b""
    own += (field(4, caller) if caller else b"") + of_root + attribute(semconv.CALLERS_ID.key, external)
    own += attribute(semconv.OPERATION.key, "chat" if external.startswith(_CHAT) else "text_completion")
    names = attribute(semconv.REQUEST_ID.key, request_id) + attribute(semconv.EXTERNAL_ID.key, external)
    names += b"" if sampled else attribute(semconv.SAMPLED.key, False)
    return trace, field(4, span_id), own, names


@_remembered
def in_minute(nobody: bytes, minute: int) -> bytes:
    """The trace id (16 bytes) and the root span's id (8 bytes) of a recorder's events that belong to no request, which change
    every minute. `nobody` is the id of the root span that these events name."""
    return hashlib.blake2b(nobody + minute.to_bytes(8, "big"), digest_size=24).digest()


@_remembered
def _tag_and_length(length: int) -> bytes:
    """The bytes before a span of this length as a field of `ScopeSpans`."""
    return b"\x12" + varint(length)


class Encoder:
    """Encodes the events of one recorder. Not thread-safe."""

    def __init__(self, resource: Mapping[str, object], span_id_base: int, base_ns: int) -> None:
        """`span_id_base` + an event's sequence number is the id of its span; `base_ns` + the time of an event is
        Unix time."""
        self._span_id_base = span_id_base
        self._base_ns = base_ns
        self._kinds = {
            str(kind): (
                _named(semconv.span_name(kind)),
                tuple(map(_attribute, attributes)),
            )
            for kind, attributes in ((*FIELDS.items(), (semconv.STEP_SPAN, STEP_FIELDS)))
        }
        self._epoch, self._output_tokens = _attribute(semconv.EPOCH), _attribute(semconv.OUTPUT_TOKENS)
        self._request_sequence, self._sequence = _attribute(semconv.REQUEST_SEQUENCE), numbered(semconv.SEQUENCE.key)
        model = resource.get(semconv.SERVED_MODEL.key) or resource.get(semconv.MODEL.key)
        of_root = b"" if model is None else attribute(semconv.REQUEST_MODEL.key, str(model))
        of_root += attribute(semconv.PROVIDER.key, "vllm")
        self._shared = _remembered(partial(_shared_fields, of_root))
        self._engine = _named(semconv.ENGINE_SPAN)
        self._engine += attribute(semconv.ENGINE_ID.key, str(resource.get(semconv.ENGINE_ID.key, "")))
        self._firsts: dict[int, int] = {}
        """By minute, the number of the first event without a request."""
        known = (key_value(k, v) for k, v in resource.items() if isinstance(v, bool | int | float | str))
        self._resource = field(1, b"".join(field(1, pair) for pair in known))
        self._scope = field(1, field(1, semconv.SCOPE.encode()) + field(2, __version__.encode()))

    def requests(self, events: Sequence[EventTuple], most: int) -> Iterator[bytes]:
        """The bytes of an `ExportTraceServiceRequest` for each of the `parts`."""
        return map(self.request, self.parts(events, most))

    def parts(self, events: Sequence[EventTuple], most: int) -> Iterator[Part]:
        """The spans of these events in parts of at most `most` events, counting the rows of a step, and `MAX_BYTES`; a larger
        event is a part of its own. Without events, a part without spans.

        Raises:
            Exception: a value does not have its attribute's type; see `plain`.
        """
        part: Part = []
        numbers = size = 0
        for event in events:
            engine: Part = []
            if not event[2][2]:
                event, engine = self._of_engine(event)
            body = self._span(event)
            body = _tag_and_length(len(body)) + body
            if part and (numbers >= most or size + len(body) > MAX_BYTES):
                yield part
                part, numbers, size = [], 0, 0
            own = numbers_of(event)
            part += engine
            part.append((body, own))
            numbers += own
            size += len(body)
        if part or not events:
            yield part

    def request(self, part: Part) -> bytes:
        """The bytes of an `ExportTraceServiceRequest`."""
        return field(1, self._resource + field(2, self._scope + b"".join([span for span, _ in part])))

    def _of_engine(self, event: EventTuple) -> tuple[EventTuple, Part]:
        """An event without a request, in the trace of its minute, and the root of that trace, if it is the first. A batch
        that is sent again is encoded in the same way."""
        nobody, sequence, minute = event[2][0], event[3], (self._base_ns + event[7]) // semconv.ENGINE_NS
        identity: Identity = (in_minute(nobody, minute), b"", "", True)
        event = (*event[:2], identity, *event[3:])  # type: ignore[assignment]
        if self._firsts.setdefault(minute, sequence) != sequence:
            return event, []
        while len(self._firsts) > _MINUTES:
            del self._firsts[next(iter(self._firsts))]
        begin_ns = minute * semconv.ENGINE_NS
        _, _, own, _ = self._shared(identity)
        root = own + self._engine + _TIMES.pack(0x39, begin_ns, 0x41, begin_ns + semconv.ENGINE_NS)
        return event, [(_tag_and_length(len(root)) + root, 0)]

    def _span(self, event: EventTuple) -> bytes:
        """The body of a `Span` message."""
        kind, source, identity, sequence, request_sequence, epoch, start_ns, end_ns, error, values = event
        trace, parent, root_ids, names = self._shared(identity)
        name, fields = self._kinds[kind]
        times = _TIMES.pack(0x39, self._base_ns + start_ns, 0x41, self._base_ns + end_ns)
        ids: tuple[bytes, ...]
        if kind in _ROOTS:
            ids = (root_ids,)
        else:
            span_id = _SPAN_ID.pack(b"\x12\x08", self._span_id_base + sequence & 0xFFFFFFFFFFFFFFFF)
            ids = (trace, span_id, parent)
        parts = [*ids, name, times, source, self._sequence(sequence)]
        if names:
            parts += (names, self._epoch(epoch), self._request_sequence(request_sequence))
        parts += [encode(value) for encode, value in zip(fields, values, strict=True) if value is not None]
        if kind == _REQUEST and (output := values[_OUTPUT]) is not None:
            parts.append(self._output_tokens(output))
        if kind == _CUT_OFF:
            parts.append(_status(semconv.CUT_OFF_REASON))
        elif error is not None:
            parts += (_status(error), _exception(error, self._base_ns + end_ns))
        elif kind == _LOAD_ERROR or ((failure := _FAILURES.get(kind)) and values[failure[0]] == failure[1]):
            parts.append(_FAILED)
        return b"".join(parts)

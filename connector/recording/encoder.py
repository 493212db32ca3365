"""Recorded events -> OTLP protobuf, by hand.

The OpenTelemetry SDK spends 15-20 us on the caller and 52 us in all for a span with a dozen attributes. This encoder
writes the bytes of an `ExportTraceServiceRequest` directly, from pieces that are encoded once (names, keys, ids) and
values that are remembered; `benchmarks/recorder.py` holds both against each other. Field numbers:
opentelemetry/proto/trace/v1/trace.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_EXPORT_BATCH_SIZE

from kvtrail import __version__
from kvtrail.connector.recording import wire
from kvtrail.connector.recording.context import Identity, Recorded
from kvtrail.connector.recording.environment import positive
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.semconv import Kind

_SPAN_ID = struct.Struct(">2sQ")
_TIMES = struct.Struct("<BQBQ")  # start_time_unix_nano (7) and end_time_unix_nano (8), both fixed64
_ROOT = Kind.REQUEST.value
_REMEMBERED = 8192
_LONG = 64
_LOW_BITS = 14
_LOW = [bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(1 << _LOW_BITS)]
"""The first two bytes of the varint of any number of more than 14 bits, by its lowest 14."""


class _Remembering(dict[object, bytes]):
    """One attribute: value -> its bytes as a field of `Span`, encoded when first asked for.

    An attribute has one type, so True and 1 never meet in one of these.
    """

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def __missing__(self, value: wire.Value) -> bytes:
        if isinstance(value, tuple) or (isinstance(value, str) and len(value) > _LONG):
            # A block table, or a prompt's hashes, are hardly ever seen twice.
            return wire.attribute(self._key, value)
        if len(self) >= _REMEMBERED:
            self.clear()
        encoded = self[value] = wire.attribute(self._key, value)
        return encoded


class _Identities(dict[Identity, tuple[bytes, bytes, bytes, bytes]]):
    """What the spans of a request share, as fields of `Span`: the trace's id; the root's id as a parent; trace, span and
    parent id of the root itself; and the attributes that say which request it is."""

    def __missing__(self, identity: Identity) -> tuple[bytes, bytes, bytes, bytes]:
        root, caller, request_id = identity
        if len(self) >= _REMEMBERED:
            self.clear()
        trace, span_id = wire.field(1, root[:16]), root[16:]
        parent = wire.field(4, caller) if caller else b""
        external = semconv.external_id(request_id)
        told = wire.attribute(semconv.REQUEST_ID.key, request_id) + wire.attribute(semconv.EXTERNAL_ID.key, external)
        fields = (trace, wire.field(4, span_id), trace + wire.field(2, span_id) + parent, told if request_id else b"")
        self[identity] = fields
        return fields


class _Lengths(dict[int, bytes]):
    """Varints of span lengths, which are few."""

    def __missing__(self, length: int) -> bytes:
        encoded = self[length] = b"\x12" + wire.varint(length)  # ScopeSpans.spans (2)
        return encoded


def spans_in_a_request() -> int:
    """How many spans go out in one request at most.

    Raises:
        ValueError: the variable that says so holds no whole number above 0.
    """
    return positive(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512)


def batches(events: Sequence[Recorded], most: int) -> Iterator[Sequence[Recorded]]:
    """The events in their order, `most` at a time."""
    return (events[first : first + most] for first in range(0, len(events), most))


class Encoder:
    """Encodes the events of one recorder. Not thread-safe: it belongs to the exporting thread."""

    def __init__(self, resource: Mapping[str, object], span_id_base: int) -> None:
        """`span_id_base` + an event's sequence number is the id of its span."""
        self._span_id_base = span_id_base
        internal = b"\x30\x01"  # SPAN_KIND_INTERNAL
        self._kinds = {
            kind.value: (wire.field(5, kind.encode()) + internal, tuple(_Remembering(a.key) for a in attributes))
            for kind, attributes in semconv.FIELDS.items()
        }
        self._epochs = _Remembering(semconv.EPOCH.key)
        self._request_sequences = _Remembering(semconv.REQUEST_SEQUENCE.key)
        self._sequences = _Sequences(semconv.SEQUENCE.key)
        self._identities = _Identities()
        self._lengths = _Lengths()
        known = (wire.key_value(k, v) for k, v in resource.items() if isinstance(v, bool | int | float | str))
        self._resource = wire.field(1, b"".join(wire.field(1, pair) for pair in known))
        self._scope = wire.field(1, wire.field(1, semconv.SCOPE.encode()) + wire.field(2, __version__.encode()))

    def requests(self, events: Sequence[Recorded], most: int) -> Iterator[bytes]:
        """The bytes of an `ExportTraceServiceRequest` for every `most` events."""
        return (self.request([self.spans(batch)]) for batch in batches(events, most))

    def request(self, spans: Iterable[bytes]) -> bytes:
        """The bytes of an `ExportTraceServiceRequest` with the spans that `spans` encoded."""
        return wire.field(1, self._resource + wire.field(2, self._scope + b"".join(spans)))

    def spans(self, events: Iterable[Recorded]) -> bytes:
        """One span for each event, as fields of `ScopeSpans`."""
        parts: list[bytes] = []
        for event in events:
            body = self._span(event)
            parts.append(self._lengths[len(body)])
            parts.append(body)
        return b"".join(parts)

    def _span(self, event: Recorded) -> bytes:
        kind, source, identity, sequence, request_sequence, epoch, start_ns, end_ns, error, values = event
        trace, parent, root_ids, attributes = self._identities[identity]
        name, fields = self._kinds[kind]
        ids: tuple[bytes, ...]
        if kind == _ROOT:
            ids = (root_ids,)
        else:
            span_id = _SPAN_ID.pack(b"\x12\x08", self._span_id_base + sequence & 0xFFFFFFFFFFFFFFFF)
            ids = (trace, span_id, parent)
        parts = [*ids, name, _TIMES.pack(0x39, start_ns, 0x41, end_ns), source, self._sequences.of(sequence)]
        if attributes:
            parts += (attributes, self._epochs[epoch], self._request_sequences[request_sequence])
        parts += [remembered[value] for remembered, value in zip(fields, values, strict=True) if value is not None]
        if error is not None:
            message = wire.field(2, error.encode("utf-8", "replace"))
            parts.append(wire.field(15, message + b"\x18\x02"))  # STATUS_CODE_ERROR
        return b"".join(parts)


class _Sequences:
    """The attribute whose value is new every time: only its upper bits are remembered."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._upper = -1
        self._before = self._after = b""

    def of(self, sequence: int) -> bytes:
        """The attribute as a field of `Span`."""
        upper = sequence >> _LOW_BITS
        if upper == 0:
            return wire.attribute(self._key, sequence)
        if upper != self._upper:
            whole = wire.attribute(self._key, sequence)
            self._upper, self._after = upper, wire.varint(upper)
            self._before = whole[: -len(self._after) - 2]
        return self._before + _LOW[sequence & (1 << _LOW_BITS) - 1] + self._after

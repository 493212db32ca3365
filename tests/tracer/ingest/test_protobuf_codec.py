"""OTLP's binary form is read as Google's parser reads it: random requests, damaged and odd ones."""

from __future__ import annotations

import google_parser
import pytest
from history import history
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from wire import encoded

from kvtrail.tracer.events import events, semconv
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest.decode import MalformedOtlp
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder

WHOLE = encoded(history("L 749 c0 h256 -> 256 keys aa,bb\nA 256 [1-24]\nA 0 !Mismatch\nP\nend"))
INT64 = st.integers(-(2**63), 2**63 - 1)
KEYS = st.sampled_from([*(a.key for a in semconv.COMMON), events.KEYS["total"], events.KEYS["chunk_keys"]]) | st.text(
    max_size=4
)

_scalars = st.one_of(
    st.builds(AnyValue),
    st.builds(AnyValue, int_value=INT64),
    st.builds(AnyValue, bool_value=st.booleans()),
    st.builds(AnyValue, double_value=st.floats()),
    st.builds(AnyValue, string_value=st.text(max_size=8)),
    st.builds(AnyValue, bytes_value=st.binary(max_size=8)),
)


def _nested(inner: st.SearchStrategy[AnyValue]) -> st.SearchStrategy[AnyValue]:
    def array(items: list[AnyValue]) -> AnyValue:
        value = AnyValue()
        value.array_value.values.extend(items)
        return value

    def pairs(items: list[KeyValue]) -> AnyValue:
        value = AnyValue()
        value.kvlist_value.values.extend(items)
        return value

    lists = st.lists(inner, max_size=3)
    return lists.map(array) | st.lists(st.builds(KeyValue, key=KEYS, value=inner), max_size=3).map(pairs)


ATTRIBUTES = st.lists(st.builds(KeyValue, key=KEYS, value=st.recursive(_scalars, _nested, max_leaves=6)), max_size=5)
SPANS = st.builds(
    ProtoSpan,
    trace_id=st.binary(max_size=17),
    span_id=st.binary(max_size=9),
    parent_span_id=st.binary(max_size=9),
    name=st.sampled_from([kind.value for kind in semconv.Kind]) | st.text(max_size=8),
    start_time_unix_nano=st.integers(0, 2**64 - 1),
    end_time_unix_nano=st.integers(0, 2**64 - 1),
    attributes=ATTRIBUTES,
    status=st.builds(Status, code=st.integers(0, 3), message=st.text(max_size=8)),
    events=st.lists(st.builds(ProtoSpan.Event, name=st.text(max_size=4), attributes=ATTRIBUTES), max_size=2),
    links=st.lists(st.builds(ProtoSpan.Link, trace_id=st.binary(max_size=16), attributes=ATTRIBUTES), max_size=2),
)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _request(span: bytes, resource: bytes = b"") -> bytes:
    return _field(1, _field(1, resource) + _field(2, _field(1, _field(1, b"kvtrail")) + _field(2, span)))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    request = ExportTraceServiceRequest()
    for _ in range(draw(st.integers(0, 2))):
        resource_spans = request.resource_spans.add()
        resource_spans.resource.attributes.extend(draw(ATTRIBUTES))
        for _ in range(draw(st.integers(0, 2))):
            scope_spans = resource_spans.scope_spans.add()
            scope_spans.scope.name = draw(st.sampled_from(["kvtrail", "vllm", ""]))
            scope_spans.spans.extend(draw(st.lists(SPANS, max_size=3)))
    return request.SerializeToString()


WIRE_FIELDS = st.one_of(
    st.builds(
        lambda number, value: _varint(number << 3) + _varint(value), st.integers(1, 20), st.integers(0, 2**64 - 1)
    ),
    st.builds(
        lambda number, value: _varint(number << 3 | 1) + value, st.integers(1, 20), st.binary(min_size=8, max_size=8)
    ),
    st.builds(
        lambda number, value: _varint(number << 3 | 5) + value, st.integers(1, 20), st.binary(min_size=4, max_size=4)
    ),
    st.builds(_field, st.integers(1, 20), st.binary(max_size=12)),
    st.builds(lambda number: _varint(number << 3 | 3) + _varint(number << 3 | 4), st.integers(1, 20)),
    st.builds(lambda key: _field(9, _field(1, key) + _field(2, b"\x18\x05")), st.binary(max_size=4)),
    st.builds(lambda message: _field(15, message), st.sampled_from([b"\x18\x02", _field(2, b"no"), b"\x18\x00", b""])),
    st.sampled_from([b"\x80", b"\xff" * 10 + b"\x01", b"\x07", b"\x4b", b"\x00\x01", b"\x4a\x7f"]),
)


def agree(decoder: ProtobufDecoder, payload: bytes) -> list[Span] | None:
    """Assert that the codec reads what Google's parser reads, or refuses what it refuses."""
    expected = google_parser.of_bytes(payload)
    try:
        spans = decoder.spans(payload)
    except MalformedOtlp:
        assert expected is None, payload
        return None
    assert repr(spans) == repr(expected)  # repr distinguishes True from 1 and -0.0 from 0.0
    return spans


RANDOM = settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
DECODER = ProtobufDecoder()
"""One for all examples: what it remembers of one must not show in another."""


@RANDOM
@given(requests())
def test_random_requests(payload: bytes) -> None:
    assert agree(DECODER, payload) is not None


@RANDOM
@given(requests(), st.data())
def test_damaged_requests(payload: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(payload)))
    end = data.draw(st.integers(at, min(len(payload), at + 8)))
    agree(DECODER, payload[:at] + data.draw(st.binary(max_size=4)) + payload[end:])


@given(st.lists(WIRE_FIELDS, max_size=6))
@example([_field(5, b"a"), _field(5, b"b")])  # the last of duplicates counts
@example([_field(15, b"\x18\x02"), _field(15, _field(2, b"no"))])  # and messages are merged
@example([_field(9, _field(1, b"\xff"))])  # a key that is not UTF-8
@example([_field(9, _field(1, b"a") + _field(2, _field(1, b"\xff")))])  # and such a value
@example([_field(9, _field(2, _field(5, _field(1, b"\x18\x01") * 3)))])  # an array without a key
@example([_field(9, b"")])
@example([_field(9, _field(2, b"\x18" + b"\xff" * 9 + b"\x01"))])  # -1
@example([_field(9, _field(2, b"\x18" + b"\xff" * 10 + b"\x01"))])  # longer than any varint
@example([b"\x4b\x4c"])  # the attributes' number, as a group
@example([b"\x48\x01"])  # and as a number
def test_spans_of_any_fields(fields: list[bytes]) -> None:
    agree(DECODER, _request(b"".join(fields)))


@given(
    INT64.map(lambda number: AnyValue(int_value=number).SerializeToString())
    | st.binary(max_size=11).map(lambda digits: b"\x18" + digits)
    | st.binary(max_size=4),
    st.just(b"") | st.binary(max_size=3),
)
@example(b"\x18\x85\x00", b"")  # longer than it need be
@example(b"\x18\x05\x18\x06", b"")  # twice: the last one counts
@example(b"\x18\x05\x10\x01", b"")  # a truth value after it
@example(b"\x18\x85", b"")  # cut
@example(b"\x18\x05", b"\x0a\x01a")  # the key again
@example(b"\x18" + b"\xff" * 9 + b"\x01", b"")  # -1
def test_a_recorders_number_however_it_is_written(value: bytes, more: bytes) -> None:
    """It is read by our own hand, and not by Google's parser, where it is written as a recorder does."""
    pair = _field(1, semconv.SEQUENCE.key.encode()) + _field(2, value) + more
    agree(DECODER, _request(_field(9, pair)))


@given(st.binary(max_size=64))
def test_random_bytes(payload: bytes) -> None:
    agree(DECODER, payload)
    agree(DECODER, _request(payload))
    agree(DECODER, _request(WHOLE, resource=payload))


def test_a_request_cut_anywhere() -> None:
    for size in range(len(WHOLE)):
        agree(DECODER, WHOLE[:size])


def test_an_attribute_means_the_same_wherever_it_comes_from() -> None:
    """What was remembered for its bytes, and what is parsed again when the memory was full."""
    decoder = ProtobufDecoder()
    first = decoder.spans(WHOLE)
    assert decoder.spans(WHOLE) == first == ProtobufDecoder().spans(WHOLE)


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.tracer.ingest.protobuf._MAX_REMEMBERED", 3)
    decoder = ProtobufDecoder()
    agree(decoder, WHOLE)
    assert len(decoder._remembered) <= 3

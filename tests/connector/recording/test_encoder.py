"""The hand-made protobuf is what protobuf itself reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from history import history
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from wire import encoded, to_json_line

from kvtrail.connector.recording import encoder as encoder_module
from kvtrail.connector.recording.contexts import RequestContext, root_ids
from kvtrail.connector.recording.encoder import Encoder, key_value
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, BlockCheck
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import decode, otlp_json, protobuf
from kvtrail.tracer.rules.contents.computed_contents import reported_blocks

STORY = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 0 healed 256\nA 0 !AssertionError: Mismatch\nend"
IDENTITY = {semconv.CACHE_IDENTITY.key: "0123456789abcdef"}
LOST = {"span_id", "trace_id", "external"}  # made by the encoder


def as_json(payload: bytes) -> list[Span]:
    """Its spans, written as OTLP JSON and read again."""
    return otlp_json.JsonDecoder().spans(to_json_line(payload))


@given(
    st.one_of(
        st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(), st.floats(allow_nan=False, allow_infinity=False)
    )
)
def test_any_value_survives(value: bool | int | str | float) -> None:
    read = KeyValue.FromString(key_value("key", value))
    assert read.key == "key"
    assert protobuf.value(read.value) == value
    assert type(protobuf.value(read.value)) is type(value)


def test_a_story_survives_the_wire() -> None:
    events = history(STORY)
    read = [decode.from_span(span) for span in protobuf.spans(encoded(events))]
    for before, after in zip(events, read, strict=True):
        assert after is not None
        assert {k: v for k, v in asdict(before).items() if k not in LOST} == {
            k: v for k, v in asdict(after).items() if k not in LOST
        }


def test_true_in_a_list_of_numbers_spoils_no_other_list() -> None:
    """True, 1 and 1.0 are one key of a dictionary, and three values on the wire."""
    encoder_module._integer.cache_clear()  # as in a process that has met no 1
    encoder = Encoder({}, 1, 0)

    def block_ids(*blocks: Any) -> Any:
        values = (blocks, None)
        event = (Kind.LOAD_ERROR.value, b"", (b"r" * 24, b"", "r", True), 0, 0, 0, 0, 0, None, values)
        (span,) = protobuf.spans(next(encoder.requests([event], 1)))
        return span.attributes["kvtrail.blocks.ids"]

    for odd in (True, 1.0):
        with pytest.raises(TypeError):
            block_ids(777, odd)
    assert [type(block) for block in block_ids(777, 1)] == [int, int]


FINGERPRINTS = f"{2**63}@0 b:{2**64 - 1}@32 c:0@64"


@pytest.mark.parametrize("read", [protobuf.spans, as_json])
def test_a_look_at_blocks_survives_both_encodings(read: Callable[[bytes], list[Span]]) -> None:
    reported = f"check computed 3 group 1 tells a:{FINGERPRINTS}"
    wrong = "check loaded 3 wrong drift 12@256 holds r-7@256 wrong early 9@0 more 5 healed rank 1"
    events = history(f"{reported}\n{wrong}\nend", cache_identity="0123456789abcdef")
    checks = [
        event for event in map(decode.from_span, read(encoded(events, IDENTITY))) if isinstance(event, BlockCheck)
    ]
    assert [event.cache_identity for event in checks] == ["0123456789abcdef"] * 2
    for before, after in zip((e for e in events if isinstance(e, BlockCheck)), checks, strict=True):
        assert {a.field: getattr(before, a.field) for a in FIELDS[Kind.BLOCK_CHECK]} == {
            a.field: getattr(after, a.field) for a in FIELDS[Kind.BLOCK_CHECK]
        }
    assert [each.fingerprint for each in reported_blocks(checks[0])] == [2**63, 2**64 - 1, 0]
    assert "check_fingerprints" not in checks[0].numbers()


@pytest.mark.parametrize("sequence", [0, 1, 127, 128, 16_383, 16_384, 16_385, 2**21, 2**21 - 1, 2**35 + 12_345])
def test_sequence_numbers_of_any_size(sequence: int) -> None:
    (event,) = history("end")[-1:]
    event.sequence = sequence
    (span,) = protobuf.spans(encoded([event]))
    assert span.attributes["kvtrail.recorder.sequence"] == sequence


def test_span_ids_are_unique_and_the_root_is_the_parent() -> None:
    request = ExportTraceServiceRequest.FromString(encoded(history(STORY)))
    spans: list[ProtoSpan] = list(request.resource_spans[0].scope_spans[0].spans)
    assert len({span.span_id for span in spans}) == len(spans)
    (root,) = [span for span in spans if span.name == Kind.REQUEST]
    assert {span.parent_span_id for span in spans if span is not root} == {root.span_id}
    assert root.parent_span_id == b""
    assert all(span.kind == ProtoSpan.SPAN_KIND_INTERNAL for span in spans)


def test_values_are_forgotten_before_they_fill_the_memory() -> None:
    encoder = Encoder({}, 1, 0)
    context = RequestContext("r", "r", root_ids("e", "r"))
    for number in range(20_000):
        list(
            encoder.requests(
                [(Kind.CACHE_RESET.value, b"", context.identity, number, number, 0, 0, 0, None, (number,))], 1
            )
        )
    (remembered,) = encoder._kinds[Kind.CACHE_RESET.value][1]
    assert remembered.cache_info().currsize <= 8192


def test_what_concerns_no_request_is_in_a_trace_of_its_minute() -> None:
    """Which has a root that is sent with the first event of the minute, and again if that is sent again."""
    minute_ns = semconv.ENGINE_NS
    nobody = (b"n" * 24, b"", "", True)

    def reset(sequence: int, at_ns: int) -> Any:
        return ("kv.cache.reset", b"", nobody, sequence, sequence, 0, at_ns, at_ns, None, (1,))

    encoder = Encoder({semconv.ENGINE_ID.key: "engine"}, 100, 10 * minute_ns)
    first = [reset(0, 1), reset(1, minute_ns - 1), reset(2, minute_ns)]
    (payload,) = encoder.requests(first, 512)
    root, reset_0, reset_1, next_root, reset_2 = protobuf.spans(payload)
    assert root.name == next_root.name == semconv.ENGINE_SPAN
    assert (root.start_ns, root.end_ns, root.parent_id) == (10 * minute_ns, 11 * minute_ns, "")
    assert root.attributes == {semconv.ENGINE_ID.key: "engine"}
    assert decode.from_span(root) is None, "it is nothing that only another version knows"
    assert [(each.trace_id, each.parent_id) for each in (reset_0, reset_1)] == [(root.trace_id, root.span_id)] * 2
    assert (reset_2.trace_id, reset_2.parent_id) == (next_root.trace_id, next_root.span_id)
    assert len({root.trace_id, next_root.trace_id}) == len({root.span_id, next_root.span_id}) == 2
    assert list(encoder.requests(first, 512)) == [payload]
    (later,) = encoder.requests([reset(3, minute_ns + 1)], 512)
    assert [span.name for span in protobuf.spans(later)] == ["kv.cache.reset"]

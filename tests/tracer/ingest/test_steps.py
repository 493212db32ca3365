"""The steps of many requests in one span: what is recorded in columns is read as one event for each row."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory import MemoryTransport, a_recorder, a_request
from msgspec.structs import asdict, replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from processes import SLOW_S
from wire import to_json_line

from kvtrail.connector.recording.encoder import Encoder, attribute, key_value
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Lookup, Schedule
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import decode, protobuf, steps
from kvtrail.tracer.ingest.otlp_json import JsonDecoder
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ledger.block_table import blocks_by_group

SOURCE = attribute(semconv.CONNECTOR.key, "OffloadConnector") + attribute(semconv.ROLE.key, "scheduler")


def recorded(
    *,
    scheduled: tuple[int, ...] = (1, 40, 4),
    drafted: tuple[int, ...] = (0, 0, 3),
    blocks: Sequence[Sequence[tuple[int, ...]]] = (((7,),), ((8, 9),), ((),)),
) -> bytes:
    """A lookup, a step of three requests, and a lookup, as a recorder sends them."""
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    requests = [a_request(f"cmpl-{n}-0-0123abcd", num_preemptions=n) for n in range(3)]
    lookup = (Kind.LOOKUP.value, SOURCE, recorder.contexts.of(requests[1]), 5, 6, (9, 0, 0, 0, False, *(None,) * 6))
    with transport.held_up():
        recorder.record(*lookup)
        contexts = [recorder.contexts.of(each) for each in requests]
        recorder.record_step(SOURCE, contexts, 10, (16, 200, 90), scheduled, drafted, blocks, 12, 46)
        recorder.record(*lookup)
    recorder.close(SLOW_S)
    return transport.payloads[0]


def changed(payload: bytes, key: str, value: Any) -> bytes:
    """The same, with another attribute of the step; None takes it out."""
    request = ExportTraceServiceRequest.FromString(payload)
    (step,) = [s for s in request.resource_spans[0].scope_spans[0].spans if s.name == semconv.STEP_SPAN]
    kept = [each for each in step.attributes if each.key != key]
    del step.attributes[:]
    step.attributes.extend(kept)
    if value is not None:
        step.attributes.add().MergeFromString(key_value(key, value))
    return request.SerializeToString()


def test_each_row_is_an_event_with_its_own_numbers() -> None:
    spans = protobuf.spans(recorded())
    first, *rows, last = [event for span in spans if (event := decode.from_span(span)) is not None][:5]
    assert isinstance(first, Lookup)
    assert isinstance(last, Lookup)
    assert [event.sequence for event in (first, *rows, last)] == [0, 1, 2, 3, 4]
    seen = [
        (e.request, e.external, e.request_sequence, e.epoch, e.computed, e.scheduled, e.drafted, e.blocks_ids)
        for e in rows
        if isinstance(e, Schedule)
    ]
    assert seen == [
        ("cmpl-0-0-0123abcd", "cmpl-0-0", 0, 0, 16, 1, 0, (7,)),
        ("cmpl-1-0-0123abcd", "cmpl-1-0", 1, 1, 200, 40, 0, (8, 9)),
        ("cmpl-2-0-0123abcd", "cmpl-2-0", 0, 2, 90, 4, 3, ()),
    ]
    assert last.request_sequence == 2
    for row in rows:
        assert isinstance(row, Schedule)
        assert (row.scheduler_step, row.scheduler_tokens, row.blocks_whole) == (12, 46, False)
        assert (row.connector, row.role, row.start_ns) == ("OffloadConnector", "scheduler", rows[0].start_ns)
        assert row.sampled is None
    ids = [int(event.span_id, 16) for event in (first, *rows, last)]
    assert [id_ - ids[0] for id_ in ids] == [0, 1, 2, 3, 4]
    assert [span.name for span in spans[1:5]] == ["kv.engine", *["kv.schedule"] * 3]
    assert not any(key.startswith("kvtrail.step.") for span in spans for key in span.attributes)


def test_what_is_usual_takes_no_room() -> None:
    payload = recorded(scheduled=(1, 1, 1), drafted=(), blocks=[((),)] * 3)
    rows = [event for event in ProtobufDecoder().decoded(payload).events if isinstance(event, Schedule)]
    assert [(e.scheduled, e.drafted, e.blocks_ids, e.blocks_by_group) for e in rows] == [(1, 0, (), None)] * 3
    request = ExportTraceServiceRequest.FromString(payload)
    (step,) = [s for s in request.resource_spans[0].scope_spans[0].spans if s.name == semconv.STEP_SPAN]
    columns = {pair.key for pair in step.attributes if pair.key.startswith("kvtrail.step.")}
    assert columns == {
        a.key
        for a in (
            semconv.ROW_REQUESTS, semconv.ROW_NUMBERS, semconv.ROW_EPOCHS, semconv.ROW_COMPUTED, semconv.ROW_COUNTS,
        )
    }  # fmt: skip


def test_an_older_recorder_says_nothing_of_the_blocks_of_several_groups() -> None:
    payload = changed(changed(recorded(), semconv.ROW_COUNTS.key, None), semconv.ROW_BLOCKS.key, None)
    rows = [event for event in ProtobufDecoder().decoded(payload).events if isinstance(event, Schedule)]
    assert [(e.blocks_ids, e.blocks_by_group) for e in rows] == [(None, None)] * 3


def test_all_readers_take_the_same_events_out_of_it() -> None:
    payload = recorded()
    by_span = [event for span in protobuf.spans(payload) if (event := decode.from_span(span)) is not None]
    line = to_json_line(payload)
    by_json = [event for span in JsonDecoder().spans(line) if (event := decode.from_span(span)) is not None]
    assert [asdict(event) for event in ProtobufDecoder().decoded(payload).events] == [
        asdict(event) for event in by_span
    ]
    assert [asdict(event) for event in JsonDecoder().decoded(line).events] == [asdict(event) for event in by_span]
    assert [asdict(event) for event in by_json] == [asdict(event) for event in by_span]


ROW = st.tuples(
    st.text(min_size=1, max_size=60).filter(str.strip),
    st.integers(0, 3),
    st.integers(0, 2**40),
    st.integers(1, 3) | st.integers(1, 2**31),
    st.integers(0, 5),
    st.lists(st.integers(0, 2**31), max_size=4).map(tuple),
    st.booleans(),
)


@given(rows=st.lists(ROW, min_size=1, max_size=30, unique_by=lambda row: row[0]), groups=st.integers(1, 4))
def test_columns_are_read_as_they_were_recorded(rows: list[Any], groups: int) -> None:
    """Over both wires, and out of the engine's process as `marshal` writes it."""
    waiting: list[Any] = []
    recorder = a_recorder(MemoryTransport())
    recorder._append = waiting.append
    recorder._ring.append_large = lambda event, size: waiting.append(event)  # type: ignore[method-assign]
    contexts = [recorder.contexts.of(a_request(name, num_preemptions=epoch)) for name, epoch, *_ in rows]
    for context, row in zip(contexts, rows, strict=True):
        context.sampled = row[-1]
    _, _, computed, scheduled, drafted, blocks, _ = zip(*rows, strict=True)
    in_groups = [[ids[n::groups] for n in range(groups)] for ids in blocks]
    recorder.record_step(SOURCE, contexts, 10, computed, scheduled, drafted, in_groups, 12, 46)
    recorder.close(SLOW_S)
    resource = {semconv.ENGINE_ID.key: "engine", semconv.RECORDER_ID.key: recorder.id}
    (payload,) = Encoder(resource, 2**63 - 3, 0).requests(marshal.loads(marshal.dumps(waiting[:1])), 1)
    for decoded in (ProtobufDecoder().decoded(payload), JsonDecoder().decoded(to_json_line(payload))):
        assert decoded.malformed == []
        assert [
            (e.request, e.epoch, e.computed, e.scheduled, e.drafted, blocks_by_group(e))
            for e in decoded.events
            if isinstance(e, Schedule)
        ] == [(*row[:5], each) for row, each in zip(rows, in_groups, strict=True)]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("requests", None, "kvtrail.step.requests is None, but must be an array"),
        ("requests", (), "kvtrail.step.requests has 0 elements, but a step has 1 to 16384"),
        ("requests", ("a",) * 16_385, "kvtrail.step.requests has 16385 elements, but a step has 1 to 16384"),
        ("requests", ("a", "b"), "kvtrail.step.sequences has 3 elements, but the step has 2 rows"),
        ("sequences", None, "kvtrail.step.sequences is None, but must be an array"),
        ("computed", (16, 200), "kvtrail.step.computed has 2 elements, but the step has 3 rows"),
        ("scheduled", 7, "kvtrail.step.scheduled is 7, but must be an array"),
        ("blocks.counts", (1, 2, 2), "kvtrail.step.blocks.ids has 3 elements, but the rows have 5 blocks"),
        ("blocks.counts", (4, -1, 0), "kvtrail.step.blocks.counts holds -1, but must hold counts"),
        ("blocks.counts", ("1", "2", "0"), "kvtrail.step.blocks.counts holds '1', but must hold counts"),
        ("blocks.ids", "7", "kvtrail.step.blocks.ids is '7', but must be an array"),
    ],
)
def test_columns_that_do_not_fit_cost_this_step_alone(key: str, value: Any, words: str) -> None:
    payload = changed(recorded(), f"kvtrail.step.{key}", value)
    for decoded in (ProtobufDecoder().decoded(payload), JsonDecoder().decoded(to_json_line(payload))):
        assert [type(event) for event in decoded.events[:2]] == [Lookup, Lookup]
        (malformed,) = decoded.malformed
        assert str(malformed).startswith("span ")
        assert str(malformed).endswith(f"(kv.step): {words}")
    (left,) = [span for span in protobuf.spans(payload) if span.name == semconv.STEP_SPAN]
    with pytest.raises(decode.MalformedSpan, match=r"kv\.step"):
        decode.from_span(left)


def test_what_all_rows_would_share_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 16,000 rows with 900 attributes would be a dictionary: 1 GiB, of a request of a megabyte."""
    payload = recorded()
    monkeypatch.setattr(steps, "MAX_SHARED", 2_000)
    few = [(f"x{n}", n) for n in range(50)]
    for more, is_taken in ((few, True), ([(f"x{n}", n) for n in range(900)], False)):
        request = ExportTraceServiceRequest.FromString(payload)
        for span in request.resource_spans[0].scope_spans[0].spans:
            if span.name == semconv.STEP_SPAN:
                for key, value in more:
                    span.attributes.add(key=key).value.int_value = value
        malformed = ProtobufDecoder().decoded(request.SerializeToString()).malformed
        assert (malformed == []) is is_taken
    assert "has 3 elements, and each would share 9" in str(malformed[0])


def test_an_odd_element_costs_its_row_alone() -> None:
    payload = changed(recorded(), "kvtrail.step.computed", (16, -200, 90))
    decoded = ProtobufDecoder().decoded(payload)
    assert [event.sequence for event in decoded.events[:4]] == [0, 1, 3, 4]
    (malformed,) = decoded.malformed
    assert "kvtrail.tokens.computed is -200" in str(malformed)


def test_a_foreign_span_of_that_name_is_left_alone() -> None:
    (step,) = [
        span for span in protobuf.spans(changed(recorded(), "kvtrail.step.requests", None)) if span.name == "kv.step"
    ]
    foreign: Span = replace(step, scope="other")
    assert decode.split_step_spans(foreign) == [foreign]
    assert decode.from_span(foreign) is None

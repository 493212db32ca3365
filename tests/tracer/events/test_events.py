"""Spans and events: one vocabulary, and clear words for what does not fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from kvtrail.tracer.events import briefs, events, semconv, vocabulary
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import decode

DOCS = Path(__file__).parents[3] / "docs"


def span(kind: str, **attributes: object) -> Span:
    return Span(
        trace_id="ab" * 16,
        span_id="cd" * 8,
        parent_id="",
        name=kind,
        start_ns=1,
        end_ns=2,
        attributes={semconv.SEQUENCE.key: 7, semconv.REQUEST_ID.key: "r-1", **attributes},
        resource={semconv.ENGINE_ID.key: "e", semconv.RECORDER_ID.key: "rec"},
        scope=semconv.SCOPE,
    )


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_its_event_with_the_fields_of_its_attributes(kind: Kind) -> None:
    names = set(events.CLASSES[kind].__struct_fields__)
    assert {attribute.field for attribute in semconv.FIELDS[kind]} <= names
    assert briefs.BRIEFS[kind]


@pytest.mark.parametrize("kind", list(Kind))
def test_an_event_is_decoded_by_the_names_and_the_types_of_the_vocabulary(kind: Kind) -> None:
    types = {field.encode_name: str(field.type) for field in fields(events.CLASSES[kind])}
    for attribute in (*semconv.COMMON, *semconv.FIELDS[kind]):
        assert attribute.type.__name__ in types[attribute.key]


def test_a_lookup_is_read_back() -> None:
    event = decode.from_span(
        span(
            Kind.LOOKUP,
            **{semconv.TOTAL.key: 749, semconv.COMPUTED.key: 336, semconv.MATCHED.key: 256, semconv.RETURNED.key: 0},
        )
    )
    assert isinstance(event, events.Lookup)
    assert (event.total, event.computed, event.matched, event.returned, event.cached) == (749, 336, 256, 0, None)
    assert event.numbers() == {"total": 749, "computed": 336, "matched": 256, "returned": 0, "is_async": False}


def test_what_is_missing_is_named() -> None:
    with pytest.raises(decode.MalformedSpan, match=r"cdcdcdcdcdcdcdcd \(kv.lookup\).*computed"):
        decode.from_span(span(Kind.LOOKUP, **{semconv.TOTAL.key: 749}))


def test_a_value_of_the_wrong_type_is_named() -> None:
    with pytest.raises(decode.MalformedSpan, match=r"kvtrail\.tokens\.total is '749', but must be int$"):
        decode.from_span(span(Kind.LOOKUP, **{semconv.TOTAL.key: "749", semconv.COMPUTED.key: 1}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (semconv.REQUEST_SEQUENCE.key, "zero"),
        (semconv.REQUEST_ID.key, ["a"]),
        (semconv.REQUEST_ID.key, 7),
        (semconv.EPOCH.key, -1),
        (semconv.TOTAL.key, -5),
        (semconv.TOTAL.key, 2**62),
        (semconv.TOTAL.key, True),
        (semconv.ASYNC.key, 1),
    ],
)
def test_damage_is_named_and_not_believed(key: str, value: object) -> None:
    attributes = {semconv.TOTAL.key: 749, semconv.COMPUTED.key: 1, key: value}
    with pytest.raises(decode.MalformedSpan, match=key.replace(".", r"\.")):
        decode.from_span(span(Kind.LOOKUP, **attributes))


@pytest.mark.parametrize("change", [{"span_id": ""}, {"start_ns": -1}, {"end_ns": 2**63 + 5}])
def test_a_span_of_no_time_or_no_id_is_damage(change: dict[str, Any]) -> None:
    damaged = replace(span(Kind.PREEMPT), **change)
    with pytest.raises(decode.MalformedSpan, match=next(iter(change))):
        decode.from_span(damaged)


def test_foreign_spans_and_unknown_kinds_are_no_events() -> None:
    foreign = span(Kind.LOOKUP)
    foreign.scope = "vllm"
    assert decode.from_span(foreign) is None
    later = decode.from_span(span("kv.invented-later"))
    assert isinstance(later, events.Unfamiliar), "it has its numbers, and nothing to say"
    assert (later.numbers(), later.sequence) == ({}, decode.from_span(span(Kind.FREE)).sequence)  # type: ignore[union-attr]
    assert decode.read(span("kv.invented-later"))[1] == ("kv.invented-later",)
    del (numberless := span("kv.invented-later")).attributes[semconv.SEQUENCE.key]
    assert decode.from_span(numberless) is None


def test_the_documentation_is_generated_from_the_vocabulary() -> None:
    assert (DOCS / "spans.md").read_text() == vocabulary.as_markdown()


@pytest.mark.parametrize(
    ("engine_id", "external"),
    [("cmpl-1-0-0123abcd", "cmpl-1-0"), ("7-911cef6d", "7"), ("plain", "plain"), ("a-0123ABCD", "a-0123ABCD")],
)
def test_the_external_id(engine_id: str, external: str) -> None:
    assert semconv.external_id(engine_id) == external


def test_a_tracer_that_knows_no_looks_at_blocks_passes_them_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a version before them: it has the event's number, so that nothing is missing, and judges nothing by it."""
    look = span(Kind.BLOCK_CHECK, **{semconv.CHECK_LOOK.key: "loaded", semconv.CHECK_BLOCKS.key: 3})
    assert isinstance(decode.from_span(look), events.BlockCheck)
    monkeypatch.delitem(events.CLASSES, Kind.BLOCK_CHECK)
    event, unknown = decode.read(look)
    assert isinstance(event, events.Unfamiliar)
    assert (event.sequence, event.request, unknown) == (7, "r-1", ("kv.block_check",))

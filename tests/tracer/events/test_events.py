"""Spans and events: one vocabulary, and clear words for what does not fit it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from kvtrail.tracer.events import events, semconv
from kvtrail.tracer.events.events import FIELDS, KEYS
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


def test_every_kind_is_declared_as_a_class_that_says_what_it_is() -> None:
    assert list(events.CLASSES) == list(Kind)
    assert [kind for kind, cls in events.CLASSES.items() if not vars(cls).get("__doc__")] == []


def test_an_engine_without_msgspec_records_the_same() -> None:
    code = (
        "import kvtrail.connector.recording.export_process, kvtrail.connector.tracing.traced\n"
        "from kvtrail.tracer.events.events import FIELDS\n"
        "print([(str(kind), a.key, a.field, a.type, a.brief) for kind, fields in FIELDS.items() for a in fields])"
    )
    with_it, without = (
        subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, check=True).stdout
        for before in ("", "import sys; sys.modules['msgspec'] = None\n")
    )
    assert "kvtrail.tokens.returned" in with_it
    assert with_it == without


@pytest.mark.parametrize("kind", list(Kind))
def test_an_event_is_decoded_by_the_names_and_the_types_of_the_vocabulary(kind: Kind) -> None:
    types = {field.encode_name: str(field.type) for field in fields(events.CLASSES[kind])}
    for attribute in (*semconv.COMMON, *FIELDS[kind]):
        assert attribute.type.__name__ in types[attribute.key]


def test_a_lookup_is_read_back() -> None:
    event = decode.from_span(
        span(
            Kind.LOOKUP,
            **{KEYS["total"]: 749, KEYS["computed"]: 336, KEYS["matched"]: 256, KEYS["returned"]: 0},
        )
    )
    assert isinstance(event, events.Lookup)
    assert (event.total, event.computed, event.matched, event.returned, event.cached) == (749, 336, 256, 0, None)
    assert event.numbers() == {"total": 749, "computed": 336, "matched": 256, "returned": 0, "is_async": False}


def test_what_is_missing_is_named() -> None:
    with pytest.raises(decode.MalformedSpan, match=r"cdcdcdcdcdcdcdcd \(kv.lookup\).*computed"):
        decode.from_span(span(Kind.LOOKUP, **{KEYS["total"]: 749}))


def test_a_value_of_the_wrong_type_is_named() -> None:
    with pytest.raises(decode.MalformedSpan, match=r"kvtrail\.tokens\.total is '749', but must be int$"):
        decode.from_span(span(Kind.LOOKUP, **{KEYS["total"]: "749", KEYS["computed"]: 1}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (semconv.REQUEST_SEQUENCE.key, "zero"),
        (semconv.REQUEST_ID.key, ["a"]),
        (semconv.REQUEST_ID.key, 7),
        (semconv.EPOCH.key, -1),
        (KEYS["total"], -5),
        (KEYS["total"], 2**62),
        (KEYS["total"], True),
        (KEYS["is_async"], 1),
    ],
)
def test_damage_is_named_and_not_believed(key: str, value: object) -> None:
    attributes = {KEYS["total"]: 749, KEYS["computed"]: 1, key: value}
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
    del (numberless := span("kv.invented-later")).attributes[semconv.SEQUENCE.key]
    assert decode.from_span(numberless) is None


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_is_recorded_or_imported_from_a_log(kind: Kind) -> None:
    """A rule about an event that is never reported could fire for no user. Injected faults do not count."""
    rooms = ("connector/recording", "connector/tracing", "connector/known", "tracer/ingest/logs")
    files = [file for room in rooms for file in (DOCS.parent / room).rglob("*.py")]
    assert any(re.search(rf"Kind\.{kind.name}\b", file.read_text()) for file in files)


@pytest.mark.parametrize(
    ("engine_id", "external"),
    [("cmpl-1-0-0123abcd", "cmpl-1-0"), ("7-911cef6d", "7"), ("plain", "plain"), ("a-0123ABCD", "a-0123ABCD")],
)
def test_the_external_id(engine_id: str, external: str) -> None:
    assert semconv.external_id(engine_id) == external


def test_a_tracer_that_knows_no_looks_at_blocks_passes_them_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a version before them: it has the event's number, so that nothing is missing, and judges nothing by it."""
    look = span(Kind.BLOCK_CHECK, **{KEYS["check_look"]: "loaded", KEYS["check_blocks"]: 3})
    assert isinstance(decode.from_span(look), events.BlockCheck)
    monkeypatch.delitem(events.CLASSES, Kind.BLOCK_CHECK)
    event = decode.from_span(look)
    assert isinstance(event, events.Unfamiliar)
    assert (event.sequence, event.request) == (7, "r-1")

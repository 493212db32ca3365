"""The quick way to read a line, the slower one and protobuf's: the same events, or none of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

import collector
import pytest
from history import history
from wire import as_request

from kvtrail.tracer.ingest import decode, otlp, otlp_json
from kvtrail.tracer.ingest.otlp_json import Odd
from kvtrail.tracer.ingest.quick import Quick
from kvtrail.tracer.ingest.trace_file import TraceReader
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.spans import Span

STORY = """
L 749 c0 h256 -> 256 async keys aa,bb
plan load 0+256 [1-8] keys aa,bb #7
A 256 [1-24]
load 0/256 rank 1
done #7
R
S 256+80 [1-24]
S 336+1 [25] drafts 1
refs -1
stats 749 cached -3
P free 7
L 760 c336 h256 -> -8 healed 12
key k1 after k0 of digest
pool cpu used -1 free 4 total 8
reset refused
A 256 !Mismatch of "quotes"
b: L 90 c0 -> later
end delayed [1 2]
sent
"""
EVENTS = history(STORY)
LINES = {
    "ours": otlp.to_json_line(as_request(EVENTS)),
    "collector": collector.line(EVENTS),
    "mixed": collector.line(EVENTS, {**collector.foreign_span(1), "links": []}),
    "linked": collector.line(EVENTS, collector.foreign_span(1)),
}


_LAST = '"15"}},{"key":"kvtrail.succeeded","value":{"boolValue":false}}]'
PIECES = ["", "", "0", '"', "}", "]", ",", "\\", "\\u0041", "-", "é", "null", "1e3", '"},{"key":"', "true", " "]


def by_protobuf(line: str) -> list[Event] | None:
    """The events by the way that protobuf's own parser guards; None where it refuses the line."""
    try:
        spans = otlp.spans(otlp.from_json(json.loads(line)))
        return _sorted(event for span in spans if (event := _event(span)) is not None)
    except (ValueError, RecursionError):
        return None


def _sorted(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.sequence, event.span_id))


def _event(span: Span) -> Event | None:
    try:
        return decode.from_span(span)
    except decode.MalformedSpan:
        return None


def as_read(line: str, path: Path) -> list[Event] | None:
    """The events as a file's reader has them."""
    path.write_text(line + "\n" + LINES["ours"])  # a good line behind, for a file without one is none
    reader = TraceReader(path)
    batches = list(reader.batches())
    return None if len(batches) == 1 else _sorted(batches[0].events)


@pytest.mark.parametrize("name", ["ours", "collector", "mixed"])
def test_it_reads_what_it_can_and_leaves_the_rest(name: str) -> None:
    events, others = Quick().read(LINES[name])
    assert events == [event for event in by_protobuf(LINES[name]) or () if event.error is None]
    assert [span.name for span in others] == ["kv.alloc"] + ["llm_request"] * (name == "mixed")


@pytest.mark.parametrize("name", LINES)
def test_a_reader_has_the_events_that_protobuf_has(name: str, tmp_path: Path) -> None:
    told = as_read(LINES[name], tmp_path / "t")
    assert told == by_protobuf(LINES[name])
    assert len(told or ()) == len(EVENTS)


@pytest.mark.parametrize("name", LINES)
def test_spans_read_without_protobuf_are_those_read_with_it(name: str) -> None:
    data = json.loads(LINES[name])
    assert otlp_json.spans(data) == list(otlp.spans(otlp.from_json(data)))


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_line_is_read_as_protobuf_reads_it_or_not_at_all(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{name}/{seed}")
    line = LINES[name]
    for _ in range(40):
        at = rng.randrange(len(line))
        length = rng.choice([0, 1, 1, 2, 12, 60, 900])
        put = rng.choice(PIECES)
        damaged = line[:at] + put + line[at + length :]
        assert as_read(damaged, tmp_path / "t") == by_protobuf(damaged), (
            f"{line[at - 30 : at]}<{put}>{line[at + length :][:30]}"
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"intValue":"749"', '"intValue":"1125899906842625"'),  # more than any count can be
        ('"intValue":"749"', '"intValue":"-749"'),
        ('"intValue":"749"', '"intValue":"7_4"'),
        ('"intValue":"749"', '"intValue":749'),
        ('"intValue":"749"', '"intValue":749.0'),
        ('"intValue":"749"', '"intValue":" 749"'),
        ('"intValue":"749"', '"intValue":"\N{ARABIC-INDIC DIGIT SEVEN}"'),
        ('"intValue":"749"', '"stringValue":"749"'),
        ('"intValue":"749"', '"intValue":"749","stringValue":"749"'),
        ('"startTimeUnixNano":"1', '"startTimeUnixNano":"9'),
        ('"startTimeUnixNano":"1', '"startTimeUnixNano":"-1'),
        ('"traceId":"', '"traceId":"0'),
        ('"spanId":"0', '"spanId":"g'),
        ('"spanId":"', '"spanId":"","x":"'),
        ('"name":"kv.lookup"', '"name":"kv.lookup.later"'),
        ('"name":"kv.lookup"', '"name":"kv.alloc"'),
        ('"scope":{"name":"kvtrail"', '"scope":{"name":"other"'),
        ("kvtrail.recorder.sequence", "kvtrail.recorder.other"),
        ("kvtrail.recorder.id", "kvtrail.recorder.other"),
        ("kvtrail.tokens.total", "kvtrail.tokens.other"),
        (_LAST, '"15"}}]'),
        (_LAST, '"1500}]'),
        ('"scopeSpans":[', '"scopeSpans":[{"scope":{"name":"kvtrail"},"spans":[]},'),
        ("]}]}]}", "]}]}]} "),
        ("]}]}]}", "]}]}]}]"),
        ('"attributes":[{"key":"kvtrail.connector', '"attributes":[],"attributes":[{"key":"kvtrail.connector'),
    ],
)
def test_what_is_odd_is_never_taken_for_something_else(old: str, new: str, tmp_path: Path) -> None:
    line = LINES["ours"].replace(old, new)
    assert line != LINES["ours"]
    assert as_read(line, tmp_path / "t") == by_protobuf(line)


def test_what_it_remembers_is_bounded_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.tracer.ingest.quick._MOST_REMEMBERED", 3)
    quick = Quick()
    for number in range(20):
        events = history(STORY, request=f"r-{number}-0123abcd", recorder=f"rec-{number}")
        told, _ = quick.read(otlp.to_json_line(as_request(events)))
        assert {event.recorder for event in told} == {f"rec-{number}"}
        assert [e.numbers() for e in told] == [e.numbers() for e in events if e.error is None]
    assert len(quick._fields) <= 3
    assert len(quick._sections) <= 3


@pytest.mark.parametrize(
    "line", ["", "{}", "null", '{"resourceSpans":[]}', '{"resourceSpans":[{"scopeSpans":[]}]}', "[1]"]
)
def test_a_line_without_spans_is_for_others(line: str) -> None:
    with pytest.raises(Odd):
        Quick().read(line)

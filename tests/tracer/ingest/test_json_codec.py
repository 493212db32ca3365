"""OTLP's JSON is read as Google's parser reads it, or not at all; damage in what is not read changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import collector
import google_parser
import pytest
from history import history
from msgspec import DecodeError, structs
from wire import encoded, to_json_line

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import decode, otlp_json
from kvtrail.tracer.ingest.logs.event_spans import span_of
from kvtrail.tracer.ingest.otlp_json import JsonDecoder
from kvtrail.tracer.ingest.trace_file import TraceReader

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
evict a
reset refused
A 256 !Mismatch of "quotes"
b: L 90 c0 -> later
end delayed [1 2]
sent
"""
EVENTS = history(STORY)
LINES = {
    "ours": to_json_line(encoded(EVENTS)),
    "collector": collector.line(EVENTS),
    "mixed": collector.line(EVENTS, {**collector.foreign_span(1), "links": []}),
    "linked": collector.line(EVENTS, collector.foreign_span(1)),
}


_LAST = '"15"}},{"key":"kvtrail.succeeded","value":{"boolValue":false}}]'
PIECES = ["", "", "0", '"', "}", "]", ",", "\\", "\\u0041", "-", "é", "null", "1e3", '"},{"key":"', "true", " "]


def by_google(line: str) -> list[Event] | None:
    """The events of a line by Google's parser; None where it refuses the line."""
    spans = google_parser.of_json(line)
    return None if spans is None else _sorted(event for span in spans if (event := _event(span)) is not None)


def _sorted(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.sequence, event.span_id))


def _event(span: Span) -> Event | None:
    try:
        return decode.from_span(span)
    except decode.MalformedSpan:
        return None


def as_read(line: str, path: Path) -> list[Event] | None:
    """The events as a file's reader has them."""
    path.write_text(line + "\n" + LINES["ours"])  # a good line behind, for a file without one is refused
    messages = list(TraceReader(path).decoded())
    return None if len(messages) == 1 else _sorted(messages[0].events)


def is_read_well(line: str, undamaged: str, folder: Path) -> bool:
    """Whether a line is read as Google reads it, or not at all; or as the undamaged, where damage is in what is not read."""
    ours, google = as_read(line, folder / "t"), by_google(line)
    return ours in (None, google) or (google is None and ours == by_google(undamaged))


@pytest.mark.parametrize("name", LINES)
def test_spans_are_those_that_google_reads(name: str) -> None:
    assert JsonDecoder().spans(LINES[name]) == google_parser.of_json(LINES[name])


@pytest.mark.parametrize("name", LINES)
def test_a_reader_has_the_events_that_google_has(name: str, tmp_path: Path) -> None:
    events = as_read(LINES[name], tmp_path / "t")
    assert events == by_google(LINES[name])
    assert len(events or ()) == len(EVENTS)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_line_is_read_as_google_reads_it_or_not_at_all(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{name}/{seed}")
    line = LINES[name]
    for _ in range(40):
        at = rng.randrange(len(line))
        length = rng.choice([0, 1, 1, 2, 12, 60, 900])
        put = rng.choice(PIECES)
        damaged = line[:at] + put + line[at + length :]
        assert is_read_well(damaged, line, tmp_path), f"{line[at - 30 : at]}<{put}>{line[at + length :][:30]}"


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
def test_what_differs_is_never_taken_for_something_else(old: str, new: str, tmp_path: Path) -> None:
    line = LINES["ours"].replace(old, new)
    assert line != LINES["ours"]
    assert is_read_well(line, LINES["ours"], tmp_path)


@pytest.mark.parametrize("line", ["", "null", "[1]", "{}", '{"resourceSpans":{}}', '{"traceID":"1"}'])
def test_what_is_no_request_is_refused(line: str) -> None:
    with pytest.raises(DecodeError):
        JsonDecoder().spans(line)


@pytest.mark.parametrize("line", ['{"resourceSpans":[]}', '{"resourceSpans":[{"scopeSpans":[]}]}'])
def test_a_request_may_be_empty(line: str) -> None:
    assert JsonDecoder().spans(line) == []


def test_a_foreign_attribute_named_like_a_field_changes_nothing() -> None:
    (span,) = map(span_of, history("L 749 c0 h256 -> 256")[1:2])
    for name in ("trace_id", "error"):
        other = structs.replace(span, attributes={**span.attributes, name: "a" * 32})
        (event,) = JsonDecoder().decoded(otlp_json.spans_to_json_line([other])).events
        assert event == decode.from_span(span)

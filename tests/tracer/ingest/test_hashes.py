"""Block hashes on their way: bytes in both of OTLP's encodings, and in trace files."""

from __future__ import annotations

import json

import pytest
from history import history
from msgspec.structs import replace as changed
from wire import encoded, to_json_line

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import KEYS, Event, PrefixCache, RequestStart
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import decode, otlp_json
from kvtrail.tracer.ingest.otlp_json import JsonDecoder
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder

HASHES = bytes(range(3 * semconv.HASH_BYTES))


def reported() -> list[Event]:
    began = history("L 749 c0 h256 -> 256")[0]
    start = changed(began, block_hashes=HASHES, block_first=2, block_after=b"\xff" * semconv.HASH_BYTES)
    cache = PrefixCache(
        engine=start.engine, recorder=start.recorder, sequence=start.sequence + 1, start_ns=5, end_ns=5,
        cache_changes=(2, -1, 0), block_hashes=HASHES, scheduler_step=7, cache_whole=True,
    )  # fmt: skip
    return [start, cache]


def said(events: list[Event]) -> list[dict[str, object]]:
    return [event.numbers() for event in events]


def test_bytes_go_both_ways_in_both_encodings() -> None:
    payload = encoded(reported())
    binary = ProtobufDecoder().decoded(payload)
    assert (binary.malformed, dict(binary.unknown_attributes)) == ([], {})
    start, cache = binary.events
    assert isinstance(start, RequestStart)
    assert isinstance(cache, PrefixCache)
    assert (start.block_hashes, start.block_first, start.block_after) == (HASHES, 2, b"\xff" * semconv.HASH_BYTES)
    assert (cache.cache_changes, cache.block_hashes, cache.cache_whole) == ((2, -1, 0), HASHES, True)
    line = to_json_line(payload)
    assert said(JsonDecoder().decoded(line).events) == said(binary.events) == said(reported())
    again = otlp_json.spans_to_json_line(ProtobufDecoder().spans(payload))
    assert said(JsonDecoder().decoded(again).events) == said(reported())
    assert "bytesValue" in again


def test_in_the_api_they_are_hexadecimal() -> None:
    numbers = reported()[0].numbers()
    assert numbers["block_hashes"] == HASHES.hex()
    json.dumps(numbers)


def line(span: Span) -> str:
    """The span in a line in which the hashes are text."""
    return otlp_json.spans_to_json_line([span]).replace("bytesValue", "stringValue", 1)


def replaced(span: Span, hashes: str) -> Span:
    attributes = {key: value for key, value in span.attributes.items() if key != KEYS["block_after"]}
    return changed(span, attributes={**attributes, KEYS["block_hashes"]: hashes})


@pytest.mark.parametrize("damage", ["no text", "xyz", ""])
def test_damage_is_no_hash(damage: str) -> None:
    (span, *_) = ProtobufDecoder().spans(encoded(reported()))
    (read,) = JsonDecoder().spans(line(replaced(span, damage)))
    try:
        event = decode.from_span(read)
    except decode.MalformedSpan:
        return
    assert isinstance(event, RequestStart)
    assert not event.block_hashes

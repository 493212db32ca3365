"""Those who read along share one feed, which costs ingest nothing more for each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from history import history
from processes import SLOW_S, Tracer, until
from wire import encoded

from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.serve.api import tail as tails
from kvtrail.tracer.serve.api.tail import Reader, Tail

Start = Callable[..., Tracer]
STORY = history("L 749 c0 h256 -> 256\nA 256")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "EVERY_S", 0.01)


def publish(tail: Tail, *, batches: int, after: int = 0) -> int:
    """Publish this number of batches of the same spans; returns the number of the last span."""
    for number in range(batches):
        tail.publish(after + (number + 1) * len(STORY), len(STORY), encoded(STORY))
    return after + batches * len(STORY)


def read(reader: Reader, last: int) -> list[dict[str, Any]]:
    """What a reader gets until the span of that number: shown, or skipped."""
    seen: list[dict[str, Any]] = []

    def has_come() -> bool:
        for text in reader.texts():
            seen.extend(json.loads(event.partition("data: ")[2]) for event in text.split("\n\n")[:-1])
        return bool(sum(each.get("spans", 1) for each in seen) >= last)

    until(has_come)
    return seen


def test_all_readers_share_one_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    numbered = ProtobufDecoder.numbered

    def counted(self: ProtobufDecoder, data: bytes, *, first: int) -> Any:
        decoded.append(data)
        return numbered(self, data, first=first)

    monkeypatch.setattr(ProtobufDecoder, "numbered", counted)
    tail = Tail()
    with tail.reading() as first, tail.reading() as second:
        last = publish(tail, batches=3)
        assert [each["number"] for each in read(first, last)] == [*range(1, last + 1)]
        assert [each["number"] for each in read(second, last)] == [*range(1, last + 1)]
    assert len(decoded) == 3


def test_nothing_is_kept_without_a_reader() -> None:
    tail = Tail()
    publish(tail, batches=3)
    assert not tail._pending
    with tail.reading() as reader:
        read(reader, publish(tail, batches=1))
        publish(tail, batches=1, after=100)
    assert not tail._pending
    assert not tail._parts
    assert tail.readers == 0


def test_what_is_too_much_is_skipped_and_the_reader_learns_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "MAX_SPANS", 10)
    monkeypatch.setattr(tails, "EVERY_S", 0.5)
    skipped: list[int] = []
    tail = Tail(on_skip=skipped.append)
    with tail.reading() as reader:
        last = publish(tail, batches=20)
        seen = read(reader, last)
    assert sum(each.get("spans", 0) for each in seen) == sum(skipped) > 0
    assert len([each for each in seen if "number" in each]) == last - sum(skipped)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "EVERY_S", 0.5)
    monkeypatch.setattr(tails, "MAX_PENDING_BYTES", 3 * len(encoded(STORY)))
    tail = Tail()
    with tail.reading() as reader:
        publish(tail, batches=1)
        read(reader, len(STORY))
        last = publish(tail, batches=50, after=len(STORY))
        assert len(tail._pending) <= 3
        assert sum(each.get("spans", 1) for each in read(reader, last - len(STORY))) == last - len(STORY)


def test_a_slow_reader_learns_what_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = Tail()
    with tail.reading() as slow, tail.reading() as quick:
        last = publish(tail, batches=1)
        read(slow, last)
        read(quick, last)
        for _ in range(2 * tails.PARTS_KEPT):
            before, last = last, publish(tail, batches=1, after=last)
            read(quick, last - before)
        first, *rest = read(slow, last - len(STORY))
        assert first["spans"] == tails.PARTS_KEPT * len(STORY)
        assert [each["number"] for each in rest] == [*range(last - len(rest) + 1, last + 1)]


def test_one_reader_too_many_is_refused(start_tracer: Start) -> None:
    tracer = start_tracer(limits={"max_readers": 1})
    with httpx.stream("GET", f"{tracer.url}/api/tail", timeout=SLOW_S):
        assert "kvtrail_tail_readers 1.0" in tracer.read("/metrics")
        refusal = httpx.get(f"{tracer.url}/api/tail", timeout=SLOW_S)
        assert (refusal.status_code, "retry-after" in refusal.headers) == (503, True)
    until(lambda: "kvtrail_tail_readers 0.0" in tracer.read("/metrics"))
    assert 'kvtrail_rejected_total{reason="readers",transport="http"} 1.0' in tracer.read("/metrics")

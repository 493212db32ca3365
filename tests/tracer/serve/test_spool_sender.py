"""What a tracer stores reaches ClickHouse: in order, all of it, once, however often either of them dies."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from history import START_NS, history
from processes import until
from stores import FleetTracer, clickhouse, last_number
from traffic import Engine, served

from kvtrail.tracer.serve import spool_sender
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.remote_handoffs import RemoteHandoffs
from kvtrail.tracer.serve.spool_sender import SpoolSender
from kvtrail.tracer.store import Batch, StoreError
from kvtrail.tracer.store.clickhouse.connection import Database
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
from kvtrail.tracer.store.clickhouse.writer import ClickHouseWriter
from kvtrail.tracer.store.handoffs import HandoffRow

S = 10**9
STORY = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend"


def known(reader: ClickHouseReader) -> list[Any]:
    """All that a fleet's api can show."""
    return [
        reader.totals(),
        reader.requests(limit=1000),
        reader.findings(limit=1000),
        sorted(map(str, reader.savings(since_ns=START_NS, until_ns=START_NS + 600 * S))),
        sorted((span.trace_id, span.span_id) for _, span in reader.tail(after=0, limit=100_000)),
    ]


def batches(engine: str, *, seconds: int = 60) -> Iterator[Sequence[Any]]:
    events = served(Engine(engine), from_ns=START_NS, to_ns=START_NS + seconds * S, every_ms=800, stale_every=9)
    for at in range(0, len(events), 40):
        yield events[at : at + 40]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What is known in the end, if nothing goes wrong."""
    tracer = FleetTracer(tmp_path_factory.mktemp("well"), clickhouse())
    for batch in batches("e-1"):
        tracer.hear(batch)
        tracer.send()
    assert tracer.fleet.totals() == tracer.local.totals()
    return known(tracer.fleet)


def test_clickhouse_that_fails_anywhere_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[Any]
) -> None:
    """Every third insert fails, before or after it was done: the answer was lost."""
    dice = random.Random(5)
    insert = Database.insert

    def flaky(self: Database, *arguments: Any) -> None:
        fails = dice.random() < 1 / 3
        if not fails or dice.random() < 0.5:
            insert(self, *arguments)
        if fails:
            raise StoreError("the connection was lost")

    tracer = FleetTracer(tmp_path, clickhouse())
    tracer.sink().close()  # the tables are there
    monkeypatch.setattr(Database, "insert", flaky)
    failures = 0
    for batch in batches("e-1"):
        tracer.hear(batch)
        try:
            tracer.send()
        except StoreError:
            failures += 1
    while True:
        try:
            tracer.send()
            break
        except StoreError:
            failures += 1
    assert failures > 5
    assert known(tracer.fleet) == expected


def test_a_tracer_that_dies_again_and_again(tmp_path: Path, expected: list[Any]) -> None:
    """What was sent and not dropped yet is sent a second time. A copy of the file is what a kill leaves."""
    address = clickhouse()
    tracer = FleetTracer(tmp_path, address)
    for number, batch in enumerate(batches("e-1")):
        tracer.hear(batch)
        if number % 3 == 0:
            tracer.send()
        if number % 5 == 4:
            tracer.writer._spool = None  # so that closing forgets what was confirmed, as a kill does
            tracer.writer.close()
            tracer = FleetTracer(tmp_path, address)
    tracer.send()
    tracer.send()
    assert known(tracer.fleet) == expected


def test_sending_again_under_the_same_numbers_changes_nothing(tmp_path: Path) -> None:
    tracer = FleetTracer(tmp_path, clickhouse())
    for batch in batches("e-1"):
        tracer.hear(batch)
    tracer.pipeline.tidy()
    waiting = tracer.spool.read(after=0, most_bytes=2**40)
    assert len(waiting) > 5
    tracer.sender.send()
    before = known(tracer.fleet)
    again = tracer.sink()  # as after a restart, it must read its own sums
    again.ship(waiting[:3])
    again.ship(waiting)
    assert known(tracer.fleet) == before


def test_two_tracers_and_one_api(tmp_path: Path) -> None:
    address = clickhouse()
    tracers = [FleetTracer(tmp_path / name, address) for name in ("one", "two")]
    for name, tracer in zip(("e-1", "e-2"), tracers, strict=True):
        for batch in batches(name):
            tracer.hear(batch, k8s_pod_name=f"pod-of-{name}")
    for _ in range(2):
        for tracer in tracers:
            tracer.send()
    fleet = tracers[0].fleet
    totals = [tracer.local.totals() for tracer in tracers]
    assert fleet.totals() == {name: totals[0][name] + totals[1][name] for name in totals[0]}
    assert {name: engine["pod"] for name, engine in fleet.engines().items()} == {
        "e-1": "pod-of-e-1",
        "e-2": "pod-of-e-2",
    }
    assert {finding["engine"] for finding in fleet.findings()} == {"e-1", "e-2"}
    rows = fleet.savings(since_ns=START_NS, until_ns=START_NS + 600 * S)
    alone = [row for tracer in tracers for row in tracer.local.savings(since_ns=START_NS, until_ns=START_NS + 600 * S)]
    assert {(r.at_s, r.engine, r.epoch): r.measures for r in rows} == {
        (r.at_s, r.engine, r.epoch): r.measures for r in alone
    }


def test_an_engine_that_moved_to_another_tracer_is_summed_over_both(tmp_path: Path) -> None:
    address = clickhouse()
    tracers = [FleetTracer(tmp_path / name, address) for name in ("one", "two")]
    for number, tracer in enumerate(tracers):
        tracer.hear(history(STORY, request=f"r-{number}-0123abcd", recorder=f"rec-{number}"))
        tracer.send()
    (first, second) = tracers[0].fleet.savings(since_ns=START_NS, until_ns=START_NS + 600 * S)
    assert (first.measures["lookups"], second.measures["lookups"]) == (2, 2)


def test_a_full_spool_drops_the_oldest_and_counts_them(tmp_path: Path) -> None:
    tracer = FleetTracer(tmp_path, clickhouse(), most_bytes=20_000)
    spans = 0
    for batch in batches("e-1"):
        tracer.hear(batch)
        spans += len(batch)
    waiting = tracer.spool.waiting()
    assert waiting.dropped_spans > 0
    assert waiting.bytes <= 20_000
    assert len(tracer.spool.read(after=0, most_bytes=2**40)) == waiting.batches
    tracer.send()
    sent = {(span.trace_id, span.span_id) for _, span in tracer.fleet.tail(after=0, limit=100_000)}
    assert 0 < len(sent) <= last_number(tracer.local) - waiting.dropped_spans
    assert tracer.spool.waiting().batches == 0
    assert tracer.spool.waiting().dropped_spans == waiting.dropped_spans


class Away:
    """A sink that is away until the test says otherwise."""

    def __init__(self) -> None:
        self.is_there = False
        self.numbers: list[int] = []

    def open(self) -> ClickHouseWriter:
        if not self.is_there:
            raise StoreError("cannot open the store: refused")
        return self  # type: ignore[return-value]  # it has the methods that the sender calls

    def ship(self, batches: Sequence[tuple[int, Batch]]) -> Sequence[Exception]:
        if not self.is_there:
            raise StoreError("cannot write to the store: it went away")
        self.numbers += [number for number, _ in batches]
        return ()

    def handoffs(self, keys: Collection[str]) -> Sequence[HandoffRow]:
        return ()

    def close(self) -> None: ...


def test_the_thread_waits_for_clickhouse_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVERY_S", "FIRST_WAIT_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(spool_sender, name, 0.01)
    tracer = FleetTracer(tmp_path, clickhouse())
    sink = Away()
    sender = SpoolSender(tracer.spool, sink.open, RemoteHandoffs(tracer.pipeline))
    metrics = Metrics()
    metrics.watch_spool(tracer.spool)

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"kvtrail_spool_{name}")

    sender.start()
    tracer.hear(history(STORY))
    until(lambda: "refused" in str(sender.trouble))
    assert sender.state()["status"] == sender.trouble
    assert (value("bytes") or 0) > 0
    assert (value("oldest_seconds") or 0) > 0
    sink.is_there = True
    until(lambda: sender.trouble is None and not tracer.spool.waiting().batches)
    sink.is_there = False
    tracer.hear(history(STORY, request="r-2-0123abcd", recorder="rec-2"))
    until(lambda: "went away" in str(sender.trouble))
    sink.is_there = True
    sender.stop(within_s=60)
    assert sink.numbers == sorted(set(sink.numbers))
    assert (value("bytes"), value("dropped_spans_total")) == (0, 0)

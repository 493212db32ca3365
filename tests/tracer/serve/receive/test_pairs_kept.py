"""A pair is judged once, whichever side a sidecar hears before it is started again, and whichever after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from history import heartbeats, history
from msgspec import structs
from pair_stories import EXPIRED, GIVES, TAKES
from wire import encoded

from kvtrail.tracer.events.events import CLASSES, Event
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.handoffs import KINDS
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive import recovery
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.receive.rebuild import rebuild
from kvtrail.tracer.store.handoffs import heard_of
from kvtrail.tracer.store.sqlite import tables
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

STORIES = {
    "well": (GIVES.format(digest="a") + TAKES + "read\nsent", []),
    "crossed": (GIVES.format(digest="b") + TAKES + "read\nsent", ["handoff-mismatch"]),
    "stale": (
        GIVES.format(digest="a") + EXPIRED + TAKES + "read",
        ["stale-handoff", "stale-handoff"],
    ),
    "second": (
        GIVES.format(digest="a") + TAKES + TAKES.replace("<d> ", "<d> b: ") + "read\nsent",
        ["duplicate-load"],
    ),
}


def sides(text: str) -> tuple[list[Event], list[Event]]:
    """What the engine that prefills and the other one record."""
    events = history(text, connector="NixlConnector")
    return [each for each in events if each.engine != "d"], [each for each in events if each.engine == "d"]


def cuts(text: str) -> Iterator[tuple[list[Event], list[Event]]]:
    """Both orders of the sides, and their own; each place before an event of the hand-off where a sidecar may start again,
    as what it hears before and after."""
    for order in (sides(text), sides(text)[::-1], (history(text, connector="NixlConnector"), [])):
        events = [*order[0], *order[1]]
        places = [place for place, each in enumerate(events) if place and each.kind in KINDS - {Kind.HEARTBEAT}]
        yield from ((events[:place], events[place:]) for place in places)


def heard(pipeline: Pipeline, events: list[Event]) -> None:
    for _, some in groupby(events, key=lambda event: event.recorder):
        pipeline.ingest(encoded(list(some)), transport="grpc")
    pipeline.judge.settle()


@pytest.mark.parametrize("story", STORIES)
def test_a_pair_that_a_restart_divides_is_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: str
) -> None:
    """Of what was before it, the spans of ended requests are not read back."""
    monkeypatch.setattr(recovery, "RECALLED", 0)
    text, rules = STORIES[story]
    for number, (before, after) in enumerate(cuts(text)):
        path = tmp_path / f"{number}.db"
        metrics = []
        for events in (before, after):
            metrics.append(Metrics())
            pipeline = Pipeline(SqliteWriter(path), metrics[-1], grace_ns=0)
            heard(pipeline, events)
            pipeline.close()
        found = SqliteReader(path).findings()
        named = f"{story}, started again before {after[0].engine} {after[0].kind}"
        assert [(each["rule"], each["count"]) for each in found] == [(rule, 1) for rule in rules], named
        counted = sum(_counted(each) for each in metrics)
        assert counted == len(rules), named
        verdicts = {row["findings"] for row in SqliteReader(path).requests() if row["verdict"] == "drift"}
        assert verdicts == ({1} if rules else set()), named
        if number % 5:
            continue
        rebuild(path)
        again = SqliteReader(path).findings()
        assert [(each["rule"], each["count"]) for each in again] == [(rule, 1) for rule in rules], named


def _counted(metrics: Metrics) -> float:
    return sum(
        sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "kvtrail_findings_total"
    )


def test_a_report_that_is_waited_for_is_waited_for_after_a_restart(tmp_path: Path) -> None:
    text = GIVES.format(digest="a") + TAKES + "wait 30\nfreed expired\nsent"
    events = history(text, connector="NixlConnector")
    later = heartbeats(events, later_s=30)
    path = tmp_path / "s.db"
    for some in (events, later):
        pipeline = Pipeline(SqliteWriter(path), Metrics(), grace_ns=0)
        heard(pipeline, some)
        pipeline.close()
    assert [each["rule"] for each in SqliteReader(path).findings()] == ["unacknowledged-handoff"]


def test_only_the_recent_hand_offs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "HANDOFFS", replace(tables.HANDOFFS, most=5))
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), grace_ns=0)
    heard(pipeline, history("\n".join(f"r{n}: start 9\nr{n}: gives h{n} 9/9 of a" for n in range(9))))
    pipeline.close()
    writer = SqliteWriter(tmp_path / "s.db")
    list(writer.prune(before_ns=0))
    kept = [each.keys for each in heard_of(writer.handoffs())]
    writer.close()
    assert kept == [(f"transfer_id:h{n}",) for n in range(4, 9)]


def test_what_is_kept_of_an_event_is_the_event(tmp_path: Path) -> None:
    text, _ = STORIES["stale"]
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), grace_ns=0)
    entered: list[Event] = []
    listener = pipeline.detector._pairs._listener
    assert listener is not None

    def listened(heard_: object) -> None:
        entered.append(heard_.event)  # type: ignore[attr-defined]
        listener(heard_)  # type: ignore[arg-type]

    pipeline.detector._pairs._listener = listened
    heard(pipeline, history(text + "\nwait 5", connector="NixlConnector"))
    pipeline.storage.write_changes()
    pipeline.close()
    writer = SqliteWriter(tmp_path / "s.db")
    kept = [each.event for each in heard_of(writer.handoffs())]
    writer.close()
    assert kept == entered
    assert {each.kind for each in kept} >= KINDS - {Kind.HEARTBEAT, Kind.LOAD_ERROR, Kind.REQUEST, Kind.XFER}
    assert all(type(each) is CLASSES[each.kind] for each in kept)
    assert structs.asdict(kept[0])

"""What was computed although a cache had held it, as a tracer's own file and ClickHouse have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evicted_story import ABOUT, CHUNK, STORY
from history import START_NS, history
from stores import FleetTracer, clickhouse
from wire import encoded

from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.savings.waste import WasteFilter, WasteSum
from kvtrail.tracer.store.reader import Reader
from kvtrail.tracer.store.sqlite.store import SqliteReader

S = 10**9
EVER = WasteFilter(since_ns=0, until_ns=2**62)
RED, BLUE = "5a17c0ffee5a17c0", "b10eb10eb10eb10e"


def feed(tracer: FleetTracer, engine: str, *, tenant: str = "") -> None:
    story = STORY.replace("b: start 120 of", f"b: start 120 as {tenant} of") if tenant else STORY
    tracer.pipeline.ingest(
        encoded(history(story, chunk=CHUNK, engine=engine, recorder=engine), ABOUT), transport="grpc"
    )


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> FleetTracer:
    made = FleetTracer(tmp_path_factory.mktemp("tracer"), clickhouse())
    for engine, tenant in (("one", ""), ("two", RED), ("three", RED), ("four", BLUE)):
        feed(made, engine, tenant=tenant)
    made.send()
    return made


@pytest.fixture(scope="module", params=["own", "fleet"])
def reader(request: pytest.FixtureRequest, tracer: FleetTracer) -> Reader:
    return tracer.local if request.param == "own" else tracer.fleet


def by(reader: Reader, *labels: By, which: WasteFilter = EVER, limit: int = 100) -> dict[tuple[str, ...], int]:
    return {each.of: each.tokens for each in reader.wasted(labels, which, limit=limit)}


def test_it_is_summed_up_by_any_labels_the_most_first(reader: Reader) -> None:
    assert by(reader, By.TENANT) == {(RED,): 64, (BLUE,): 32, ("plain",): 32}
    assert [each.of for each in reader.wasted([By.TENANT], EVER, limit=2)] == [(RED,), (BLUE,)]
    assert by(reader, By.CAUSE, By.TIER) == {("evicted", "store"): 128}
    (prefix,) = reader.wasted([By.PREFIX], EVER, limit=100)
    assert (prefix.tokens, prefix.admissions, prefix.start) == (128, 4, 64)
    assert len(prefix.of[0]) == 16
    assert START_NS < prefix.last_ns < START_NS + S


@pytest.mark.parametrize(
    ("given", "engines"),
    [
        ({"engines": ["two"]}, {"two"}), ({"tenant": RED}, {"two", "three"}), ({"engines": ["one", "four"]}, {"one", "four"}),
        ({"engines": []}, set()), ({"cause": "reset"}, set()), ({"cause": "evicted"}, {"one", "two", "three", "four"}),
        ({"since_ns": START_NS + S}, set()), ({"until_ns": START_NS}, set()), ({"prefixes": ["0" * 16]}, set()),
    ],
)  # fmt: skip
def test_a_filter_selects_it(reader: Reader, given: dict[str, Any], engines: set[str]) -> None:
    assert {of[0] for of in by(reader, By.ENGINE, which=replace(EVER, **given))} == engines


def test_the_latest_rows_of_a_range_begin_somewhere(reader: Reader) -> None:
    assert reader.wasted_from(EVER, limit=4) == EVER.since_ns
    begin_ns = reader.wasted_from(EVER, limit=2)
    assert START_NS < begin_ns < START_NS + S


def test_nothing_counts_twice_however_often_it_is_sent_or_judged(tmp_path: Path, tracer: FleetTracer) -> None:
    def sums(of: Reader) -> list[WasteSum]:
        return of.wasted([By.ENGINE, By.REQUEST], EVER, limit=100)

    before = sums(tracer.local)
    tracer.writer.forget_derived()
    assert sums(tracer.local) == []
    again = FleetTracer(tmp_path, clickhouse())
    questions: list[Callable[[], Reader]] = [lambda: again.local, lambda: again.fleet]
    for engine in ("one", "one"):
        feed(again, engine)
        again.send()
    for question in questions:
        assert sums(question()) == [each for each in before if each.of[0] == "one"]


def test_it_leaves_with_the_requests(tmp_path: Path) -> None:
    made = FleetTracer(tmp_path, clickhouse())
    feed(made, "one")
    made.pipeline.storage.write_rows()
    assert by(made.local, By.ENGINE)
    for _ in made.writer.prune(before_ns=START_NS + S):
        pass
    assert by(SqliteReader(made.path), By.ENGINE) == {}

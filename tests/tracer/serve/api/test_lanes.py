"""The window query of the live view: what overlaps is found, a sample is fair and keeps every finding."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from history import START_NS, history
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from processes import SLOW_S, Tracer
from wire import as_request, encoded

from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.lanes import Lane, Segment, Window, segments
from kvtrail.tracer.ledger.phases import Phase
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import Batch
from kvtrail.tracer.store.request_rows import row_of
from kvtrail.tracer.store.sqlite import lanes, log, measures, requests
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

S = 10**9


def lane(number: int, begin_s: float, lasts_s: float | None, **changed: Any) -> Lane:
    begun_ns = int(begin_s * S)
    ended_ns = None if lasts_s is None else begun_ns + int(lasts_s * S)
    fields: dict[str, Any] = {
        "request": f"r-{number}", "engine": "e", "external": f"x-{number}", "connector": "C", "status": "finished",
        "verdict": "ok", "findings": 0, "complete": True, "started_ns": begun_ns, "last_ns": ended_ns or begun_ns,
        "ended_ns": ended_ns, "changes": (0, 0, 8, 1), "transfers": (),
    }  # fmt: skip
    return Lane(**{**fields, **changed})


def account(lane: Lane) -> dict[str, Any]:
    """A lane never comes without its request's account, by which its ids are found."""
    source = Account(engine=lane.engine, request=lane.request, external=lane.external, status=lane.status)
    source.connector = lane.connector
    source.started_ns, source.last_ns, source.ended_ns = lane.started_ns, lane.last_ns, lane.ended_ns
    return {**source.as_dict(), "verdict": lane.verdict, "findings": lane.findings}


@pytest.fixture
def put(tmp_path: Path) -> Iterator[Callable[..., SqliteReader]]:
    writer = SqliteWriter(tmp_path / "s.db")

    def write(*lanes: Lane) -> SqliteReader:
        writer.write(Batch(requests=[row_of(account(lane), lane) for lane in lanes]))
        return SqliteReader(tmp_path / "s.db")

    yield write
    writer.close()


def found(
    reader: SqliteReader, begin_s: float, end_s: float, *, live: tuple[str, ...] = (), **wanted: Any
) -> list[str]:
    window = Window(from_ns=int(begin_s * S), to_ns=int(end_s * S), **wanted)
    return [lane.request for lane in reader.lanes(window, live=live).lanes]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 10_000), st.floats(0, 20_000)), max_size=30),
    st.floats(0, 12_000),
    st.floats(0.001, 3000),
)
def test_exactly_what_overlaps_is_found(source: list[tuple[float, float]], begin: float, width: float) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    for statement in (*log.SCHEMA, *requests.SCHEMA, *measures.SCHEMA):
        db.execute(statement)
    held = [lane(n, at, lasts) for n, (at, lasts) in enumerate(source)]
    requests.put(db, [row_of(account(each), each) for each in held])
    window = Window(from_ns=int(begin * S), to_ns=int((begin + width) * S))
    expected = {x.request for x in held if x.started_ns <= window.to_ns and x.last_ns >= window.from_ns}
    answer = lanes.LaneReader(Path("read through another connection"))._lanes(db, window, [])
    assert {x.request for x in answer.lanes} == expected
    assert (answer.known, answer.is_sample, answer.is_whole) == (len(expected), False, True)


def test_a_request_that_goes_on_is_found_though_it_said_nothing_for_long(put: Callable[..., SqliteReader]) -> None:
    reader = put(lane(1, 100, None), lane(2, 100, None, engine="dead"), lane(3, 5000, None))
    assert found(reader, 900, 1000, live=("e",)) == ["r-1"]
    assert found(reader, 90, 200) == ["r-1", "r-2"]


def test_a_lane_that_is_written_again_is_the_same_lane(put: Callable[..., SqliteReader]) -> None:
    put(lane(1, 100, None))
    reader = put(lane(1, 100, 50, status="finished"))
    assert found(reader, 140, 145) == ["r-1"]
    assert found(reader, 160, 165, live=("e",)) == []


def test_filters_fit_a_part_of_either_id_and_the_whole_of_the_rest(put: Callable[..., SqliteReader]) -> None:
    reader = put(lane(1, 0, 1), lane(2, 0, 1, engine="f"), lane(3, 0, 1, status="failed"), lane(4, 0, 1, connector="D"))
    assert found(reader, 0, 1, search="r-2") == ["r-2"]
    assert found(reader, 0, 1, search="x-3") == ["r-3"]
    assert found(reader, 0, 1, search="%") == []
    assert found(reader, 0, 1, engines=["f"]) == ["r-2"]
    assert found(reader, 0, 1, status="failed") == ["r-3"]


@pytest.mark.parametrize("search", ["r-", "x-1", "r-77", "r-1234", "77", "nobody"])
def test_a_search_shows_the_lanes_that_it_fits(put: Callable[..., SqliteReader], search: str) -> None:
    dice = random.Random(5)
    many = [lane(n, dice.uniform(0, 1000), dice.uniform(0, 30), findings=int(n % 50 == 0)) for n in range(3000)]
    many[::60] = [replace(each, status="failed") for each in many[::60]]
    reader = put(*many, lane(3001, 10, None), lane(3002, 10, None, engine="silent"))
    for window in (
        Window(from_ns=0, to_ns=1000 * S, search=search, limit=40),
        Window(from_ns=500 * S, to_ns=600 * S, search=search, engines=["e"]),
        Window(from_ns=0, to_ns=1000 * S, search=search, status="failed", limit=40),
    ):
        looked_up = reader.lanes(window, live=("e",))
        fits = {x.request for x in many if search in x.request or search in x.external}
        assert {x.request for x in looked_up.lanes} <= fits | {"r-3001", "r-3002"}


def test_a_sample_is_fair_the_same_each_time_and_holds_every_finding(put: Callable[..., SqliteReader]) -> None:
    dice = random.Random(3)
    many = [lane(n, dice.uniform(0, 1000), dice.uniform(0, 30), findings=int(n % 400 == 0)) for n in range(4000)]
    reader = put(*many)
    window = Window(from_ns=0, to_ns=1000 * S, limit=300)
    answer = reader.lanes(window, live=())
    assert len(answer.lanes) <= 300
    assert (answer.is_sample, answer.has_all_findings) == (True, True)
    shown = {x.request for x in answer.lanes}
    assert {x.request for x in many if x.findings} <= shown
    assert 0.7 < answer.known / 4000 < 1.4
    halves = sum(x.started_ns < 500 * S for x in answer.lanes) / len(answer.lanes)
    assert 0.35 < halves < 0.65, "from all of the window"
    assert {x.request for x in reader.lanes(window, live=()).lanes} == shown


def test_too_many_findings_are_a_sample_as_well_and_leave_room(put: Callable[..., SqliteReader]) -> None:
    reader = put(*(lane(n, n % 100, 1, findings=int(n % 2)) for n in range(4000)))
    answer = reader.lanes(Window(from_ns=0, to_ns=1000 * S, limit=200), live=())
    with_findings = sum(x.findings > 0 for x in answer.lanes)
    assert 40 < with_findings <= 100
    assert len(answer.lanes) - with_findings > 40
    assert (answer.is_sample, answer.has_all_findings) == (True, False)
    assert 0.5 < answer.known / 4000 < 2


def test_what_takes_too_long_is_given_up_and_said(
    put: Callable[..., SqliteReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = put(*(lane(n, 0, 1) for n in range(20_000)))
    monkeypatch.setattr(lanes, "BUDGET_S", -1.0)
    answer = reader.lanes(Window(from_ns=0, to_ns=S, engines=["none"]), live=())
    assert not answer.is_whole


def test_old_lanes_leave_with_their_requests(tmp_path: Path) -> None:
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics())
    pipeline.ingest(encoded(history("L 100 c0 h0 -> 0\nend", request="old-0123abcd")), transport="grpc")
    reader = SqliteReader(tmp_path / "s.db")
    window = Window(from_ns=START_NS - S, to_ns=START_NS + S)
    assert [x.external for x in reader.lanes(window, live=()).lanes] == ["old"]
    pipeline.storage.prune(retain_ns=3600 * S)
    assert reader.lanes(window, live=()).lanes == []
    pipeline.close()


def drawn(source: Lane, *, width_s: float = 100, finest_us: float = 0, until_s: float = 0) -> list[Segment]:
    window = Window(from_ns=0, to_ns=int(width_s * S))
    return segments(source, window=window, until_ns=int(until_s * S) or source.last_ns, finest_us=finest_us)


def test_a_lane_is_cut_into_its_phases_and_the_last_goes_on() -> None:
    source = lane(1, 10, None, changes=(0, 0, 4, 1_000_000, 5, 3_000_000), transfers=(7, 2_000_000, 2_500_000))
    assert drawn(source, until_s=20) == [
        Segment(Phase.QUEUED, 10_000_000, 11_000_000),
        Segment(Phase.PREFILL, 11_000_000, 13_000_000),
        Segment(Phase.DECODE, 13_000_000, 20_000_000),
        Segment(Phase.STORE, 12_000_000, 12_500_000),
    ]
    assert [s.phase for s in drawn(source, width_s=12, until_s=20)] == [Phase.QUEUED, Phase.PREFILL, Phase.STORE]
    assert drawn(lane(1, 10, 5, changes=())) == [], "only workers have recorded it"
    assert drawn(lane(1, 10, 5, changes=(0, 0, 8, 5_000_000))) == [Segment(Phase.QUEUED, 10_000_000, 15_000_000)]


def test_what_is_too_fine_to_see_is_drawn_together() -> None:
    fine = tuple(n for k in range(500) for n in (k % 2 * 5, k * 1000))
    source = lane(1, 0, 60, changes=(*fine, 4, 500_000))
    coarse = drawn(source, finest_us=100_000)
    assert len(coarse) < 10
    assert coarse[-1].phase is Phase.PREFILL
    assert (coarse[0].begin_us, coarse[-1].end_us) == (0, 60_000_000)
    assert all(a.end_us <= b.begin_us for a, b in pairwise(coarse))


STORY = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nA 256 !Mismatch"


def send(tracer: Tracer, events: Any) -> None:
    headers = {"content-type": "application/x-protobuf"}
    body = as_request(events).SerializeToString()
    httpx.post(f"{tracer.url}/v1/traces", content=body, headers=headers, timeout=SLOW_S).raise_for_status()


def test_the_api_gives_columns_marks_and_gaps(start_tracer: Callable[..., Tracer]) -> None:
    tracer = start_tracer()
    send(tracer, history(STORY, request="story-0123abcd", recorder="one", engine="first"))
    sound = STORY.replace("-> 256 cached", "-> 0").replace(" !Mismatch", "")
    other = history(sound, request="other-0123abcd", recorder="two", engine="second")
    send(tracer, [*other[:2], *other[4:]])
    about = {"from_ns": START_NS - S, "to_ns": START_NS + S}
    got = tracer.get("/api/lanes", **about)
    assert sorted(got["requests"]["external"]) == ["other", "story"]
    lengths = {len(column) for column in got["requests"].values()}
    assert lengths == {2}
    assert len({len(column) for column in got["segments"].values()}) == 1
    story = got["requests"]["external"].index("story")
    close = tracer.get("/api/lanes", from_ns=START_NS - S // 500, to_ns=START_NS + S // 100)
    mine = [
        close["phases"][p]
        for p, at in zip(close["segments"]["phase"], close["segments"]["lane"], strict=True)
        if close["requests"]["external"][at] == "story"
    ]
    assert mine[:2] == ["queued", "lookup"]
    assert "preempted" in mine
    assert got["marks"]["rule"] == ["stale-lookup"]
    assert got["marks"]["lane"] == [story]
    assert got["marks"]["at_us"] == [1_005_000]
    assert got["marks"]["known"] == [None]
    assert got["gaps"]["engine"] == ["second"]
    assert got["gaps"]["missing"] == [2]
    assert (got["gaps"]["begin_us"], got["gaps"]["end_us"]) == ([1_001_010], [1_004_010])
    assert got["engines"] == ["first", "second"]
    assert (got["known"], got["is_sample"], got["is_whole"]) == (2, False, True)

    one = tracer.get("/api/lanes", **about, engine="first", q="sto")
    assert one["requests"]["external"] == ["story"]
    none = tracer.get("/api/lanes", from_ns=1, to_ns=2)
    assert none["requests"]["request"] == none["marks"]["rule"] == none["gaps"]["engine"] == []


def test_what_may_have_ended_unheard_is_not_drawn_as_going_on(start_tracer: Callable[..., Tracer]) -> None:
    tracer = start_tracer()
    shift_ns = time.time_ns() - S - START_NS
    events = history("L 100 c0 h0 -> 0\nA 0\nS 0+100\nend\nb: L 9 c0 h0 -> 0\nb: A 0", request="r-0123abcd")
    for event in events:
        event.start_ns += shift_ns
        event.end_ns += shift_ns
    send(tracer, [event for event in events if event.kind != "kv.request"])
    now_ns = time.time_ns()
    got = tracer.get("/api/lanes", from_ns=now_ns - 10 * S, to_ns=now_ns)
    by_name = {name: n for n, name in enumerate(got["requests"]["external"])}
    assert got["requests"]["is_open"] == [True, True]
    assert got["requests"]["is_unsure"][by_name["r"]] is True
    assert got["requests"]["is_unsure"][by_name["b-r"]] is False
    assert got["requests"]["end_us"][by_name["r"]] < got["requests"]["end_us"][by_name["b-r"]]


def test_a_request_without_its_beginning_has_no_lane_before_it_is_given_up(tmp_path: Path) -> None:
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), grace_ns=0)
    pipeline.ingest(encoded(history("L 100 c0 h0 -> 0\nA 0")[1:]), transport="grpc")
    reader = SqliteReader(tmp_path / "s.db")
    window = Window(from_ns=0, to_ns=START_NS + S)
    assert reader.lanes(window, live=["engine"]).lanes == []
    pipeline.tidy()
    (source,) = reader.lanes(window, live=["engine"]).lanes
    assert (source.started_ns // S, source.complete) == (START_NS // S, False)
    pipeline.close()


@pytest.mark.parametrize(
    "query", ["from_ns=5&to_ns=5", "from_ns=5&to_ns=4", "from_ns=0&to_ns=9000000000000000000", "to_ns=1"]
)
def test_windows_that_are_none_are_refused(api: Tracer, query: str) -> None:
    assert httpx.get(f"{api.url}/api/lanes?{query}", timeout=SLOW_S).status_code == 422

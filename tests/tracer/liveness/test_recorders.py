"""Which recorders run, which are silent, and why others are not: goodbyes, rollouts, and time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks import Clock, turnable
from counting import instructions
from fastapi.testclient import TestClient
from history import heartbeats, history
from msgspec.structs import replace
from wire import encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event, Heartbeat, Reset
from kvtrail.tracer.liveness import recorders
from kvtrail.tracer.liveness.engine import CONTACT_NS
from kvtrail.tracer.liveness.recorders import (
    FORGET_CLOSED_NS,
    FORGET_SILENT_NS,
    OVERLAP_NS,
    TERMINATED_NS,
    Contact,
    Recorders,
    RecorderState,
)
from kvtrail.tracer.serve.api import routes
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

S = 10**9


class Fleet:
    """Recorders that are heard from, or not, as time passes."""

    def __init__(self) -> None:
        self.recorders = Recorders()
        self.numbers: dict[str, int] = {}
        self.at_ns = 0

    def hear(
        self,
        *names: str,
        goodbye: bool = False,
        engine: str = "",
        first: int = 0,
        service: str = "vllm",
        model: str = "m",
    ) -> None:
        """A heartbeat of each."""
        for name in names:
            number = self.numbers[name] = self.numbers.get(name, first - 1) + 1
            where = engine or f"engine of {name}"
            beat = Heartbeat(
                engine=where,
                recorder=name,
                sequence=number,
                start_ns=1,
                end_ns=1,
                recorder_closed=goodbye,
                connector="",
            )
            if (state := self.recorders.get(name)) is None:
                resource = {"service.name": service, semconv.MODEL.key: model}
                state = RecorderState.of(beat, resource, at_ns=self.at_ns)
                self.recorders.add(state)
            state.count([beat], heard_ns=self.at_ns, at_ns=self.at_ns)

    def say(self, name: str, *, engine: str = "") -> None:
        """Anything but a heartbeat."""
        number = self.numbers[name] = self.numbers.get(name, -1) + 1
        event = Reset(engine=engine or f"engine of {name}", recorder=name, sequence=number, start_ns=1, end_ns=1)
        if (state := self.recorders.get(name)) is None:
            state = RecorderState.of(event, {}, at_ns=self.at_ns)
            self.recorders.add(state)
        state.count([event], heard_ns=self.at_ns, at_ns=self.at_ns)

    def wait(self, ns: int, *alive: str) -> list[str]:
        """Time passes, in which some are heard from; returns the ids of those that are forgotten."""
        gone = []
        until_ns = self.at_ns + ns
        while self.at_ns < until_ns:
            self.at_ns = min(until_ns, self.at_ns + 20 * S)
            self.hear(*alive)
            gone += [recorder.id for recorder in self.recorders.update(at_ns=self.at_ns)]
        return gone

    def __getitem__(self, name: str) -> str:
        state = self.recorders.get(name)
        return "forgotten" if state is None else state.contact


def test_a_recorder_costs_the_same_in_a_large_fleet_of_which_half_is_silent() -> None:
    def looked(each: int) -> int:
        fleet, goes_on = Fleet(), [f"on-{number}" for number in range(each)]
        fleet.hear(*goes_on, *(f"gone-{number}" for number in range(each)))
        fleet.wait(CONTACT_NS + S, *goes_on)
        assert {fleet[f"gone-{number}"] for number in range(each)} == {Contact.LOST}
        return instructions(lambda: fleet.recorders.update(at_ns=fleet.at_ns))

    assert looked(200) < 5 * looked(50)


def test_a_recorder_without_contact_is_silent_then_terminated_then_forgotten() -> None:
    fleet = Fleet()
    fleet.hear("a")
    assert fleet["a"] == Contact.RUNNING
    fleet.wait(CONTACT_NS)
    assert fleet["a"] == Contact.RUNNING
    fleet.wait(S)
    assert fleet["a"] == Contact.LOST
    fleet.wait(TERMINATED_NS)
    assert fleet["a"] == Contact.TERMINATED
    fleet.hear("a")
    assert fleet["a"] == Contact.RUNNING, "it was the network"
    assert fleet.wait(FORGET_SILENT_NS + S) == ["a"]
    assert fleet["a"] == "forgotten"


def test_a_recorder_that_never_sent_a_heartbeat_is_quiet_and_not_silent() -> None:
    """It does not know that a kvtrail hears it, behind a Collector. An idle one must cause no alarm."""
    fleet = Fleet()
    fleet.say("a")
    fleet.wait(CONTACT_NS + S)
    assert fleet["a"] == Contact.QUIET
    fleet.wait(TERMINATED_NS)
    assert fleet["a"] == Contact.QUIET
    fleet.say("a")
    assert fleet["a"] == Contact.RUNNING
    fleet.hear("a", goodbye=True)
    assert fleet["a"] == Contact.CLOSED


def test_a_quiet_recorder_is_terminated_after_the_goodbye_of_its_engine() -> None:
    fleet = Fleet()
    fleet.say("worker", engine="e")
    fleet.hear("scheduler", engine="e", goodbye=True)
    fleet.wait(CONTACT_NS + S)
    assert fleet["worker"] == Contact.TERMINATED


def test_a_goodbye_is_no_silence_and_is_forgotten_after_a_minute() -> None:
    fleet = Fleet()
    fleet.hear("a", "b")
    fleet.hear("a", goodbye=True)
    assert fleet["a"] == Contact.CLOSED
    assert fleet.wait(FORGET_CLOSED_NS + S, "b") == ["a"]
    assert fleet["b"] == Contact.RUNNING


def test_a_heartbeat_after_the_goodbye_does_not_undo_it() -> None:
    fleet = Fleet()
    fleet.hear("a", goodbye=True)
    fleet.hear("a")
    assert fleet["a"] == Contact.CLOSED


def test_workers_that_are_killed_after_their_engines_goodbye_are_terminated() -> None:
    fleet = Fleet()
    fleet.hear("scheduler", "worker", engine="e")
    fleet.hear("scheduler", engine="e", goodbye=True)
    fleet.wait(CONTACT_NS + S)
    assert fleet["worker"] == Contact.TERMINATED
    fleet.wait(FORGET_SILENT_NS)
    assert not fleet.recorders.values()


def test_an_engine_that_starts_again_under_its_id_replaces_itself() -> None:
    fleet = Fleet()
    fleet.hear("old", engine="e")
    fleet.wait(10 * S)
    fleet.hear("new", engine="e")
    fleet.wait(CONTACT_NS, "new")
    assert (fleet["old"], fleet["new"]) == (Contact.TERMINATED, Contact.RUNNING)


@pytest.mark.parametrize("before_s", [300, 0, -20])
def test_in_a_rollout_the_old_engine_is_replaced_by_the_new_one(before_s: int) -> None:
    """The new one begins before the old one is killed, or after."""
    fleet = Fleet()
    fleet.hear("old")
    fleet.wait(1000 * S, "old")
    if before_s > 0:
        fleet.hear("new")
        fleet.wait(before_s * S, "old", "new")
    else:
        fleet.wait(-before_s * S + 1)
        fleet.hear("new")
    fleet.wait(CONTACT_NS + S, "new")
    assert fleet["old"] == Contact.TERMINATED
    fleet.hear("new", goodbye=True)
    fleet.wait(FORGET_CLOSED_NS + CONTACT_NS)
    assert fleet["old"] == Contact.TERMINATED, "also when the new one has left"


@pytest.mark.parametrize(
    "other", [{"service": "another"}, {"model": "another"}, {"first": 7}], ids=["service", "model", "joined late"]
)
def test_another_engine_explains_nothing(other: dict[str, str | int]) -> None:
    """One of another service or model; one that this sidecar has just met, but that did not just begin."""
    fleet = Fleet()
    fleet.hear("old")
    fleet.wait(60 * S, "old")
    fleet.hear("other", **other)  # type: ignore[arg-type]
    fleet.wait(CONTACT_NS + S, "other")
    assert fleet["old"] == Contact.LOST


def test_an_engine_that_has_long_been_there_explains_nothing() -> None:
    fleet = Fleet()
    fleet.hear("old")
    fleet.wait(S, "old")
    fleet.hear("twin")
    fleet.wait(OVERLAP_NS + 10 * S, "old", "twin")
    fleet.wait(CONTACT_NS + S, "twin")
    assert fleet["old"] == Contact.LOST


def test_one_new_engine_replaces_one() -> None:
    fleet = Fleet()
    fleet.hear("one", "two")
    fleet.wait(100 * S, "one", "two")
    fleet.hear("new")
    fleet.wait(CONTACT_NS + S, "new")
    assert sorted((fleet["one"], fleet["two"])) == [Contact.LOST, Contact.TERMINATED]


def test_recorders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "MAX_RECORDERS", 10)
    fleet = Fleet()
    for number in range(15):
        fleet.hear(f"r{number}")
        fleet.wait(S)
    assert {recorder.id for recorder in fleet.recorders.values()} == {f"r{number}" for number in range(5, 15)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return turnable(monkeypatch)


@pytest.fixture
def pipeline(tmp_path: Path, clock: Clock) -> Iterator[Pipeline]:
    made = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), grace_ns=0)
    yield made
    made.close()


def life(name: str, *, goodbye: bool, text: str = "L 749 c0 h0 -> 0\nA 0") -> list[Event]:
    """An engine that lived for a moment."""
    events = history(text, request=f"{name}-0123abcd", recorder=f"rec-{name}", engine=f"engine-{name}")
    (beat,) = heartbeats(events, later_s=1)
    assert isinstance(beat, Heartbeat)
    return [*events, replace(beat, recorder_closed=goodbye)]


@pytest.mark.usefixtures("forgets_at_once")
@pytest.mark.parametrize("goodbye", [True, False])
def test_engines_that_left_leave_nothing_behind(
    pipeline: Pipeline, clock: Clock, tmp_path: Path, goodbye: bool
) -> None:
    for number in range(20):
        pipeline.ingest(encoded(life(str(number), goodbye=goodbye)), transport="grpc")
    clock.ahead_ns += FORGET_SILENT_NS + S
    pipeline.ingest(encoded(life("here", goodbye=False)), transport="grpc")
    pipeline.tidy()
    pipeline.tidy()
    assert [recorder.engine for recorder in pipeline.recorders.values()] == ["engine-here"]
    assert list(pipeline.detector.accounts) == [("engine-here", "here-0123abcd")]
    assert len(pipeline.detector._recorders) == 1
    stored = {row["engine"]: row["status"] for row in SqliteReader(tmp_path / "s.db").requests()}
    assert stored.pop("engine-here") == "admitted"
    assert set(stored.values()) == {"abandoned"}
    outcomes = {row.outcome for row in SqliteReader(tmp_path / "s.db").requests() if row["engine"] in stored}
    assert outcomes == {semconv.CUT_OFF if goodbye else semconv.LOST_CONTACT}


def test_an_engine_that_left_is_shown_until_prometheus_has_read_it(pipeline: Pipeline, clock: Clock) -> None:
    pipeline.ingest(encoded(life("a", goodbye=True)), transport="grpc")
    pipeline.tidy()
    clock.ahead_ns += FORGET_CLOSED_NS + S
    pipeline.tidy()
    assert not pipeline.recorders.values()
    pipeline.tidy()
    value = pipeline.metrics.registry.get_sample_value
    assert value("kvtrail_engine_recorders", {"engine": "engine-a"}) == 0
    assert value("kvtrail_events_received_total", {"engine": "engine-a"}) == 4
    assert value("kvtrail_open_loads", {"engine": "engine-a"}) == 0


def test_the_api_names_a_bounded_number_of_recorders_and_engines(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_ROWS", 3)
    lossy = life("lossy", goodbye=False)
    pipeline.ingest(encoded([*lossy[:1], *lossy[2:]]), transport="grpc")
    for number in range(10):
        pipeline.ingest(encoded(life(str(number), goodbye=number % 2 == 0)), transport="grpc")
    reader = SqliteReader(tmp_path / "s.db")
    client = TestClient(application(pipeline, reader, pipeline.metrics))
    health = client.get("/api/health").json()
    assert [each["engine"] for each in health["recorders"]] == ["engine-lossy", "engine-9", "engine-8"]
    assert [each["status"] for each in health["recorders"]] == ["running", "running", "closed"]
    fleet = client.get("/api/fleet").json()
    assert [each["engine"] for each in fleet["engines"]] == ["engine-8", "engine-9", "engine-lossy"]
    assert fleet["known"] == 11


def test_what_recorders_could_not_record_is_in_the_api(pipeline: Pipeline, tmp_path: Path) -> None:
    events = life("a", goodbye=False)
    (beat, *_) = heartbeats(events, later_s=5)
    odd = ("kv.lookup:3", "probe.keys:100", "no number")
    reported = replace(beat, recorder_unrecorded=odd, recorder_probes_off=("Some",))  # type: ignore[call-arg]
    pipeline.ingest(encoded([*events, reported]), transport="grpc")
    pipeline.tidy()
    client = TestClient(application(pipeline, SqliteReader(tmp_path / "s.db"), pipeline.metrics))
    (recorder,) = client.get("/api/health").json()["recorders"]
    assert recorder["unrecorded"] == {"kv.lookup": 3, "probe.keys": 100}
    assert recorder["probes_off"] == ["Some"]


def test_the_memory_that_is_held_is_in_the_api(pipeline: Pipeline, tmp_path: Path) -> None:
    """The latest that a recorder knows; what is unknown has no series."""

    def beats(name: str, *held: int | None) -> list[Event]:
        events = life(name, goodbye=False)
        signs = heartbeats(events, later_s=5 * len(held))
        return [
            *events,
            *(replace(sign, held_bytes=bytes_) for sign, bytes_ in zip(signs, held, strict=True)),  # type: ignore[call-arg]
        ]

    settings = {semconv.CONNECTOR_SETTINGS.key: '{"cpu_bytes_to_use": 8192}'}
    pipeline.ingest(encoded(beats("a", 1024, 4096, 2048, None), about=settings), transport="grpc")
    pipeline.ingest(encoded(beats("b", None)), transport="grpc")
    pipeline.tidy()
    client = TestClient(application(pipeline, SqliteReader(tmp_path / "s.db"), pipeline.metrics))
    recorders = {each["engine"]: each for each in client.get("/api/health").json()["recorders"]}
    assert (recorders["engine-a"]["held_bytes"], recorders["engine-a"]["memory_limit"]) == (2048, 8192)
    assert (recorders["engine-b"]["held_bytes"], recorders["engine-b"]["memory_limit"]) == (None, None)

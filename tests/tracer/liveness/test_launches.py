"""How engines ended: what they said of it, what they did not live to say, and what a tracer knows of them later."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clocks import Clock, turnable
from counting import instructions
from fastapi.testclient import TestClient
from history import goodbyes, heartbeats, history
from msgspec.structs import replace
from stores import FleetTracer, clickhouse
from wire import encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CutOff, Event
from kvtrail.tracer.events.semconv import NO_END_RECORD
from kvtrail.tracer.history.offline import OfflineDetector
from kvtrail.tracer.liveness.engine import CONTACT_NS, EngineState, Launch, agreed
from kvtrail.tracer.liveness.launches import SETTLED_NS
from kvtrail.tracer.liveness.recorders import FORGET_SILENT_NS
from kvtrail.tracer.serve.api.process_state import FleetProcess
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

S = 10**9
STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached"
DIED = f"{STALE}\nA 256 !AssertionError: Mismatch"
OPEN = "L 749 c0 h0 -> 0\nA 0\nS 0+48"
TALE = "AssertionError: Mismatch in tokens to load"


@dataclass
class Tracer:
    """A tracer with a clock that a test sets, which can be ended and started again over its store."""

    path: Path
    clock: Clock

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.pipeline = Pipeline(SqliteWriter(self.path), Metrics(), grace_ns=0)
        reader = SqliteReader(self.path)
        self.client = TestClient(application(self.pipeline, reader, self.pipeline.metrics))

    def end(self) -> None:
        self.pipeline.close()

    def hear(self, events: list[Event], launch: str = "first") -> None:
        named = [replace(event, launch=launch) for event in events]
        self.pipeline.ingest(encoded(named, {semconv.LAUNCH.key: launch} if launch else {}), transport="grpc")

    def wait(self, ns: int) -> None:
        self.clock.ahead_ns += ns
        self.pipeline.tidy()

    def get(self, path: str, **params: Any) -> Any:
        answer = self.client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def engine(self, name: str = "engine") -> dict[str, Any]:
        (found,) = (each for each in self.get("/api/fleet")["engines"] if each["engine"] == name)
        return found  # type: ignore[no-any-return]

    @property
    def state(self) -> str:
        return str(self.engine()["state"])


@pytest.fixture
def tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracer]:
    clock = turnable(monkeypatch)
    made = Tracer(tmp_path / "s.db", clock)
    yield made
    made.end()


def alive(text: str = OPEN, *, recorder: str = "scheduler", engine: str = "engine") -> list[Event]:
    """An engine that runs, with a heartbeat."""
    events = history(text, recorder=recorder, engine=engine)
    return [*events, *(replace(beat, scheduler_step=3) for beat in heartbeats(events, later_s=1)[:1])]  # type: ignore[call-arg]


def ending(events: list[Event], ended_by: str | None = None) -> list[Event]:
    """The roots of the requests that are open, and the goodbye, after these events."""
    last, *_ = reversed(events)
    opened = {event.request: event for event in events if event.request is not None}
    roots = [
        CutOff(
            engine=event.engine, recorder=event.recorder, sequence=last.sequence + number, request=event.request,
            request_sequence=event.request_sequence + 1, external=event.external, start_ns=event.start_ns,
            end_ns=last.end_ns + S, outcome=semconv.CUT_OFF, role="scheduler", epoch=event.epoch,
        )
        for number, event in enumerate(opened.values(), 1)
    ]  # fmt: skip
    (goodbye,) = goodbyes([*events, *roots])
    return [*roots, replace(goodbye, recorder_ended_by=ended_by, scheduler_step=4)]  # type: ignore[call-arg]


def test_an_engine_that_dies_says_of_what(tracer: Tracer) -> None:
    events = alive(DIED)
    tracer.hear(events)
    tracer.wait(0)
    assert (tracer.state, tracer.engine()["ended_ns"]) == ("running", None)
    tracer.hear(last := ending(events, TALE))
    tracer.wait(0)
    engine = tracer.engine()
    (finding,) = tracer.get("/api/findings")
    assert (engine["state"], engine["ended_by"], engine["lost"]) == ("died", TALE, 1)
    assert engine["ended_ns"] == last[-1].end_ns
    assert engine["cause"] == {name: finding[name] for name in ("id", "rule", "title", "request")}
    assert finding["did"] == "engine died"


def test_what_the_call_raised_says_more_than_that_the_process_has_gone(tracer: Tracer) -> None:
    events = alive(DIED)
    tracer.hear([*events, *ending(events, NO_END_RECORD)])
    tracer.wait(0)
    assert (tracer.state, tracer.engine()["ended_by"]) == ("died", "AssertionError: Mismatch")


@pytest.mark.parametrize(("text", "state", "lost"), [(OPEN, "died", 1), (f"{OPEN}\nend", "drained", 0)])
def test_a_process_that_ends_without_a_goodbye_died_if_requests_were_open(
    tracer: Tracer, text: str, state: str, lost: int
) -> None:
    """vLLM, asked to stop, kills its engine's process at once; so does whoever is out of memory."""
    events = alive(text)
    tracer.hear([*events, *(ending(events, NO_END_RECORD) if lost else ending(events, NO_END_RECORD)[-1:])])
    for _ in range(2):
        tracer.wait(SETTLED_NS)
        engine = tracer.engine()
        assert (engine["state"], engine["ended_by"], engine["lost"]) == (state, NO_END_RECORD, lost)


def test_a_goodbye_after_a_call_that_raised_is_a_death(tracer: Tracer) -> None:
    """The exception was caught somewhere on its way out, and the process ended in good order."""
    events = alive(DIED)
    tracer.hear([*events, *ending(events)])
    tracer.wait(0)
    assert (tracer.state, tracer.engine()["ended_by"]) == ("died", "AssertionError: Mismatch")


@pytest.mark.parametrize("after", ["\nS 336+80", "\nb: L 10 c0 h0 -> 0"], ids=["a step", "another request"])
def test_an_engine_that_went_on_after_a_call_that_raised_did_not_die_of_it(tracer: Tracer, after: str) -> None:
    events = alive(f"{DIED}{after}")
    tracer.hear([*events, *ending(events)])
    tracer.wait(0)
    assert (tracer.state, tracer.engine()["ended_by"]) == ("drained", None)


def test_an_exception_of_the_shutdown_itself_is_no_death(tracer: Tracer) -> None:
    events = alive(f"{OPEN}\nend\nfailure shutdown !OSError: it is gone already")
    tracer.hear([*events, *ending(events)])
    tracer.wait(0)
    assert tracer.state == "drained"


def test_a_goodbye_in_good_order_is_drained_and_nothing_is_lost(tracer: Tracer) -> None:
    events = alive(f"{OPEN}\nend")
    tracer.hear([*events, *goodbyes(events)])
    tracer.wait(0)
    engine = tracer.engine()
    assert [engine[name] for name in ("state", "ended_by", "lost", "cause")] == ["drained", None, 0, None]


def test_silence_is_silent_until_something_is_heard(tracer: Tracer) -> None:
    events = alive()
    tracer.hear(events)
    tracer.wait(CONTACT_NS + S)
    engine = tracer.engine()
    assert [engine[name] for name in ("state", "ended_ns", "lost")] == ["lost_contact", events[-1].end_ns, 1]
    assert tracer.get("/api/requests")[0]["outcome"] == "lost_contact"
    tracer.hear([replace(events[-1], sequence=events[-1].sequence + 1)])
    tracer.wait(0)
    engine = tracer.engine()
    assert [engine[name] for name in ("state", "ended_ns", "lost")] == ["running", None, 0]
    assert tracer.get("/api/requests")[0]["outcome"] == "running"


def test_a_goodbye_that_comes_after_the_silence_counts(tracer: Tracer) -> None:
    events = alive(DIED)
    tracer.hear(alive())
    tracer.wait(CONTACT_NS + S)
    assert tracer.state == "lost_contact"
    events = alive()
    tracer.hear(ending(events, TALE))
    tracer.wait(0)
    assert (tracer.state, tracer.engine()["lost"]) == ("died", 1)


def test_silence_after_a_call_that_raised_is_a_death(tracer: Tracer) -> None:
    tracer.hear(alive(DIED))
    tracer.wait(0)
    assert tracer.state == "running"
    tracer.wait(CONTACT_NS + S)
    engine = tracer.engine()
    assert (engine["state"], engine["ended_by"], engine["lost"]) == ("died", "AssertionError: Mismatch", 1)
    assert engine["cause"]["rule"] == "stale-lookup"


def test_an_engine_that_is_heard_again_had_not_died(tracer: Tracer) -> None:
    """What was raised was caught, and then it was the network."""
    events = alive(DIED)
    tracer.hear(events)
    tracer.wait(CONTACT_NS + S)
    assert tracer.state == "died"
    tracer.hear([replace(event, sequence=event.sequence + len(events)) for event in alive("b: L 10 c0 h0 -> 0")])
    tracer.wait(0)
    assert (tracer.state, tracer.engine()["lost"]) == ("running", 0)


def test_a_silence_that_another_engine_explains_is_a_replacement(tracer: Tracer) -> None:
    tracer.hear(alive())
    tracer.wait(20 * S)
    new = alive(recorder="new", engine="new")
    tracer.hear(new, launch="second")
    tracer.wait(CONTACT_NS - 10 * S)
    assert (tracer.state, tracer.engine()["lost"]) == ("replaced", 1)
    assert tracer.engine("new")["state"] == "running"


def test_an_engine_without_heartbeats_is_unseen_and_not_silent(tracer: Tracer) -> None:
    tracer.hear(history(OPEN))
    tracer.wait(0)
    assert tracer.state == "running"
    tracer.wait(CONTACT_NS + S)
    assert tracer.state == "unseen"


@pytest.mark.parametrize(
    "said", [NO_END_RECORD, "RuntimeError: cancelled", None], ids=["killed", "raised", "nothing yet"]
)
def test_the_scheduler_speaks_for_its_workers(tracer: Tracer, said: str | None) -> None:
    """vLLM kills what is left of its workers after it has drained."""
    scheduler = alive(f"{OPEN}\nend")
    worker = heartbeats(history("store 0+256 in 7", recorder="worker"), later_s=1)
    tracer.hear(worker)
    tracer.hear([*scheduler, *goodbyes(scheduler)])
    if said is not None:
        (gone,) = goodbyes(worker)
        tracer.hear([replace(gone, recorder_ended_by=said)])  # type: ignore[call-arg]
    tracer.wait(0)
    assert (tracer.state, tracer.engine()["ended_by"]) == ("drained", None)


@pytest.mark.parametrize("launch", ["second", ""])
def test_an_engine_that_is_started_again_under_its_id_runs(tracer: Tracer, launch: str) -> None:
    """Some name their engines; an older vLLM does not name its launches."""
    events = alive()
    first = "first" if launch else ""
    tracer.hear([*events, *ending(events, TALE)], launch=first)
    tracer.wait(0)
    assert tracer.state == "died"
    again = [
        replace(event, start_ns=event.start_ns + 60 * S, end_ns=event.end_ns + 60 * S)
        for event in alive(recorder="again")
    ]
    tracer.hear(again, launch=launch)
    tracer.wait(0)
    assert tracer.state == "running"
    window = {"from_ns": events[0].start_ns, "to_ns": again[-1].end_ns}
    deaths = tracer.get("/api/lanes", **window)["deaths"]
    assert [death["ended_by"] for death in deaths] == ([TALE] if launch else [])


def test_what_comes_late_does_not_wake_the_dead(tracer: Tracer) -> None:
    events = alive()
    tracer.hear([*events, *ending(events, TALE)])
    tracer.wait(0)
    tracer.hear(history("store 0+256 in 7", recorder="worker"))
    tracer.wait(0)
    assert tracer.state == "died"


def test_how_it_ended_outlives_the_tracer(tracer: Tracer) -> None:
    events = alive(DIED)
    tracer.hear([*events, *ending(events, TALE)])
    tracer.wait(0)
    before = tracer.engine()
    tracer.end()
    tracer.start()
    after = tracer.engine()
    assert {name: after[name] for name in ("state", "ended_ns", "ended_by", "lost", "cause")} == {
        name: before[name] for name in ("state", "ended_ns", "ended_by", "lost", "cause")
    }
    assert tracer.get("/api/findings")[0]["did"] == "engine died"
    tracer.hear(history("store 0+256 in 7", recorder="worker"))
    tracer.wait(0)
    assert tracer.state == "died"
    tracer.wait(CONTACT_NS + S)
    assert tracer.state == "died"


def test_an_engine_that_leaves_while_its_tracer_is_away_has_lost_contact(tracer: Tracer) -> None:
    events = alive()
    tracer.hear(events)
    tracer.wait(0)
    tracer.end()
    tracer.start()
    tracer.wait(0)
    assert tracer.state == "unseen", "it may be heard any moment"
    tracer.wait(CONTACT_NS + S)
    engine = tracer.engine()
    assert (engine["state"], engine["lost"]) == ("lost_contact", 1)
    assert engine["ended_ns"] == events[-2].end_ns, "of its last event about a request: heartbeats are not read back"


def test_an_engine_that_goes_on_while_its_tracer_is_away_runs(tracer: Tracer) -> None:
    events = alive()
    tracer.hear(events)
    tracer.wait(0)
    tracer.end()
    tracer.start()
    last = replace(events[-1], sequence=events[-1].sequence + 1)
    tracer.hear([last])
    tracer.wait(CONTACT_NS - S)
    assert tracer.state == "running"
    last = replace(last, sequence=last.sequence + 1)
    tracer.hear([last])
    tracer.wait(2 * S)
    assert tracer.state == "running"
    tracer.wait(CONTACT_NS + S)
    assert (tracer.state, tracer.engine()["lost"]) == ("lost_contact", 1)


def test_what_was_lost_is_counted_again_when_what_was_missing_has_come(tracer: Tracer) -> None:
    """The goodbye may overtake another batch."""
    events = alive(DIED)
    roots = ending(events, TALE)
    tracer.hear([*events, roots[-1]])
    tracer.wait(0)
    assert tracer.engine()["lost"] == 1
    tracer.hear(roots[:-1])
    other = [replace(event, request="other-0123abcd", request_sequence=0, sequence=100) for event in events[:1]]
    tracer.hear(other)
    tracer.wait(SETTLED_NS + S)
    assert tracer.engine()["lost"] == 2


def test_the_state_of_an_engine_that_is_forgotten_stays(tracer: Tracer) -> None:
    tracer.hear(alive())
    tracer.wait(CONTACT_NS + S)
    tracer.wait(FORGET_SILENT_NS + S)
    assert not tracer.pipeline.recorders.values()
    assert tracer.state == "lost_contact"


# With ClickHouse.


def test_a_fleet_knows_how_its_engines_ended(tmp_path: Path) -> None:
    tracer = FleetTracer(tmp_path, clickhouse())
    events = alive(DIED)
    tracer.hear([*events, *ending(events, TALE)])
    good = alive(f"{OPEN}\nend", recorder="other", engine="other")
    tracer.hear([*good, *goodbyes(good)])
    tracer.send()
    client = TestClient(application(FleetProcess(tracer.fleet), tracer.fleet, Metrics()))
    engines = {each["engine"]: each for each in client.get("/api/fleet").json()["engines"]}
    assert {name: each["state"] for name, each in engines.items()} == {"engine": "died", "other": "drained"}
    assert (engines["engine"]["ended_by"], engines["engine"]["lost"]) == (TALE, 1)
    assert engines["engine"]["cause"]["rule"] == "stale-lookup"
    assert [finding["did"] for finding in client.get("/api/findings").json()] == ["engine died"]


def launch(state: EngineState, ended_ns: int | None = None) -> Launch:
    return Launch(engine="e", launch="l", state=state, began_ns=0, ended_ns=ended_ns)


@pytest.mark.parametrize(
    ("reported", "together"),
    [
        ([EngineState.LOST_CONTACT, EngineState.RUNNING], EngineState.RUNNING),
        ([EngineState.LOST_CONTACT, EngineState.DIED], EngineState.DIED),
        ([EngineState.RUNNING, EngineState.DRAINED], EngineState.DRAINED),
        ([EngineState.REPLACED, EngineState.LOST_CONTACT], EngineState.REPLACED),
    ],
)
def test_what_several_tracers_know_together(reported: list[EngineState], together: EngineState) -> None:
    assert agreed([launch(state) for state in reported]).state == together
    assert agreed([launch(state) for state in reversed(reported)]).state == together


def test_of_two_silences_the_later_counts() -> None:
    assert agreed([launch(EngineState.LOST_CONTACT, 5), launch(EngineState.LOST_CONTACT, 9)]).ended_ns == 9


# As metrics.


def counted(tracer: Tracer, engine: str = "engine") -> dict[str, tuple[float, float]]:
    """By cause, the deaths of an engine and the requests that were lost with it, where there are any."""
    page = {
        (sample.name, sample.labels["cause"]): sample.value
        for family in tracer.pipeline.metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("engine") == engine and "cause" in sample.labels
    }
    deaths = {cause: value for (name, cause), value in page.items() if name == "kvtrail_engine_deaths_total" and value}
    return {cause: (value, page["kvtrail_engine_lost_requests_total", cause]) for cause, value in deaths.items()}


def lost_contact(tracer: Tracer) -> float | None:
    value = tracer.pipeline.metrics.registry.get_sample_value(
        "kvtrail_engine_lost_contact_timestamp_seconds", {"engine": "engine"}
    )
    return None if value is None else round(value)


@pytest.mark.parametrize(("said", "cause"), [(TALE, "exception"), (NO_END_RECORD, "killed"), (None, None)])
def test_a_death_is_counted_once_and_again_by_no_later_tracer(
    tracer: Tracer, said: str | None, cause: str | None
) -> None:
    events = alive(OPEN if cause else f"{OPEN}\nend")
    tracer.hear(events)
    tracer.wait(0)
    assert counted(tracer) == {}
    page, _ = tracer.pipeline.metrics.expose("")
    assert b'kvtrail_engine_deaths_total{cause="killed",engine="engine"} 0.0' in page, "an alert needs its increase"
    tracer.hear(ending(events, said) if cause else goodbyes(events))
    for _ in range(2):
        tracer.wait(SETTLED_NS)
        assert counted(tracer) == ({cause: (1, 1)} if cause else {})
    tracer.end()
    tracer.start()
    tracer.wait(CONTACT_NS + S)
    assert counted(tracer) == {}


def test_lost_contact_is_counted_and_shown_until_something_explains_it(tracer: Tracer) -> None:
    events = alive()
    tracer.hear(events)
    tracer.wait(CONTACT_NS + S)
    assert counted(tracer) == {"lost_contact": (1, 1)}
    assert lost_contact(tracer) == round(events[-1].end_ns / S)
    tracer.hear(alive(recorder="new", engine="new"), launch="second")
    tracer.wait(0)
    assert (tracer.state, lost_contact(tracer)) == ("replaced", None)


def test_a_rollout_is_no_death(tracer: Tracer) -> None:
    tracer.hear(alive())
    tracer.wait(20 * S)
    tracer.hear(alive(recorder="new", engine="new"), launch="second")
    tracer.wait(CONTACT_NS - 10 * S)
    assert tracer.state == "replaced"
    assert (counted(tracer), lost_contact(tracer)) == ({}, None)


def test_an_engine_that_goes_while_its_tracer_is_away_is_counted(tracer: Tracer) -> None:
    events = alive()
    later_ns = time.time_ns() - events[-1].end_ns  # what is long ago sends no page
    tracer.hear([replace(e, start_ns=e.start_ns + later_ns, end_ns=e.end_ns + later_ns) for e in events])
    tracer.wait(0)
    tracer.end()
    tracer.start()
    tracer.wait(CONTACT_NS + S)
    assert counted(tracer) == {"lost_contact": (1, 1)}
    assert lost_contact(tracer) is not None


@pytest.mark.parametrize(
    ("end", "state", "lost"),
    [
        ("end delayed length_capped handoff computed 48", "died", 1),
        ("end delayed length_capped handoff computed 48\nsent", "drained", 0),
        ("end delayed aborted handoff computed 48", "drained", 0),
        ("end delayed length_capped computed 48", "drained", 0),
    ],
    ids=["not read yet", "read", "its caller gave up", "kept for a store"],
)
def test_a_prefill_engine_that_is_killed_loses_what_it_keeps_for_decode(
    tracer: Tracer, end: str, state: str, lost: int
) -> None:
    events = alive(f"{OPEN}\n{end}")
    tracer.hear([*events, *ending(events, NO_END_RECORD)[-1:]])
    tracer.wait(SETTLED_NS)
    assert (tracer.state, tracer.engine()["lost"]) == (state, lost)
    assert counted(tracer) == ({"killed": (1, 1)} if lost else {})
    recorded = OfflineDetector()
    recorded.feed([*events, *ending(events, NO_END_RECORD)[-1:]])
    recorded.close()
    assert [len(death.lost) for death in recorded.deaths] == ([1] if lost else [])


@pytest.mark.parametrize("services", [1, 1000], ids=["one service", "a service each"])
def test_an_engine_costs_the_same_in_a_large_fleet(
    services: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start, at its end, and where a restarted tracer does not hear of it any more."""

    def tidied(engines: int) -> list[int]:
        tracer = Tracer(tmp_path / f"{engines}.db", turnable(monkeypatch))
        for number in range(engines):
            events = alive(recorder=f"r{number}", engine=f"e{number}")
            tracer.pipeline.ingest(encoded(events, {"service.name": f"s{number % services}"}), transport="grpc")
        update = tracer.pipeline._update_launches
        costs = [instructions(update)]
        tracer.wait(1 * S)
        tracer.end()
        tracer.start()
        tracer.clock.ahead_ns += 2 * CONTACT_NS
        costs.append(instructions(tracer.pipeline._update_launches))
        states = Counter(each.state for each in tracer.pipeline.engines.launches.known())
        tracer.end()
        assert states == {EngineState.LOST_CONTACT: engines}
        return costs

    for few, many in zip(tidied(30), tidied(120), strict=True):
        assert many < 5 * few

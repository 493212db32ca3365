"""The api of markers and notes, of a sidecar and over a fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from history import heartbeats, history
from msgspec.structs import replace
from stores import FleetTracer, clickhouse
from wire import encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.model.markers import MOST_TEXT, Marker, MarkerKind
from kvtrail.tracer.serve.api.markers import STEPS
from kvtrail.tracer.serve.api.process import FleetProcess
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import MAX_NOTES, Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

S = 10**9
MINUTE_NS = 60 * S


def ago(events: list[Event], minutes: float) -> list[Event]:
    """The events, `minutes` ago."""
    shift_ns = time.time_ns() - round(minutes * MINUTE_NS) - events[0].start_ns
    return [replace(each, start_ns=each.start_ns + shift_ns, end_ns=each.end_ns + shift_ns) for each in events]


def life(name: str, *, minutes: float = 30, story: str = "L 100 c0 h0 -> 0\nreset\nend") -> list[Event]:
    events = ago(history(story, request=f"{name}-0123abcd", recorder=f"rec-{name}", engine=name), minutes)
    beats = [replace(each, recorder_dropped=3, scheduler_step=1) for each in heartbeats(events, later_s=60)]  # type: ignore[call-arg]
    return [*events, *beats]


def resource(name: str, version: str) -> dict[str, str]:
    return {semconv.ENGINE_VERSION.key: version, "service.name": "chat", "k8s.pod.name": f"pod-{name}"}


class Sidecar:
    def __init__(self, path: Path) -> None:
        self.pipeline = Pipeline(SqliteWriter(path), Metrics(), grace_ns=0)
        self.client = TestClient(application(self.pipeline, SqliteReader(path), self.pipeline.metrics))

    def hear(self, name: str, *, version: str = "0.11", **about: Any) -> None:
        self.pipeline.ingest(encoded(life(name, **about), resource(name, version)), transport="grpc")
        self.pipeline.tidy()

    def markers(self, **params: Any) -> list[tuple[str, str, str]]:
        answer = self.client.get("/api/markers", params=params)
        assert answer.status_code == 200, answer.text
        return [(each["kind"], each["engine_name"], each["text"]) for each in answer.json()]


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    made = Sidecar(tmp_path / "s.db")
    yield made
    made.pipeline.close()


def test_what_happened_to_engines_is_marked(sidecar: Sidecar) -> None:
    sidecar.hear("a", minutes=40)
    sidecar.hear("b", minutes=20, version="0.12")
    found = sidecar.markers()
    assert [each[:2] for each in found] == [
        ("deploy", "a"), ("drop", "a"), ("deploy", "b"), ("drop", "b"),
    ]  # fmt: skip
    assert found[2][2].startswith("was started with vLLM 0.11 → 0.12")
    assert {each[0] for each in sidecar.markers(kind="reset")} == {"reset"}, "by itself it explains nothing"
    assert {each[1] for each in sidecar.markers(engine="a")} == {"a"}
    assert [each[0] for each in sidecar.markers(kind=["drop", "death"])] == ["drop", "drop"]
    assert sidecar.markers(service="batch") == []
    assert sidecar.markers(until_ns=time.time_ns() - 50 * MINUTE_NS) == []


def test_a_restarted_sidecar_marks_nothing_twice(tmp_path: Path) -> None:
    first = Sidecar(tmp_path / "s.db")
    first.hear("a")
    before = first.markers()
    first.pipeline.close()
    again = Sidecar(tmp_path / "s.db")
    later = [replace(each, sequence=each.sequence + 1) for each in life("a", minutes=10)[-1:]]
    again.pipeline.ingest(encoded(later, resource("a", "0.11")), transport="grpc")
    again.pipeline.tidy()
    assert again.markers() == before
    again.pipeline.close()


def test_a_note_is_written_and_shown_to_the_readers_of_every_engine(sidecar: Sidecar) -> None:
    sidecar.hear("a")
    at_ns = time.time_ns() - 5 * MINUTE_NS
    answer = sidecar.client.post("/api/markers", json={"text": " load test \n began ", "at_ns": at_ns})
    assert answer.status_code == 201
    row = {"kind": "note", "at_ns": at_ns, "engine": "", "engine_name": "", "text": "load test began", "count": 1}
    assert answer.json() == row
    sidecar.client.post("/api/markers", json={"text": "only a", "engine": "a"})
    assert sidecar.markers(kind="note") == [("note", "", "load test began"), ("note", "a", "only a")]
    assert sidecar.markers(kind="note", engine="b") == [("note", "", "load test began")]


@pytest.mark.parametrize(
    ("note", "why"),
    [
        ({"text": "  "}, "the note has no text"),
        ({"text": "x" * (MOST_TEXT + 1)}, f"the note has {MOST_TEXT + 1} characters; {MOST_TEXT} is the most"),
        ({"text": "x", "at_ns": 0}, "at_ns 0 is not a moment of the past: it is Unix nanoseconds"),
        ({"text": "x", "at_ns": 2**62}, f"at_ns {2**62} is not a moment of the past: it is Unix nanoseconds"),
        ({"text": "x", "engine": "nobody"}, "no engine has the id or the name 'nobody'"),
    ],
)
def test_a_note_that_is_none_is_refused_with_the_reason(sidecar: Sidecar, note: dict[str, Any], why: str) -> None:
    answer = sidecar.client.post("/api/markers", json=note)
    assert (answer.status_code, answer.json()["detail"]) == (400, why)
    assert sidecar.markers(kind="note") == []


def test_a_page_of_another_site_cannot_write_a_note(sidecar: Sidecar) -> None:
    answer = sidecar.client.post("/api/markers", json={"text": "x"}, headers={"origin": "https://elsewhere.example"})
    assert answer.status_code == 403
    assert sidecar.markers(kind="note") == []


def test_an_answer_does_not_grow_with_what_happened(sidecar: Sidecar) -> None:
    story = "\n".join(["L 100 c0 h0 -> 0", *["reset"] * 1000, "end"])
    sidecar.hear("a", story=story)
    assert len(sidecar.markers(kind="reset")) <= STEPS
    counts = [each["count"] for each in sidecar.client.get("/api/markers", params={"kind": "reset"}).json()]
    assert sum(counts) == 1000


def test_a_fleet_has_the_markers_of_all_tracers_and_takes_notes(tmp_path: Path) -> None:
    address = clickhouse()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tracer = FleetTracer(tmp_path / name, address)
        tracer.hear(life(name), **{key.replace(".", "_"): value for key, value in resource(name, "0.11").items()})
        tracer.pipeline.add_marker(_note(f"by {name}"))
        tracer.send()
        own = tracer.local.launches()
        assert [each.settings for each in tracer.fleet.launches() if each.engine == name] == [own[0].settings]
    reader = tracer.fleet
    client = TestClient(application(FleetProcess(reader, Metrics().internal_errors), reader, Metrics()))
    assert client.post("/api/markers", json={"text": "by the fleet"}).status_code == 201
    found = client.get("/api/markers").json()
    assert {each["text"] for each in found if each["kind"] == "note"} == {"by a", "by b", "by the fleet"}
    assert {"deploy", "drop", "note"} <= {each["kind"] for each in found}


def _note(text: str) -> Marker:
    return Marker(id=f"note {text}", kind=MarkerKind.NOTE, at_ns=time.time_ns(), text=text)


def test_prometheus_gets_the_moments(sidecar: Sidecar) -> None:
    events = life("a")
    sidecar.pipeline.ingest(encoded(events, resource("a", "0.11")), transport="grpc")
    again = replace(events[-1], sequence=events[-1].sequence + 1, end_ns=events[-1].end_ns + MINUTE_NS)
    sidecar.pipeline.ingest(encoded([again], resource("a", "0.11")), transport="grpc")
    sidecar.pipeline.tidy()

    def value(name: str, **labels: str) -> float | None:
        return sidecar.pipeline.metrics.registry.get_sample_value(f"kvtrail_{name}_timestamp_seconds", labels)

    assert value("marker", engine="a", kind="deploy") == pytest.approx(events[0].start_ns / S)
    assert value("marker", engine="a", kind="reset") is not None
    dropped_s = value("marker", engine="a", kind="drop")
    assert dropped_s == pytest.approx(events[-1].end_ns / S), "the second heartbeat reports nothing new"
    for number in range(MAX_NOTES + 2):
        sidecar.client.post("/api/markers", json={"text": f"note {number}", "at_ns": S * (number + 1)})
    assert [value("note", text=f"note {number}") for number in (1, 2, MAX_NOTES + 1)] == [None, 3, MAX_NOTES + 2]

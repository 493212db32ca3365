"""The api of markers, of a sidecar and over a fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from history import heartbeats, history
from msgspec.structs import replace
from sidecar import Sidecar
from stores import FleetTracer, clickhouse
from wire import encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.serve.api.process_state import FleetProcess
from kvtrail.tracer.serve.api.ranges import STEPS
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics

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


class Marked(Sidecar):
    def live(self, name: str, *, version: str = "0.11", **about: Any) -> None:
        """An engine that lives."""
        self.hear(life(name, **about), resource(name, version))

    def markers(self, **params: Any) -> list[tuple[str, str, str]]:
        return [(each["kind"], each["engine_name"], each["text"]) for each in self.get("/api/markers", **params)]


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Marked]:
    made = Marked(tmp_path)
    yield made
    made.pipeline.close()


def test_what_happened_to_engines_is_marked(sidecar: Marked) -> None:
    sidecar.live("a", minutes=40)
    sidecar.live("b", minutes=20, version="0.12")
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
    first = Marked(tmp_path)
    first.live("a")
    before = first.markers()
    first.pipeline.close()
    again = Marked(tmp_path)
    later = [replace(each, sequence=each.sequence + 1) for each in life("a", minutes=10)[-1:]]
    again.pipeline.ingest(encoded(later, resource("a", "0.11")), transport="grpc")
    again.pipeline.tidy()
    assert again.markers() == before
    again.pipeline.close()


def test_an_answer_does_not_grow_with_what_happened(sidecar: Marked) -> None:
    story = "\n".join(["L 100 c0 h0 -> 0", *["reset"] * 1000, "end"])
    sidecar.live("a", story=story)
    assert len(sidecar.markers(kind="reset")) <= STEPS
    counts = [each["count"] for each in sidecar.client.get("/api/markers", params={"kind": "reset"}).json()]
    assert sum(counts) == 1000


def test_a_fleet_has_the_markers_of_all_tracers(tmp_path: Path) -> None:
    address = clickhouse()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tracer = FleetTracer(tmp_path / name, address)
        tracer.hear(life(name), **{key.replace(".", "_"): value for key, value in resource(name, "0.11").items()})
        tracer.send()
        own = tracer.local.launches()
        assert [each.settings for each in tracer.fleet.launches() if each.engine == name] == [own[0].settings]
    reader = tracer.fleet
    client = TestClient(application(FleetProcess(reader), reader, Metrics()))
    found = client.get("/api/markers").json()
    assert {each["kind"] for each in found} == {"deploy", "drop"}


def test_prometheus_gets_the_moments(sidecar: Marked) -> None:
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

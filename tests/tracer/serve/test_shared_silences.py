"""Silences of a fleet: made or ended at one sidecar, or at the api over all of them, they are known at every one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from history import history
from stores import FleetTracer, clickhouse

from kvtrail.tracer.model.silences import Silence
from kvtrail.tracer.serve.api.process import FleetProcess
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.silenced import newer
from kvtrail.tracer.store import FindingFilter

STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached"
KNOWN = {"rule": "stale-lookup", "ends_ns": None, "why": "known", "by": "ana"}


def silence(**changes: Any) -> Silence:
    about = {
        "id": "s",
        "rule": "full-hit",
        "began_ns": 1,
        "ends_ns": None,
        "why": "known",
        "by": "ana",
        "written_ns": 1,
    }
    return Silence(**{**about, **changes})


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[list[FleetTracer]]:
    address = clickhouse()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    fleet = [FleetTracer(tmp_path / name, address) for name in ("a", "b")]
    yield fleet
    for each in fleet:
        each.pipeline.close()


def test_of_two_records_of_a_silence_the_later_one_counts() -> None:
    old, new, own = silence(), silence(ends_ns=5, written_ns=2), silence(id="own")
    assert newer([new, own], than=[old]) == [new, own]
    assert newer([old], than=[new, own]) == []


def test_a_silence_of_one_sidecar_is_that_of_all_and_so_is_its_end(fleet: list[FleetTracer]) -> None:
    one, other = fleet
    made = silence()
    one.pipeline.put_silences([made])
    one.send()
    assert one.fleet.silences() == [made]
    other.send()
    assert other.local.silences() == [made]
    ended = replace(made, ends_ns=7, written_ns=2)
    other.pipeline.put_silences([ended])
    other.send()
    one.send()
    assert one.local.silences() == other.local.silences() == one.fleet.silences() == [ended]
    one.pipeline.put_silences([made])
    assert one.local.silences() == [ended], "an earlier record changes nothing"


def test_the_api_over_a_fleet_silences_at_every_sidecar(fleet: list[FleetTracer]) -> None:
    one, _ = fleet
    one.hear(history(STALE))
    one.send()
    metrics, reader = Metrics(), one.fleet
    client = TestClient(application(FleetProcess(reader, metrics.internal_errors), reader, metrics))
    made = client.post("/api/silences", json=KNOWN)
    assert made.status_code == 201, made.text
    assert [each["silence"]["by"] for each in client.get("/api/findings", params={"silenced": True}).json()] == ["ana"]
    assert client.get("/api/findings", params={"silenced": False}).json() == []
    one.send()
    assert [each.id for each in one.local.silences()] == [made.json()["id"]]


def test_findings_by_place_are_the_same_in_both_stores(fleet: list[FleetTracer]) -> None:
    one, _ = fleet
    for number, engine in enumerate(("x", "y'); --", "z")):
        one.hear(history(STALE, request=f"r-{number}-0123abcd", engine=engine, recorder=f"rec-{number}"))
    one.send()
    own, theirs = one.local, one.fleet
    assert sorted(own.sightings()) == sorted(theirs.sightings())
    counts = own.finding_counts()
    assert theirs.finding_counts() == counts
    assert set(counts.values()) == {1}
    place = next(place for place in counts if place.engine.startswith("y"))
    for which, number in (
        (FindingFilter(only=[place]), 1),
        (FindingFilter(but=[place]), 2),
        (FindingFilter(only=[]), 0),
    ):
        found = own.findings(which, oldest_first=True)
        assert len(found) == number
        assert theirs.findings(which, oldest_first=True) == found
        assert theirs.finding_counts(which) == own.finding_counts(which)

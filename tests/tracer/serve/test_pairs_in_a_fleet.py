"""Pairs of engines that report to different sidecars of a fleet: judged once, and as one sidecar would judge them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from history import heartbeats, history, judge
from pair_stories import EXPIRED, GIVES, TAKES
from stores import FleetTracer, clickhouse

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.serve.api.process_state import FleetProcess
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.remote_handoffs import ASKED_FOR_S

ANOTHER = TAKES.replace("<d> ", "<other> b: ")
STORIES = {
    "well": GIVES.format(digest="a") + TAKES + "read\nsent",
    "crossed": GIVES.format(digest="b") + TAKES + "read\nsent",
    "stale": GIVES.format(digest="a") + EXPIRED + TAKES + "read",
    "early stale": GIVES.format(digest="a") + TAKES + EXPIRED + "read",
    "unacknowledged": GIVES.format(digest="a") + TAKES + EXPIRED,
    "acknowledged late": GIVES.format(digest="a") + TAKES + EXPIRED + "wait 8\nread",
    "second": GIVES.format(digest="a") + TAKES + "read\nsent\n" + ANOTHER,
}
Fleet = dict[str, FleetTracer]
"""Each sidecar, by the engine that reports to it."""


def recorded(text: str) -> list[Event]:
    return history(text, connector="NixlConnector")


def later(events: list[Event]) -> list[Event]:
    """What all recorders say in half a minute after that."""
    return heartbeats(events, later_s=30)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    address, fleet = clickhouse(), {}
    for engine in ("engine", "d", "other"):
        (tmp_path / engine).mkdir()
        fleet[engine] = FleetTracer(tmp_path / engine, address)
    yield fleet
    for each in fleet.values():
        each.pipeline.close()


def hear(fleet: Fleet, events: list[Event]) -> None:
    """Each event reaches the sidecar of its engine."""
    for _, some in groupby(events, key=lambda event: event.engine):
        of_engine = list(some)
        fleet[of_engine[0].engine].hear(of_engine)


def exchange(fleet: Fleet, rounds: int = 3, *, after_s: float = 60.0) -> None:
    """Every tracer sends what it has, and hears what the others have sent, again and again after a pause."""
    for _ in range(rounds):
        for each in fleet.values():
            each.send(after_s=after_s)


def in_order(fleet: Fleet, events: list[Event]) -> None:
    """Each sends as soon as it has something, and hears the others."""
    for _, some in groupby(events, key=lambda event: event.engine):
        hear(fleet, list(some))
        exchange(fleet, rounds=1, after_s=2)


def by_engine(*engines: str) -> Callable[[Fleet, list[Event]], None]:
    """One engine is heard after the other, each to its end, and nothing is sent before that."""

    def said(fleet: Fleet, events: list[Event]) -> None:
        for engine in engines:
            hear(fleet, [event for event in events if event.engine == engine])

    return said


def one_after_the_other(fleet: Fleet, events: list[Event]) -> None:
    """The engine that takes is heard long after the other one."""
    for engine in fleet:
        hear(fleet, [event for event in events if event.engine == engine])
        exchange(fleet)


ORDERS = {
    "as it happened": in_order,
    "gives first": by_engine("engine", "d", "other"),
    "takes first": by_engine("d", "other", "engine"),
    "long after": one_after_the_other,
}


STORIES_IN_ORDERS = [
    pytest.param(story, order, marks=pytest.mark.long if (number + place) % 2 else ())
    for number, story in enumerate(STORIES)
    for place, order in enumerate(ORDERS)
]
"""Each story in two orders, and each order with half of the stories; `make test-all` has the others."""


def found(fleet: Fleet) -> list[tuple[str, str, int]]:
    """What the sidecars have found, each with what it names."""
    return sorted(
        (each["rule"], each["engine"], each["count"]) for own in fleet.values() for each in own.local.findings()
    )


@pytest.mark.parametrize(("story", "order"), STORIES_IN_ORDERS)
def test_a_pair_is_judged_as_by_one_sidecar(fleet: Fleet, story: str, order: str) -> None:
    events = recorded(STORIES[story])
    alone = judge([*events, *later(events)])
    expected = sorted((each.rule, each.engine, 1) for held in alone.findings.values() for each in held.values())
    assert bool(expected) == (story != "well")
    ORDERS[order](fleet, events)
    exchange(fleet)
    in_order(fleet, later(events))
    exchange(fleet)
    assert found(fleet) == expected
    shown = fleet["d"].fleet
    assert sorted((each["rule"], each["engine"], each["count"]) for each in shown.findings()) == expected
    drifting = {(row["engine"], row["request"]) for row in shown.requests() if row["verdict"] == "drift"}
    assert drifting == {key for key, held in alone.findings.items() if held}
    exchange(fleet, rounds=30)
    assert found(fleet) == expected, "what is heard again adds nothing"


def test_of_two_that_receive_one_hand_off_at_the_same_time_one_is_named(fleet: Fleet) -> None:
    """Neither sidecar knows of the other's when it hears its own."""
    events = recorded(STORIES["second"])
    by_engine("other", "d")(fleet, events)
    exchange(fleet)
    assert found(fleet) == [("duplicate-load", "other", 1)]


@pytest.mark.parametrize("away", ["engine", "d"])
@pytest.mark.parametrize("story", ["crossed", "stale"])
def test_what_others_have_sent_while_a_sidecar_was_away_is_heard(
    fleet: Fleet, tmp_path: Path, story: str, away: str
) -> None:
    events = recorded(STORIES[story])
    alone = judge(events)
    hear(fleet, [event for event in events if event.engine == away])
    fleet[away].send()
    hear(fleet, [event for event in events if event.engine != away])
    exchange({name: each for name, each in fleet.items() if name != away})
    for _ in range(2):
        fleet[away].pipeline.close()
        fleet[away] = FleetTracer(tmp_path / away, fleet["other"].address)
        exchange(fleet)
        rules = sorted((each.rule, each.engine, 1) for held in alone.findings.values() for each in held.values())
        assert found(fleet) == rules


@pytest.mark.parametrize("side", ["engine", "d"])
def test_a_side_that_never_comes_leaves_the_pair_unknown(fleet: Fleet, side: str) -> None:
    events = recorded(STORIES["crossed"])
    hear(fleet, [event for event in events if event.engine == side])
    exchange(fleet)
    own = fleet[side]
    metrics = Metrics()
    over_all = TestClient(application(FleetProcess(own.fleet), own.fleet, metrics))
    of_sidecar = TestClient(application(own.pipeline, own.local, metrics))
    request = events[0].request

    def links(client: TestClient) -> list[tuple[str | None, str | None]]:
        shown = client.get(f"/api/requests/{request}", params={"engine": side}).json()["handoffs"]
        return [(each["engine"], each["unknown"]) for each in shown]

    assert links(over_all) == links(of_sidecar) == [(None, "one_side")]
    other = "d" if side == "engine" else "engine"
    hear(fleet, [event for event in events if event.engine == other])
    exchange(fleet)
    assert links(over_all) == links(of_sidecar) == [(other, None)]


def test_unanswered_questions_are_dropped(fleet: Fleet) -> None:
    hear(fleet, [event for event in recorded(STORIES["crossed"]) if event.engine == "d"])
    asked = fleet["d"].sender._remote_handoffs
    exchange(fleet)
    assert asked._asked
    exchange(fleet, rounds=int(ASKED_FOR_S // 60) + 2)
    assert not asked._asked

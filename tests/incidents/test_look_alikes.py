"""What resembles a drift and is legal stays silent; so does what an incident leaves when an event of it is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from history import heartbeats, judge, rules_found

from incidents.corpus import INCIDENTS, LOOK_ALIKES
from incidents.incident import Incident, LookAlike, Scenario
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.rules import pages

FOUND = [incident for incident in INCIDENTS if incident.rule is not None]


@pytest.mark.parametrize("alike", LOOK_ALIKES, ids=lambda alike: f"{alike.of} {alike.rule}: {alike.what}")
def test_a_legal_look_alike_causes_no_finding(alike: LookAlike) -> None:
    assert rules_found(alike.judged()) == []


def test_every_rule_has_two_look_alikes_at_least() -> None:
    alike = Counter(each.rule for each in LOOK_ALIKES)
    assert [rule for rule in pages.files() if alike[rule] < 2] == []


@pytest.mark.parametrize("alike", LOOK_ALIKES, ids=lambda alike: f"{alike.of} {alike.rule}: {alike.what}")
def test_a_legal_look_alike_without_one_of_its_events_causes_no_finding(alike: LookAlike) -> None:
    for events in with_one_lost(alike):
        assert rules_found(judge(events)) == []


@pytest.mark.parametrize("incident", FOUND, ids=lambda incident: incident.id)
def test_an_incident_without_one_of_its_events_causes_no_other_finding(incident: Incident) -> None:
    known = {incident.rule, *incident.also, "failed-call"}  # which is silent where the other is found
    if "stale-lookup" in known:
        known.add("over-report")  # what it is without the lookup that it repeats
    for events in with_one_lost(incident):
        assert set(rules_found(judge(events))) <= known


def with_one_lost(scenario: Scenario) -> Iterator[list[Event]]:
    """The scenario's events and its recorders' heartbeats, each time without another one of the events."""
    events = scenario.events()
    alive = heartbeats(events, later_s=scenario.later_s)
    for lost in range(len(events)):
        yield events[:lost] + events[lost + 1 :] + alive

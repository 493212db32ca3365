"""Each incident is found by its own rule, with its numbers and words, and by no other rule."""

from __future__ import annotations

from urllib.parse import urlparse

import pytest
from history import rules_found

from incidents.corpus import INCIDENTS
from incidents.incident import Incident


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.id)
def test_an_incident_is_found_by_its_rule_alone(incident: Incident) -> None:
    detector = incident.judged()
    expected = [] if incident.rule is None else sorted((incident.rule, *incident.also))
    assert rules_found(detector) == expected
    findings = [finding for held in detector.findings.values() for finding in held.values()]
    own = [each for each in findings if each.rule == incident.rule]
    here = [each for each in own if each.numbers.get("where") == incident.numbers.get("where")]
    assert bool(here) == (incident.rule is not None)
    for finding in here:
        assert finding.numbers == incident.numbers
        assert incident.says in finding.explanation


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.id)
def test_an_incident_names_its_thread_and_what_becomes_of_it(incident: Incident) -> None:
    assert urlparse(incident.url).scheme == "https"
    assert bool(incident.says) == (incident.rule is not None)
    assert [incident.rule is not None, bool(incident.why), bool(incident.gap)].count(True) == 1


def test_no_incident_is_there_twice() -> None:
    ids = [incident.id for incident in INCIDENTS]
    assert len(set(ids)) == len(ids)

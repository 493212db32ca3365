"""What resembles a drift and is legal stays silent; so does what an incident leaves when an event of it is missing."""

from __future__ import annotations

from collections import Counter

import pytest
from history import judge, rules_found

from incidents.corpus import INCIDENTS, LOOK_ALIKES
from incidents.incident import Incident, LookAlike
from kvtrail.tracer.detect.rules import EngineRule, all_rules
from kvtrail.tracer.model.events import Heartbeat

OF_ONE_EVENT = {
    "stale-lookup",
    "over-report",
    "full-hit",
    "statistics",
    "double-free",
    "index-drift",
    "late-read",
    "block-shortage",
}
"""Rules that may judge one event without its history."""
RULES = {rule.id: rule for rule in all_rules()}
FOUND = [incident for incident in INCIDENTS if incident.rule is not None]


@pytest.mark.parametrize("alike", LOOK_ALIKES, ids=lambda alike: f"{alike.of} {alike.rule}: {alike.what}")
def test_a_legal_look_alike_is_silent(alike: LookAlike) -> None:
    assert rules_found(alike.judged()) == []


def test_every_rule_has_two_look_alikes_at_least() -> None:
    alike = Counter(each.rule for each in LOOK_ALIKES)
    assert [rule.id for rule in all_rules() if alike[rule.id] < 2] == []


@pytest.mark.parametrize("incident", FOUND, ids=lambda incident: incident.id)
def test_an_incomplete_history_accuses_nobody(incident: Incident) -> None:
    """One event is missing before the breach, whichever it is. Then nothing is found that leans on the history of its
    request, or, for a rule that looks at the whole engine, on that of its engine. Signs of life are many and all alike: one
    of them is enough."""
    events = incident.events()
    beats = [number for number, event in enumerate(events) if isinstance(event, Heartbeat)]
    for lost, event in enumerate(events[:-1]):
        if lost in beats[1:]:
            continue
        before = rules_found(judge(events[:lost], later_s=incident.later_s))
        detector = judge(events[:lost] + events[lost + 1 :], later_s=incident.later_s)
        for (_, request), held in detector.findings.items():
            for finding in held.values():
                leans = finding.rule not in OF_ONE_EVENT
                leans &= request == event.request or isinstance(RULES[finding.rule], EngineRule)
                assert not leans or finding.rule in before

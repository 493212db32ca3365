"""Every rule is missed by an incident when it is gone: none is there for show, and none is covered by another."""

from __future__ import annotations

import pytest
from history import rules_found
from incidents.corpus import INCIDENTS

from kvtrail.tracer.rules import Rule, all_rules


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_without_the_rule_an_incident_is_no_longer_found(rule: Rule) -> None:
    """A rule that is left out is the same as one that answers None to every event.

    One that steps back names what another explains: where the other is gone, it says that something broke, not what.
    """
    others = [other for other in all_rules() if other is not rule and not other.steps_back]
    concerned = [incident for incident in INCIDENTS if incident.rule == rule.id]
    assert concerned
    assert all(incident.rule not in rules_found(incident.judged(others)) for incident in concerned)
    assert any(not set(rules_found(incident.judged(others))) - set(incident.also) for incident in concerned)


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_the_rule_alone_finds_its_incidents(rule: Rule) -> None:
    for incident in INCIDENTS:
        if incident.rule == rule.id:
            assert rules_found(incident.judged([rule])) == [rule.id]

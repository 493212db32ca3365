"""Every rule is missed by an incident when it is gone: none is there for show, and none is covered by another."""

from __future__ import annotations

import pytest
from history import rules_found
from incidents.corpus import INCIDENTS

from kvtrail.tracer.rules import pages
from kvtrail.tracer.rules.rule import Rule
from kvtrail.tracer.rules.rule_set import all_rules


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: type(rule).__name__)
def test_without_the_rule_an_incident_is_no_longer_found(rule: Rule) -> None:
    """A rule that is left out is the same as one that answers None to every event. Of a rule that is judged by two things,
    each half is missed.

    One that yields to others names what another explains: where the other is gone, it says that something broke, not what.
    """
    others = [other for other in all_rules() if other is not rule and not other.yields_to_other_rules]
    concerned = [incident for incident in INCIDENTS if incident.rule == rule.id]
    assert concerned
    assert any(not set(rules_found(incident.judged(others))) - set(incident.also) for incident in concerned)


@pytest.mark.parametrize("rule", pages.files())
def test_the_rule_alone_finds_its_incidents(rule: str) -> None:
    rules = [each for each in all_rules() if each.id == rule]
    for incident in INCIDENTS:
        if incident.rule == rule:
            assert set(rules_found(incident.judged(rules))) == {rule}

"""The incidents that were not at hand: each is found by the rule that was expected before it was judged, and by no other."""

from __future__ import annotations

from collections import Counter

import pytest
from history import rules_found

from incidents.corpus import INCIDENTS
from incidents.holdout import FIRST, FIRST_BY_AREA, HOLDOUT, SECOND, THIRD
from incidents.incident import Holdout


@pytest.mark.parametrize("incident", HOLDOUT, ids=lambda incident: incident.id)
def test_an_incident_that_was_not_at_hand_is_found_by_the_rule_expected(incident: Holdout) -> None:
    found = set(rules_found(incident.judged()))
    assert found <= {incident.rule, *incident.also}
    assert incident.rule is None or incident.rule in found


def test_none_of_them_is_among_those_at_hand() -> None:
    assert not {incident.url for incident in HOLDOUT} & {incident.url for incident in INCIDENTS}
    assert len({incident.url for incident in HOLDOUT}) == len(HOLDOUT)


def test_what_is_said_of_the_first_time_is_about_these_sets() -> None:
    decidable = [incident for incident in SECOND if incident.rule is not None or incident.gap]
    assert FIRST["decidable"] == len(decidable)
    assert FIRST["shown"] == sum(incident.shown for incident in decidable if not incident.gap)
    by_area = Counter(incident.area for incident in THIRD if incident.rule is not None or incident.uncovered)
    assert {area: decidable for area, (decidable, _) in FIRST_BY_AREA.items()} == by_area


def test_each_has_a_rule_or_a_reason() -> None:
    for incident in HOLDOUT:
        reasons = [bool(incident.uncovered), bool(incident.why), bool(incident.gap)]
        assert [incident.rule is not None, *reasons].count(True) == 1, incident.id

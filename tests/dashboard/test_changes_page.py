"""What changed at a moment: the sentences, and the rows that lead to requests."""

from __future__ import annotations

from typing import Any

import pytest
from history import START_NS

from kvtrail.dashboard.content import changes
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.cause_words import name
from kvtrail.tracer.savings.changes import MEASURES

NAMES = {"a-1": "alpha", "b-1": "beta"}


def group(dimension: str, name: str, share: float, **amount: float) -> dict[str, Any]:
    return {"dimension": dimension, "group": name, "share": share, "amount": {"before": 0.0, "after": 0.0, **amount}}


def change(
    before: float, after: float, *groups: dict[str, Any], measure: str = "computed", of_traffic: float | None = None
) -> dict[str, Any]:
    whole = {"before": before, "after": after}
    return {"measure": measure, "whole": whole, "of_traffic": of_traffic, "groups": groups}


def test_every_measure_has_words() -> None:
    assert changes.MEASURES.keys() == MEASURES.keys()


@pytest.mark.parametrize(
    ("of_traffic", "said"),
    [
        (0.0, "Traffic does not explain it: reuse changed."),
        (800.0, "That is traffic: reuse is what it was."),
        (400.0, "50.0 % of that is traffic, the rest a changed reuse."),
    ],
)
def test_a_change_says_how_much_of_it_is_traffic(of_traffic: float, said: str) -> None:
    sentence = changes.sentence(change(400, 1200, of_traffic=of_traffic), NAMES)
    assert sentence == f"**Prompt tokens computed** went from 400 to 1.2 k a minute (3 times as many). {said}"


def test_groups_that_explain_a_change_are_named_and_those_that_do_not_are_not() -> None:
    groups = [
        group("engine", "a-1", 0.9), group("engine", "b-1", 0.1), group("model", "m", 1.0),
        group("cause", "evicted:gpu", 0.8), group("tenant", "x", 0.2), group("tenant", "plain", 0.2),
    ]  # fmt: skip
    sentence = changes.sentence(change(10, 30, *groups), NAMES)
    assert "Of the change: engine alpha 90.0 %, cause evicted (vLLM's cache) 80.0 %." in sentence
    assert "model" not in sentence, "there is only one: it explains nothing"
    assert "tenant" not in sentence


def test_what_hardly_changed_has_no_sentence() -> None:
    assert changes.sentences([change(100, 104)], NAMES) == []
    said = changes.sentences([change(0, 3, measure="failed"), change(100, 150)], NAMES)
    assert [each.split("**")[1] for each in said] == ["Prompt tokens computed", "Tokens of failed loads"]


def test_a_row_leads_to_the_requests_of_its_group_after_the_moment() -> None:
    after = TimeRange(START_NS, START_NS + 60 * 10**9)
    found = change(1, 2, group("engine", "a-1", 1.0, before=1, after=2), group("cause", "new:", 0.4))
    (engine, cause), links = changes.rows(found, NAMES), changes.links(found, after)
    assert (engine["Group"], engine["Before"], engine["After"], engine["Share of the change"]) == ("alpha", 1, 2, 100)
    assert cause["Group"] == name("new")
    assert links == [("requests", {**after.address, "on": "a-1"}), ("efficiency", {**after.address})]


def test_a_tenant_has_its_name() -> None:
    names = NAMES | {"5a17c0ffee5a17c0": "Acme"}
    found = changes.rows(change(1, 2, group("tenant", "5a17c0ffee5a17c0", 1.0), group("tenant", "plain", 0.2)), names)
    assert [each["Group"] for each in found] == ["Acme", "without salt"]

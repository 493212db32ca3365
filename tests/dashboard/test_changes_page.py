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
    sentence = changes.sentence(change(400, 1200, of_traffic=of_traffic))
    assert sentence == f"**Prompt tokens computed** went from 400 to 1.2 k a minute. {said}"


def test_no_reuse_is_compared_where_nothing_was_asked_for() -> None:
    """`went from 0 to 74 a minute. That is traffic: reuse is what it was.`"""
    assert changes.sentence(change(0, 74, of_traffic=74.0)).endswith("traffic: nothing was asked for before.")
    assert changes.sentence(change(74, 0, of_traffic=-74.0)).endswith("traffic: nothing was asked for after.")


def named(*groups: dict[str, Any]) -> list[str]:
    return [row["Group"] for row in changes.rows(changes.explaining([change(10, 30, *groups)]), NAMES)]


def test_groups_that_explain_a_change_are_named_and_those_that_do_not_are_not() -> None:
    groups = [
        group("engine", "a-1", 0.9), group("engine", "b-1", 0.1), group("model", "m", 1.0),
        group("cause", "evicted:gpu", 0.8), group("tenant", "x", 0.2), group("tenant", "plain", 0.2),
    ]  # fmt: skip
    assert named(*groups) == ["alpha", "evicted (vLLM's cache)"], "of the model there is only one: it explains nothing"


def test_what_hardly_changed_is_left_out() -> None:
    assert changes.in_order([change(100, 104)]) == []
    found = changes.in_order([change(0, 3, measure="failed"), change(100, 150)])
    assert [changes.title(each) for each in found] == ["Prompt tokens computed", "Tokens of failed loads"]


AFTER = TimeRange(START_NS, START_NS + 60 * 10**9)


def test_a_row_has_the_amounts_of_its_group() -> None:
    found = change(1, 2, group("engine", "a-1", 1.0, before=1, after=2), group("cause", "new:", 0.4))
    engine, cause = changes.rows([(found, each) for each in found["groups"]], NAMES)
    assert (engine["Group"], engine["Before"], engine["After"], engine["Share of the change"]) == ("alpha", "1", "2", 1)
    assert (cause["Grouped by"], cause["Group"]) == ("why computed", name("new"))


@pytest.mark.parametrize(
    ("dimension", "value", "shown", "query"),
    [
        ("engine", "a-1", "alpha", {"on": "a-1"}),
        ("model", "llama", "llama", {"model": "llama"}),
        ("connector", "Offload", "Offload", {"where": "connector = Offload"}),
        ("tenant", "0123456789abcdef", "01234567", {"where": "tenant = 0123456789abcdef"}),
        ("cause", "evicted:gpu", "evicted (vLLM's cache)", {"where": "evicted > 0"}),
        ("model", "", "not known", {}),
    ],
)
def test_a_row_leads_to_the_requests_of_its_group(
    dimension: str, value: str, shown: str, query: dict[str, str]
) -> None:
    found = group(dimension, value, 1.0)
    assert changes.group_name(found, NAMES) == shown
    assert changes.filters(found) == query


@pytest.mark.parametrize(
    ("before", "after", "measure", "said"),
    [
        (90, 30, "preemptions", "**Preemptions** went from 90 to 30 a minute."),
        (1.5, 6, "waited_s", "**Seconds of waiting for loads** went from 1.50 s to 6.00 s a minute."),
        (0, 0.5, "preemptions", "**Preemptions** went from 0 to 0.5 a minute."),
    ],
)
def test_amounts_have_their_units(before: float, after: float, measure: str, said: str) -> None:
    assert changes.sentence(change(before, after, measure=measure)) == said


def test_a_group_that_went_the_other_way_is_named_where_it_weighs() -> None:
    assert named(group("engine", "a-1", 3.0), group("engine", "b-1", -2.0), group("engine", "c", 0.0)) == [
        "alpha",
        "beta",
    ]


def test_a_likely_cause_leads_to_what_shows_it() -> None:
    around = TimeRange(START_NS - 60 * 10**9, START_NS + 60 * 10**9)
    causes = [
        {"kind": "death", "engine": "a-1"},
        {"kind": "deploy", "engine": "a-1"},
        {"kind": "evictions", "engine": ""},
    ]
    assert [changes.of_cause(each, AFTER, around) for each in causes] == [
        ("requests", {**around.address, "on": "a-1", "status": "lost"}),
        ("requests", {**AFTER.address, "on": "a-1"}),
        ("savings", AFTER.address),
    ]


def test_what_the_page_rests_on_is_said() -> None:
    sides = {"since_ns": START_NS, "until_ns": START_NS + 60 * 10**9}
    said = changes.rests_on({"before": sides, "after": sides}, now_ns=START_NS)
    assert "Amounts are by the minute, over all requests." in said


def test_a_tenant_has_its_name() -> None:
    names = NAMES | {"5a17c0ffee5a17c0": "Acme"}
    tenants = [group("tenant", name, 1.0) for name in ("5a17c0ffee5a17c0", "plain", "other")]
    assert [changes.group_name(each, names) for each in tenants] == ["Acme", "without salt or adapter", "other tenants"]

"""What changed between two ranges, on sums that are known."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kvtrail.tracer.savings.changes import PARTS_OF_ASKED, MeasureChange, Side, changes
from kvtrail.tracer.savings.minute_sums import SavingsRow

MODELS = {"a": "small", "b": "small", "c": "large"}


def row(engine: str, **measures: int) -> SavingsRow:
    return SavingsRow(at_s=0, engine=engine, connector="OffloadConnector", epoch=0, measures=measures)


def compared(
    before: list[SavingsRow], after: list[SavingsRow], minutes: tuple[float, float] = (1, 1)
) -> dict[str, MeasureChange]:
    first_side, second_side = Side(before, minutes[0]), Side(after, minutes[1])
    return {each.measure: each for each in changes(first_side, second_side, MODELS)}


def first(change: MeasureChange, dimension: str) -> tuple[str, float]:
    group = next(each for each in change.groups if each.dimension == dimension)
    return group.group, round(group.share, 3)


def test_the_engine_that_lost_its_reuse_explains_all_that_is_computed_more() -> None:
    before = [row("a", asked=1000, taken=800), row("b", asked=1000, taken=800)]
    after = [row("a", asked=1000, taken=0), row("b", asked=1000, taken=800)]
    computed = compared(before, after)["computed"]
    assert (computed.whole.before, computed.whole.after) == (400, 1200)
    assert first(computed, "engine") == ("a", 1.0)
    assert computed.groups[0].of_traffic == 0


def test_more_traffic_is_distinguished_from_less_reuse() -> None:
    """Twice the tokens at the same reuse would have been 200 more; the rest is lost reuse."""
    computed = compared([row("a", asked=1000, taken=800)], [row("a", asked=2000, taken=1000)])["computed"]
    assert (computed.whole.change, computed.of_traffic) == (800, 200)


def test_a_group_that_is_new_is_all_traffic() -> None:
    computed = compared([row("a", asked=100)], [row("a", asked=100), row("c", asked=500)])["computed"]
    assert [(each.dimension, each.group, each.of_traffic) for each in computed.groups[:2]] == [
        ("engine", "c", 500),
        ("model", "large", 500),
    ]


def test_ranges_of_different_lengths_are_compared_by_the_minute() -> None:
    assert compared([row("a", asked=100)], [row("a", asked=600)], (1, 6)) == {}


def test_one_that_goes_the_other_way_has_a_negative_share() -> None:
    asked = compared([row("a", asked=100), row("b", asked=100)], [row("a", asked=300), row("b", asked=50)])["asked"]
    shares = {each.group: round(each.share, 3) for each in asked.groups if each.dimension == "engine"}
    assert shares == {"a": 1.333, "b": -0.333}


def test_causes_and_tenants_are_compared() -> None:
    before = [row("a", **{"asked": 100, "local": 90, "cause:held:gpu": 90, "cause:new:": 10, "tenant:x:held": 40})]
    after = [
        row(
            "a",
            **{
                "asked": 100,
                "local": 10,
                "cause:held:gpu": 10,
                "cause:evicted:gpu": 80,
                "cause:new:": 10,
                "tenant:x:evicted": 40,
            },
        )
    ]
    computed = compared(before, after)["computed"]
    assert first(computed, "cause") == ("evicted:gpu", 1.0)
    assert {each.group: each.share for each in computed.groups if each.dimension == "tenant"} == {
        "x": 0.5,
        "plain": 0.5,
    }


def test_prefixes_are_compared_by_their_tokens() -> None:
    before = Side([row("a", asked=2000, taken=1600)], 1, {"1a": {"asked": 1000, "taken": 800}})
    after = Side([row("a", asked=2000, taken=800)], 1, {"1a": {"asked": 1000}, "2b": {"asked": 500, "taken": 400}})
    found = {each.measure: each for each in changes(before, after, MODELS)}
    parts = {each.group: each for each in found["computed"].groups if each.dimension == "prefix"}
    assert (parts["1a"].share, parts["1a"].of_traffic) == (1.0, 0)
    assert (parts["2b"].amount.before, parts["2b"].amount.after) == (0, 100)
    assert first(found["loaded"], "prefix") == ("1a", 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_groups_of_a_dimension_add_up_to_the_whole(seed: int) -> None:
    rng = random.Random(seed)

    def rows() -> list[SavingsRow]:
        return [
            replace(
                row(engine, asked=asked, taken=rng.randrange(asked), waited_ns=rng.randrange(10**9)),
                connector=connector,
            )
            for engine in MODELS
            for connector in ("One", "Other")
            for asked in [rng.randrange(1, 1000)]
        ]

    for change in compared(rows(), rows(), (2, 3)).values():
        for dimension in ("engine", "model", "connector"):
            groups = [each for each in change.groups if each.dimension == dimension]
            assert sum(each.share for each in groups) == pytest.approx(1)
            assert sum(each.amount.after for each in groups) == pytest.approx(change.whole.after)
            assert all((each.of_traffic is not None) == (change.measure in PARTS_OF_ASKED) for each in groups)

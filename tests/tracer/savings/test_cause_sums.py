"""Sums of the causes of prompt tokens."""

from __future__ import annotations

from collections import Counter

from evicted_story import ABOUT, CHUNK, STORY
from history import history

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events import semconv
from kvtrail.tracer.savings.cause_sums import MAX_TENANTS, OTHER, Tenants, causes_of, tenants_of
from kvtrail.tracer.savings.counter import SavingsCounter


def summed(story: str) -> Counter[str]:
    sums = SavingsCounter()
    detector = Detector(on_fact=sums.enter, on_causes=lambda _, breakdown: sums.explain(breakdown))
    detector.feed(history(story, chunk=CHUNK, capabilities=ABOUT[semconv.CAPABILITIES.key]))
    detector.settle()
    measures = Counter[str]()
    for cell, value in sums.cells.items():
        measures[cell.measure] += value
    return measures


def test_what_belongs_to_no_tenant_is_plain_and_costs_no_sum() -> None:
    measures = summed(STORY)
    assert causes_of(measures)["evicted:store"] == 32
    assert tenants_of(measures) == {}
    assert not [name for name in measures if name.startswith("tenant:")]


def test_the_tokens_of_all_tenants_are_those_of_all_causes() -> None:
    measures = summed(
        STORY.replace("a: start 96", "a: start 96 as red").replace("b: start 120", "b: start 120 as blue")
    )
    tenants = tenants_of(measures)
    assert tenants == {"red": {"new": 96}, "blue": {"evicted": 32, "held": 64, "unaligned": 24}}
    assert sum(sum(causes.values()) for causes in tenants.values()) == sum(causes_of(measures).values())


def test_of_very_many_tenants_the_rest_is_one() -> None:
    tenants = Tenants()
    named = [tenants.of(f"t{number}") for number in range(MAX_TENANTS + 5)]
    assert named == [*(f"t{number}" for number in range(MAX_TENANTS)), *[OTHER] * 5]


def test_a_request_with_an_id_that_was_used_before_is_its_own_tenants() -> None:
    again = "{name}: start 96 as {tenant} of 1 2 3\n{name}: L 96 c0 h0 -> 0\n{name}: A 0\n{name}: S 0+96\n{name}: end\n"
    measures = summed(again.format(name="a", tenant="red") + again.format(name="a", tenant="plain"))
    assert {tenant: sum(causes.values()) for tenant, causes in tenants_of(measures).items()} == {"red": 96, "plain": 96}

"""Sums of the causes of prompt tokens."""

from __future__ import annotations

from collections import Counter

from evicted_story import ABOUT, CHUNK, STORY
from history import history

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Alloc, Lookup
from kvtrail.tracer.ledger.facts import Breakdown
from kvtrail.tracer.model.causes import Cause, Detail, Part
from kvtrail.tracer.model.tenants import OTHER
from kvtrail.tracer.savings.cause_sums import (
    MAX_TENANTS,
    FirstNames,
    causes_of,
    lacking_of,
    measures_of,
    tenants_of,
    unstored_of,
)
from kvtrail.tracer.savings.counter import MAX_TIERS, SavingsCounter


def summed(story: str) -> Counter[str]:
    sums = SavingsCounter()
    detector = Detector(on_fact=sums.enter, on_causes=lambda _, breakdown: sums.explain(breakdown))
    detector.feed(history(story, chunk=CHUNK, capabilities=ABOUT[semconv.CAPABILITIES.key]))
    detector.settle()
    measures = Counter[str]()
    for row in sums.sums.rows():
        measures.update(row.measures)
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


def test_what_a_kv_cache_group_lacked_is_summed_by_group() -> None:
    window = Detail(group=1, group_kind="sliding_window")
    parts = [
        Part(Cause.HELD, "gpu", 0, 32),
        Part(Cause.EVICTED, "gpu", 32, 32, window),
        Part(Cause.UNCACHED, "host", 64, 16, window),
        Part(Cause.EVICTED, "host", 80, 16, Detail(group=0, group_kind="full_attention")),
        Part(Cause.NEW, "", 96, 16),
    ]
    events = history(STORY)
    lookup = next(event for event in events if isinstance(event, Lookup))
    alloc = next(event for event in events if isinstance(event, Alloc))
    measures = measures_of(Breakdown(alloc, lookup, parts, None), str)
    assert lacking_of(measures) == {
        "0:full_attention": {"evicted": 16},
        "1:sliding_window": {"evicted": 32, "uncached": 16},
    }
    assert causes_of(measures) == {
        "evicted:gpu": 32,
        "evicted:host": 16,
        "held:gpu": 32,
        "new:": 16,
        "uncached:host": 16,
    }
    assert lacking_of(summed(STORY)) == {}


def test_what_the_store_never_had_is_summed_by_why() -> None:
    parts = [
        Part(Cause.EVICTED, "gpu", 0, 32, Detail(unstored="full")),
        Part(Cause.RESET, "gpu", 32, 16, Detail(unstored="full")),
        Part(Cause.EVICTED, "gpu", 48, 8, Detail(unstored="failed")),
        Part(Cause.EVICTED, "host", 56, 8),
    ]
    events = history(STORY)
    lookup = next(event for event in events if isinstance(event, Lookup))
    alloc = next(event for event in events if isinstance(event, Alloc))
    measures = measures_of(Breakdown(alloc, lookup, parts, None), str)
    assert unstored_of(measures) == {"evicted:failed": 8, "evicted:full": 32, "reset:full": 16}
    assert causes_of(measures) == {"evicted:gpu": 40, "evicted:host": 8, "reset:gpu": 16}


def test_of_very_many_tenants_the_rest_is_one() -> None:
    tenants = FirstNames(MAX_TENANTS)
    named = [tenants.of(f"t{number}") for number in range(MAX_TENANTS + 5)]
    assert named == [*(f"t{number}" for number in range(MAX_TENANTS)), *[OTHER] * 5]


def test_of_very_many_tiers_the_rest_is_one() -> None:
    events = history(STORY)
    lookup = next(event for event in events if isinstance(event, Lookup))
    alloc = next(event for event in events if isinstance(event, Alloc))
    sums = SavingsCounter()
    for number in range(MAX_TIERS + 4):
        sums.explain(Breakdown(alloc, lookup, [Part(Cause.LOADED, f"t{number}", 0, 64)], None))
    (row,) = sums.sums.rows()
    loaded = causes_of(row.measures)
    assert len(loaded) == MAX_TIERS + 1
    assert loaded["loaded:other"] == 4 * 64


def test_a_request_with_an_id_that_was_used_before_is_its_own_tenants() -> None:
    again = "{name}: start 96 as {tenant} of 1 2 3\n{name}: L 96 c0 h0 -> 0\n{name}: A 0\n{name}: S 0+96\n{name}: end\n"
    measures = summed(again.format(name="a", tenant="red") + again.format(name="a", tenant="plain"))
    assert {tenant: sum(causes.values()) for tenant, causes in tenants_of(measures).items()} == {"red": 96, "plain": 96}

"""What was computed although a cache had held it: which admissions lost what, and by which prefix it is named."""

from __future__ import annotations

import pytest
from evicted_story import ABOUT, CHUNK, STORY
from history import history
from msgspec.structs import replace

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events import semconv
from kvtrail.tracer.ledger.facts import Breakdown
from kvtrail.tracer.model.causes import Cause, Part
from kvtrail.tracer.savings.waste import WASTED, WastedTokens, WasteSum, grouped, wasted_of


def explained(story: str) -> list[Breakdown]:
    found: list[Breakdown] = []
    detector = Detector(on_causes=lambda _, breakdown: found.append(replace(breakdown)))  # which is shortened
    detector.feed(history(story, chunk=CHUNK, capabilities=ABOUT[semconv.CAPABILITIES.key]))
    detector.settle()
    return found


def wasted(story: str) -> list[WastedTokens]:
    return [row for breakdown in explained(story) for row in wasted_of(breakdown)]


def test_what_was_evicted_is_named_by_the_first_block_that_was_lost() -> None:
    first, second = explained(STORY)
    assert wasted_of(first) == [], "it was new"
    (row,) = wasted_of(second)
    assert (row.cause, row.tier, row.tokens, row.start, row.tenant, row.admissions) == (
        "evicted",
        "store",
        32,
        64,
        "plain",
        1,
    )
    assert second.chain is not None
    assert row.prefix == second.chain[64 // second.block_size][:8].hex()
    assert row.at_ns == second.event.end_ns


def test_prompts_that_lose_the_same_beginning_have_the_same_prefix_and_others_another() -> None:
    (_, one) = explained(STORY)
    assert one.chain is not None
    size, common = one.block_size, one.chain[: 64 // one.block_size]
    other = replace(one, chain=[*common, *(bytes(8) for _ in one.chain[len(common) :])])

    def lost_from(breakdown: Breakdown, start: int) -> str:
        (row,) = wasted_of(replace(breakdown, parts=[Part(Cause.EVICTED, "gpu", start, 96 - start)]))
        assert row.start == start
        return row.prefix

    assert lost_from(one, 64 - size) == lost_from(other, 64 - size)
    assert lost_from(one, 64) != lost_from(other, 64)
    assert lost_from(one, 64) != lost_from(one, 64 - size)


def test_each_cause_has_a_row_and_the_admission_counts_once() -> None:
    (_, breakdown) = explained(STORY)
    breakdown.parts = [
        Part(Cause.HELD, "gpu", 0, 16), Part(Cause.RESET, "gpu", 16, 16), Part(Cause.EVICTED, "store", 32, 32),
        Part(Cause.NEW, "", 64, 16), Part(Cause.EVICTED, "store", 80, 16), Part(Cause.UNALIGNED, "", 96, 24),
    ]  # fmt: skip
    rows = wasted_of(breakdown)
    assert [(row.cause, row.tier, row.tokens, row.admissions) for row in rows] == [
        ("reset", "gpu", 16, 1), ("evicted", "store", 48, 0),
    ]  # fmt: skip
    assert len({row.prefix for row in rows}) == 1
    assert rows[0].start == 16 // breakdown.block_size * breakdown.block_size


@pytest.mark.parametrize("cause", [each for each in Cause if each not in WASTED])
def test_what_no_cache_had_or_has_given_is_no_waste(cause: Cause) -> None:
    (_, breakdown) = explained(STORY)
    breakdown.parts = [Part(cause, "", 0, 120)]
    assert wasted_of(breakdown) == []


def test_without_hashes_a_failed_load_is_waste_without_a_prefix() -> None:
    (_, breakdown) = explained(STORY)
    breakdown.parts, breakdown.chain, breakdown.identity = [Part(Cause.FAILED_LOAD, "host", 32, 32)], None, "a:b"
    (row,) = wasted_of(breakdown)
    assert (row.prefix, row.start, row.tenant) == ("", 32, "a_b")


def test_seconds_are_those_of_the_engine_that_computed_it() -> None:
    sums = [
        WasteSum(("slow", "t"), 100, 2, 32, 5),
        WasteSum(("fast", "t"), 100, 1, 16, 9),
        WasteSum(("new", "u"), 7, 1, 0, 3),
    ]
    found = grouped(sums, lambda of: (of[1],), engine=0, rates={"slow": 10.0, "fast": 100.0})
    assert [*found] == [("t",), ("u",)]
    both = found["t",]
    assert (both.tokens, both.admissions, both.seconds, both.unrated, both.start, both.last_ns) == (
        200,
        3,
        11.0,
        0,
        16,
        9,
    )
    assert (found["u",].seconds, found["u",].unrated) == (None, 7)
    only = grouped(sums, lambda of: (of[1],), engine=0, rates={})
    assert (only["t",].seconds, only["t",].unrated) == (None, 200)

"""Why one of two requests was slower: each phase that differs, and what the events say of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_compare import HIT, MISS, side

from kvtrail.dashboard.content.request import compare

AGAIN = "L 750 c0 h512 -> 512\n" * 3 + "A 512\nS 512+238\nend"
LATER = "L 750 c0 -> later\n" * 2 + HIT
LOADED = "L 750 c0 h512 -> 512 async\nA 512\nload 512/512\nR\nS 512+238\nend"
COMPUTED = "L 750 c0 h0 -> 0\nA 0\nS 0+750\nend"


@pytest.mark.parametrize(
    ("phase", "one", "other", "why"),
    [
        ("queued", AGAIN, HIT, "A was looked up 3 times before it was given blocks, B once"),
        ("queued", HIT, HIT, ""),
        ("lookup", LATER, HIT, "A was answered 'ask me later' twice, B never"),
        ("waiting for remote KV", LOADED, COMPUTED, "A waited for a load of 512 tokens, B nothing"),
        ("prefill", COMPUTED, HIT, "A computed 750 tokens, B 238 tokens; of the difference, 512 of unknown cause"),
        ("prefill", HIT, HIT, "both computed 238 tokens"),
        ("preempted", MISS, HIT, "A was preempted once, B never"),
    ],
)
def test_each_phase_has_what_explains_it(phase: str, one: str, other: str, why: str) -> None:
    a, b = (side(text, **{phase.replace(" ", "_"): ms}) for text, ms in ((one, 900.0), (other, 100.0)))
    (found,) = compare.phase_differences(a, b)
    assert (found.phase, found.longer_ms) == (phase, 800.0)
    assert found.why.startswith(why) if why else found.why == ""


def test_the_largest_difference_comes_first_and_small_ones_not_at_all() -> None:
    a, b = side(HIT, queued=50.0, prefill=900.0, decode=101.0), side(HIT, queued=150.0, prefill=300.0, decode=100.0)
    assert [each.phase for each in compare.phase_differences(a, b)] == ["prefill", "queued"]
    said = compare.slower_summary(a, b)
    assert said.startswith("**A took 501 ms longer than B**: 1.05 s against 550 ms. It was 600 ms longer in prefill.")
    assert compare.slower_summary(b, a).startswith("**B took 501 ms longer than A**")
    assert [row["A longer by"] for row in compare.slower_rows(a, b)] == ["+600 ms", "-100 ms"]
    assert [row["B longer by"] for row in compare.slower_rows(b, a)] == ["+600 ms", "-100 ms"], "as the sentence has it"


def test_the_time_after_a_call_that_raised_is_a_difference_too() -> None:
    """`It was 75.2 ms longer in preempted`, of a request that had failed for 576 ms."""
    a, b = side(HIT, queued=190.0, preempted=75.0, failed=576.0), side(HIT, queued=839.0)
    a.request["error"] = "AssertionError"
    found = compare.phase_differences(a, b)
    longest = next(each for each in found if each.longer_ms > 0)
    assert (longest.phase, longest.why) == ("failed", "a call for A raised")
    assert "576 ms longer in failed. A call for A raised." in compare.slower_summary(a, b)


def test_requests_that_took_as_long_say_so_or_nothing() -> None:
    assert compare.slower_summary(side(HIT, prefill=40.0), side(HIT, prefill=40.2)) == ""
    swapped = compare.slower_summary(side(HIT, prefill=40.0, decode=60.0), side(HIT, prefill=60.0, decode=40.0))
    assert swapped == "**Both took about as long**, 100 ms against 100 ms, but not in the same phases."


def test_a_transfer_is_beside_the_phases_and_not_added_to_them() -> None:
    assert compare.slower_summary(side(HIT, prefill=40.0, store=500.0), side(HIT, prefill=40.0)) == ""


def test_what_the_tokens_cost_and_what_remains_unexplained_is_said() -> None:
    """3.66 s of prefill were explained by 484 tokens, which cost 27 ms at that engine's rate."""
    a, b = side(COMPUTED, prefill=4000.0, queued=10.0), side(HIT, prefill=100.0, queued=310.0)
    slow = replace(a, rate=10_000.0)
    prefill = compare.phase_differences(slow, b)[0]
    assert prefill.why.endswith(
        "; at the 10,000 tokens/s of its engine that costs 51.2 ms, and 3.85 s remain unexplained"
    )
    assert compare.slower_summary(slow, b).endswith(" The other way went 300 ms queued.")
    explained = compare.phase_differences(replace(a, rate=512 / 3.9), b)[0]
    assert explained.why.endswith(" of its engine that costs 3.90 s"), "it explains all of it"
    fewer = compare.phase_differences(replace(side(HIT, prefill=4000.0), rate=10_000.0), side(COMPUTED, prefill=100.0))[
        0
    ]
    assert fewer.why.endswith(": fewer tokens took longer, so that explains nothing of 3.90 s")

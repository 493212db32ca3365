"""Why one of two requests was slower: each phase that differs, and what the events say of it."""

from __future__ import annotations

import pytest
from test_compare import HIT, MISS, side

from kvtrail.dashboard.content.request import compare

AGAIN = "L 750 c0 h512 -> 512\n" * 3 + "A 512\nS 512+238\nend"
LATER = "L 750 c0 -> later\n" * 2 + HIT
LOADED = "L 750 c0 h512 -> 512 async\nA 512\nload 512/512\nR\nS 512+238\nend"
COMPUTED = "L 750 c0 h0 -> 0\nA 0\nS 0+750\nend"


@pytest.mark.parametrize(
    ("phase", "one", "other", "ours", "theirs"),
    [
        ("queued", AGAIN, HIT, "looked up 3 times", "looked up once"),
        ("lookup", LATER, HIT, "twice answered 'ask me later'", "never answered 'ask me later'"),
        ("waiting for remote KV", LOADED, COMPUTED, "loaded 512 tokens", "loaded 0 tokens"),
        ("prefill", COMPUTED, HIT, "computed 750 tokens (736 unknown, 14 unaligned)", "computed 238 tokens"),
        ("preempted", MISS, HIT, "preempted once", "preempted never"),
    ],
)
def test_each_phase_has_what_explains_it(phase: str, one: str, other: str, ours: str, theirs: str) -> None:
    a, b = (side(text, **{phase.replace(" ", "_"): ms}) for text, ms in ((one, 900.0), (other, 100.0)))
    row = compare.rows(a, b)[0]
    assert row[""] == phase
    assert row["A"] == f"900 ms: {ours}"
    assert row["B"].startswith(f"100 ms: {theirs}")


def test_the_largest_difference_comes_first_and_small_ones_not_at_all() -> None:
    a, b = side(HIT, queued=50.0, prefill=900.0, decode=101.0), side(HIT, queued=150.0, prefill=300.0, decode=100.0)
    assert compare.longer_ms(a, b) == {"prefill": 600.0, "queued": -100.0}
    said = compare.summary(a, b)
    assert said == "**A took 501 ms longer than B**: 1.05 s against 550 ms. It was 600 ms longer in prefill."
    assert compare.summary(b, a).startswith("**B took 501 ms longer than A**")


def test_the_time_after_a_call_that_raised_is_a_difference_too() -> None:
    """`It was 75.2 ms longer in preempted`, of a request that had failed for 576 ms."""
    a, b = side(HIT, queued=190.0, preempted=75.0, failed=576.0), side(HIT, queued=839.0)
    a.request["error"] = "AssertionError"
    assert "576 ms longer in failed." in compare.summary(a, b)
    (failed,) = (row for row in compare.rows(a, b) if row[""] == "failed")
    assert failed == {"": "failed", "A": "576 ms: a call for it raised", "B": "none"}


def test_requests_that_took_as_long_say_so_or_nothing() -> None:
    assert compare.summary(side(HIT, prefill=40.0), side(HIT, prefill=40.2)) == ""
    swapped = compare.summary(side(HIT, prefill=40.0, decode=60.0), side(HIT, prefill=60.0, decode=40.0))
    assert swapped == "**Both took about as long**, 100 ms against 100 ms, but not in the same phases."


def test_a_transfer_is_beside_the_phases_and_not_added_to_them() -> None:
    assert compare.summary(side(HIT, prefill=40.0, store=500.0), side(HIT, prefill=40.0)) == ""

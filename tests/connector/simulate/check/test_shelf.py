"""Bugs that need two things to happen to one request are found, and the store without them is accused of nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from planted.shelf_bugs import SHELF_BUGS

from kvtrail.connector.simulate.check.session import check

MISSED = {"LeaseGivenBackTwice": "a reset has to come between the lookups of one of two requests with the same lease"}
"""Why a session does not find a bug."""
COMBINED = {"MarkOfARefusedStoreTrusted": 0, "TableAppendedOnResume": 0}
"""Bugs that one run of `combined` shows, and its seed."""


@pytest.mark.parametrize("runs", [3, pytest.param(40, marks=pytest.mark.long)])
def test_the_shelf_without_a_bug_is_clean(runs: int) -> None:
    checked = check("planted.shelf:Shelf", profiles=["combined", "load-failure"], steps=None, runs=runs, shrink_tries=0)
    assert [found.failure for found in checked.found] == []
    assert checked.fake_workers is None
    assert checked.reached["lookup/hit"] > 20


@pytest.mark.parametrize(("bug", "seed"), COMBINED.items())
def test_what_happens_to_one_request_together_shows_a_bug(bug: str, seed: int) -> None:
    checked = check(f"planted.shelf_bugs:{bug}", profiles=["combined"], seed=seed, steps=None, runs=1, shrink_tries=0)
    assert checked.found


@pytest.mark.parametrize("slots", [12, 300])
@pytest.mark.parametrize("bug", ["StoreOfASharerKept", "StoresOfAFailedStepKept"])
def test_what_was_computed_of_a_failed_load_is_asked_for_again(bug: str, slots: int) -> None:
    """Also where another request, which shares the failed blocks, has computed it, and where the store is small."""
    config = {"slots": slots, "between": False, "delay": 0}
    checked = check(
        f"planted.shelf_bugs:{bug}",
        config=config,
        profiles=["load-failure"],
        seed=1,
        steps=None,
        runs=1,
        shrink_tries=0,
    )
    assert "bytes" in {found.failure.kind for found in checked.found}
    assert checked.reached["load/asked-after-failure"]


@pytest.mark.long
@pytest.mark.parametrize("bug", [name for name in SHELF_BUGS if name not in MISSED])
def test_a_bug_is_found_without_a_hint(bug: str) -> None:
    checked = check(f"planted.shelf_bugs:{bug}", steps=20_000, shrink_tries=0, stop_at_first=True)
    assert checked.found, f"{bug} is not found in {checked.steps.total()} steps"

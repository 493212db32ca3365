"""Chunks that were computed from a failed load, beside what incidents and look-alikes show (tests/incidents)."""

from __future__ import annotations

import pytest
from history import history, judge, rules_found

STORED = "z: plan store 0+256 keys a\n"
LOADS = "L 900 c0 h256 -> 256 keys a\nA 256 [1-29]\n"
STORES = "plan store 256+512 [9-24] keys b,c\n"
FOUND = "z: L 900 c0 h768 -> 768 keys a,b,c"


def found(text: str, *, groups: str | None = None) -> list[str]:
    return rules_found(judge(history(text, groups=groups)))


def test_a_request_that_its_failed_load_ends_leaves_its_chunks() -> None:
    """vLLM ends the request before it says which blocks failed, and another one is given them."""
    ends = f"{STORED}{LOADS}S 256+644 [1-29]\n{STORES}end error\nerror [3-8]\n"
    assert found(ends + FOUND) == ["failed-load-used"]
    assert (
        found(f"{ends}b: L 900 c0 -> 0\nb: A 0 [1-29]\nb: S 0+900 [1-29]\nb: plan store 256+512 keys b,c\n{FOUND}")
        == []
    )


def test_a_request_that_shares_the_failed_block_leaves_its_chunks_too() -> None:
    shares = "b: L 900 c256 h0 -> 0\nb: A 0 [1-8 30-50]\nS 256+100 [1-29]\nb: S 256+644 [1-8 30-50]\n"
    assert found(f"{STORED}{LOADS}{shares}b: plan store 256+512 keys b,c\nerror [3-8]\n{FOUND}") == ["failed-load-used"]


def test_a_plan_of_a_load_is_judged_too() -> None:
    loads = "z: plan load 256+256 keys b"
    assert found(f"{STORED}{LOADS}S 256+644 [1-29]\n{STORES}error [3-8]\n{loads}") == ["failed-load-used"]


@pytest.mark.parametrize(
    "stores",
    [
        "plan store 256+512 [9-24] keys b,c #1\ndone #1\n",  # it may have copied when the blocks were computed again
        "z: plan store 256+512 keys b,c\nplan store 256+512 [9-24] keys b,c present\n",
    ],
)
def test_what_was_not_copied_in_the_step_is_not_wrong(stores: str) -> None:
    assert found(f"{STORED}{LOADS}S 256+644 [1-29]\n{stores}error [3-8]\n{FOUND}") == []


def test_a_failed_block_of_any_group_counts() -> None:
    groups = "full 32, window 32 128"
    text = (
        f"{STORED}L 900 c0 h256 -> 256 keys a\nA 256 [1-29 | 0 0 0 0 31-55]\nS 256+644 [1-29 | 0 0 0 0 31-55]\n"
        "plan store 256+512 keys b,c\nerror [33]\n"
    )
    assert found(text + FOUND, groups=groups) == ["failed-load-used"]
    assert found(text.replace("error [33]", "error [40]") + FOUND, groups=groups) == []  # no load wrote it

"""The block tables of a request, by KV cache group."""

from __future__ import annotations

from typing import Any

import pytest
from history import history, loaded

from kvtrail.dashboard.content.request import replay
from kvtrail.tracer.serve.api.requests import timeline

TWO = """
L 96 c0 h64 -> 64
A 64 [1-3 | 0 20-21]
plan load 0+64 [1 2 | 20] at 0,32 #7
S 64+32
end
"""


def timeline_of(text: str, *, groups: str | None = None) -> dict[str, Any]:
    spans = [span for _, span in loaded(history(text, groups=groups)).moments]
    return timeline({"engine": "e", "request": "r"}, spans, []).model_dump()


def step(timeline: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in timeline["steps"] if each["name"] == name)


def test_each_group_has_its_blocks_and_the_null_blocks_are_counted_apart() -> None:
    known = timeline_of(TWO, groups="full 32, window 32 64")
    assert [each["kind"] for each in known["groups"]] == ["full_attention", "sliding_window"]
    allocation = replay.latest_allocation(known)
    assert allocation is not None
    assert replay.block_rows(allocation, known["groups"]) == [
        {
            "KV cache group": "0 (full attention)", "Blocks": "3", "Null blocks": "0", "Block ids": "1-3",
            "Tokens of a block": "32",
        },
        {
            "KV cache group": "1 (sliding window)", "Blocks": "2", "Null blocks": "1", "Block ids": "20-21",
            "Tokens of a block": "32",
        },
    ]  # fmt: skip
    assert replay.block_summary(allocation) == "5 blocks in 2 KV cache groups"


def test_the_blocks_of_a_plan_begin_somewhere_in_each_group() -> None:
    known = timeline_of(TWO, groups="full 32, window 32 64")
    rows = replay.block_rows(step(known, "kv.load.plan"), known["groups"])
    assert [(each["Block ids"], each["From token"]) for each in rows] == [("1-2", "0"), ("20", "32")]


def test_groups_that_nobody_declared_have_no_kind() -> None:
    known = timeline_of(TWO)
    assert known["groups"] == []
    rows = replay.block_rows(step(known, "kv.alloc"), known["groups"])
    assert [each["KV cache group"] for each in rows] == ["0", "1"]
    assert all("Tokens of a block" not in each for each in rows)


def test_one_group_has_one_row_and_no_table_of_its_own() -> None:
    known = timeline_of("L 96 c0 h64 -> 64\nA 64 [1-3 7]\nend")
    allocation = step(known, "kv.alloc")
    assert replay.latest_allocation(known) is None
    assert [each["Block ids"] for each in replay.block_rows(allocation, [])] == ["1-3, 7"]
    assert replay.block_summary(allocation) == "4 blocks"


@pytest.mark.parametrize("name", ["kv.lookup", "kv.schedule"])
def test_a_step_without_blocks_has_no_rows(name: str) -> None:
    assert replay.block_rows(step(timeline_of(TWO), name), []) == []


def test_a_foreign_span_has_none_whatever_it_says() -> None:
    foreign = {"foreign": True, "name": "x", "numbers": {"blocks_ids": [1, 2]}}
    assert replay.block_rows(foreign, []) == []

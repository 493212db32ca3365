"""What a request holds by KV cache group: all that vLLM may have given back is not certain."""

from __future__ import annotations

import pytest
from history import BLOCK_SIZE, groups_declared

from kvtrail.tracer.events.cache_groups import CacheGroup, declaration, groups_of
from kvtrail.tracer.events.events import Schedule
from kvtrail.tracer.ledger.block_table import BlockTable


def step(ids: tuple[int, ...], by_group: tuple[int, ...] | None, groups: str | None = None) -> Schedule:
    return Schedule(
        engine="engine", recorder="recorder", sequence=0, start_ns=1, end_ns=1, computed=0, scheduled=1,
        blocks_ids=ids, blocks_by_group=by_group, block_size=BLOCK_SIZE, groups=groups and groups_declared(groups),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "length", "certain"),
    [
        ("full 32", 9, 0),
        ("window 32 64", 2, 0),
        ("window 32 64", 3, 1),
        ("window 32 65", 3, 1),
        ("window 32 66", 3, 0),
        ("chunked 32 64", 3, 2),
        ("chunked 32 64", 4, 4),
        ("state 32", 4, 3),
        ("other 32", 4, 4),
    ],
)
def test_a_block_that_no_later_token_needs_is_not_certain(kind: str, length: int, certain: int) -> None:
    """By vLLM's own rule: `get_num_skipped_tokens` of a group's manager."""
    table = BlockTable(step((9, *range(10, 10 + length)), (1, length), f"full 32, {kind}"))
    assert table.certain_from(1) == certain
    for place, block in enumerate(range(10, 10 + length)):
        assert table.holds(block) is (True if place >= certain else None)
    assert table.holds(9) is True
    assert table.holds(99) is False


def test_the_null_block_is_never_held() -> None:
    table = BlockTable(step((1, 2, 0, 3), (2, 2), "full 32, window 32 64"))
    assert table.holds(0) is False
    assert table.held == 3


def test_a_step_adds_to_each_group_once_however_many_record_it() -> None:
    table = BlockTable(step((1, 2, 7), (2, 1), "full 32, state 64"))
    for _ in range(2):
        table.add(step((3, 0, 8), (1, 2)))
    assert table.groups == [[1, 2, 3], [7, 0, 8]]
    table.add(step((9,), (0, 1)))
    assert table.groups == [[1, 2, 3], [7, 0, 8, 9]]


def test_groups_that_are_not_declared_are_unknown() -> None:
    """An older recorder, or an unreadable declaration."""
    for groups in (None, "full 32"):
        table = BlockTable(step((1, 2), (1, 1), groups))
        assert [table.certain_from(n) for n in (0, 1)] == [0, 1]
    for text in ("", "[]", "{", "7", '[{"window": 3}]', "[7]"):
        assert groups_of(text) == (CacheGroup(),)


def test_a_declaration_is_read_as_it_was_written() -> None:
    groups = (CacheGroup("full_attention", 32, None, 2, 4096), CacheGroup("sliding_window", 16, 128, 3, 2048))
    assert groups_of(declaration(groups)) == groups
    assert declaration([CacheGroup("full_attention", 16, None, 4, 1)]) is None

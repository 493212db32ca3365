"""Checksums of what one engine hands over to another: how they travel, and what they show."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from kvtrail.connector.fingerprints import checksums
from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints
from kvtrail.connector.fingerprints.checksums import MAX_CHECKSUMS, BlockChecksums, HandedOver, chosen

BLOCKS, TOKENS, LAYERS = 24, 16, 4


def caches(blocks: int = BLOCKS) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return {f"layer {n}": torch.randn((blocks, 2, TOKENS, 4, 32), generator=made) for n in range(LAYERS)}


def checksums_of(layers: dict[str, torch.Tensor], blocks: int = BLOCKS) -> BlockChecksums:
    return BlockChecksums(BlockFingerprints(layers, blocks, TOKENS))


@pytest.mark.parametrize("blocks", [0, 1, 2, 7, MAX_CHECKSUMS, MAX_CHECKSUMS + 1, 10_000, 131_072])
def test_they_travel_as_json_in_less_than_3_kb_and_the_last_block_has_one(blocks: int) -> None:
    numbers = chosen(blocks)
    assert len(numbers) <= MAX_CHECKSUMS
    assert not blocks or numbers[-1] == blocks - 1
    said = HandedOver(16 * blocks, "digest", 16 * blocks, "layout", {number: number * 7 % 65_536 for number in numbers})
    sent = json.dumps(said.as_dict())
    assert len(sent) < 3_000
    assert HandedOver.of_dict(json.loads(sent)) == said


@pytest.mark.parametrize(
    "given",
    [
        None, 3, "x", [], {},
        {"tokens": 1, "prompt": "", "of_prompt": 1, "layout": "", "last": 0, "every": 1, "checksums": "not base64"},
        {"tokens": 1, "prompt": "", "of_prompt": 1, "layout": "", "last": 0, "every": 1, "checksums": "AA=="},
        {"tokens": "many", "prompt": "", "of_prompt": 1, "layout": "", "last": 0, "every": 1, "checksums": ""},
    ],
)  # fmt: skip
def test_what_is_anything_else_raises(given: Any) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - of any kind: the caller leaves it out
        HandedOver.of_dict(given)


def test_equal_bytes_have_equal_checksums_in_other_blocks_of_another_pool() -> None:
    one, other = caches(), caches(2 * BLOCKS)
    for name in one:
        other[name][10:15] = one[name][3:8]
    numbers = range(5)
    here, there = checksums_of(one), checksums_of(other, 2 * BLOCKS)
    assert here.layout == there.layout
    assert here.of(numbers, range(3, 8)) == there.of(numbers, range(10, 15))
    assert not set(here.of(numbers, range(3, 8))) & set(there.of(numbers, range(11, 16)))


def test_a_block_that_another_request_has_written_to_has_another_one() -> None:
    layers = caches()
    read = checksums_of(layers)
    before = read.of(range(BLOCKS), range(BLOCKS))
    for cache in layers.values():
        cache[5:9] += 1
    after = read.of(range(BLOCKS), range(BLOCKS))
    assert [n for n in range(BLOCKS) if before[n] != after[n]] == [5, 6, 7, 8]


def test_blocks_that_lie_otherwise_have_another_layout() -> None:
    heads_first = {name: each.transpose(2, 3).contiguous() for name, each in caches().items()}
    fewer = {name: each for name, each in caches().items() if name != "layer 3"}
    assert len({checksums_of(each).layout for each in (caches(), heads_first, fewer)}) == 3


def test_an_engine_that_is_gone_has_none() -> None:
    read = checksums_of(caches())
    checksums.BY_ENGINE["engine"] = read
    assert checksums.BY_ENGINE.get("engine") is read
    assert checksums.BY_ENGINE.get("another") is None
    del read
    assert checksums.BY_ENGINE.get("engine") is None

"""Some bytes of every block: which are read, and what they show."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from kvtrail.connector.fingerprints.block_fingerprints import COMMON, DRAWN, BlockFingerprints
from kvtrail.connector.fingerprints.fingerprint import OWN_BITS, equal_groups

BLOCKS, TOKENS, LAYERS = 12, 16, 24
Caches = dict[str, torch.Tensor]


def noise(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def in_one_piece() -> Caches:
    whole = noise(LAYERS, BLOCKS, 2, TOKENS, 4, 32)
    return {f"layer {n}": whole[n] for n in range(LAYERS)}


LAYOUTS: dict[str, Caches] = {
    "one piece of memory": in_one_piece(),
    "keys and values apart": {f"layer {n}": noise(2, BLOCKS, TOKENS, 4, 32) + n for n in range(LAYERS)},
    "heads first": {f"layer {n}": noise(BLOCKS, 4, TOKENS, 64) + n for n in range(4)},
    "latent": {f"layer {n}": noise(BLOCKS, TOKENS, 576) + n for n in range(3)},
    "bytes of odd length": {"layer": (noise(BLOCKS, TOKENS, 133) * 50).to(torch.int8)},
    "permuted": {"layer": noise(BLOCKS, 4, TOKENS, 32).permute(0, 2, 1, 3)},
    "smaller blocks of the kernel": {f"layer {n}": noise(2 * BLOCKS, TOKENS // 2, 4, 32) + n for n in range(3)},
}


def hashes(count: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    rng = random.Random(seed)
    return np.array([rng.getrandbits(64) for _ in range(count)], dtype=np.uint64)


def read(made: BlockFingerprints, blocks: list[int], of: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> list[int]:
    return made.values([made.read(blocks, of.tolist())])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_blocks_differ_in_nearly_every_group_and_the_same_block_in_none(layout: str) -> None:
    caches = {
        name: cache.clone() if layout != "one piece of memory" else cache for name, cache in LAYOUTS[layout].items()
    }
    made, of = BlockFingerprints(caches, BLOCKS, TOKENS), hashes(BLOCKS)
    blocks = [*range(BLOCKS)]
    first = read(made, blocks, of)
    assert first == read(made, blocks, of) == read(BlockFingerprints(caches, BLOCKS, TOKENS), blocks, of)
    assert [read(made, [n], of[n : n + 1])[0] for n in blocks] == first, "a block's does not depend on the others"
    assert len(set(first)) == BLOCKS
    shifted = read(made, [*blocks[1:], 0], of)
    for before, after in zip(first, shifted, strict=True):
        assert equal_groups(before, after) <= 2
    assert all(read(made, blocks, of[::-1].copy())[n] >> OWN_BITS == first[n] >> OWN_BITS for n in blocks), (
        "common to all hashes"
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_last_token_of_a_block_is_not_read(layout: str) -> None:
    caches = {name: cache.clone() for name, cache in LAYOUTS[layout].items()}
    made, of, blocks = BlockFingerprints(caches, BLOCKS, TOKENS), hashes(BLOCKS), [*range(BLOCKS)]
    before = read(made, blocks, of)
    assert made.sees_partial
    for cache in caches.values():
        kernel = layout.startswith("smaller")
        places = next(n for n, size in enumerate(cache.shape) if size == (TOKENS // 2 if kernel else TOKENS))
        last = cache.select(places, -1)
        (last[1::2] if kernel else last).zero_()
    assert read(made, blocks, of) == before
    for cache in caches.values():
        cache.zero_()
    assert read(made, blocks, of) == [0] * BLOCKS


def test_first_and_last_layer_keys_and_values_are_read_of_every_block() -> None:
    for part in ((0, 0), (0, 1), (LAYERS - 1, 0), (LAYERS - 1, 1)):
        whole = noise(LAYERS, BLOCKS, 2, TOKENS, 4, 32)
        made = BlockFingerprints({f"layer {n}": whole[n] for n in range(LAYERS)}, BLOCKS, TOKENS)
        offsets = made._begin[:COMMON] * made._word // whole.element_size()
        layers, inner = np.divmod(offsets, whole[0].numel())
        halves = inner % whole[0, 0].numel() // whole[0, 0, 0].numel()
        assert part[0] in layers
        assert part[1] in halves


@pytest.mark.parametrize("memory", ["heads first", "tokens first"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_ranks_first_head_has_the_same_groups_whatever_the_tensor_parallel_size(memory: str, size: int) -> None:
    def groups(heads: torch.Tensor) -> list[int]:
        """Of a rank with these heads of all layers, a layer in each row."""
        caches = {
            f"layer {n}": layer if memory == "heads first" else layer.transpose(1, 2) for n, layer in enumerate(heads)
        }
        made = BlockFingerprints(
            {name: cache.contiguous() for name, cache in caches.items()}, BLOCKS, TOKENS, heads=heads.shape[2]
        )
        assert made.of_first_head
        return [each >> OWN_BITS for each in read(made, [*range(BLOCKS)], hashes(BLOCKS))]

    whole = noise(3, BLOCKS, 8, TOKENS, 64)
    sizes = [whole[:, :, first : first + 8 // size] for first in range(0, 8, 8 // size)]
    assert [groups(part) for part in sizes] == [
        groups(whole[:, :, first : first + 1]) for first in range(0, 8, 8 // size)
    ]
    assert len({tuple(groups(part)) for part in sizes}) == size


def test_where_it_is_not_known_what_counts_heads_no_head_is_chosen() -> None:
    caches = {"layer": noise(BLOCKS, 2, TOKENS, 2, 32)}
    made = BlockFingerprints(caches, BLOCKS, TOKENS, heads=2)
    assert not made.of_first_head
    of = hashes(BLOCKS)
    assert read(made, [0, 1], of[:2]) == read(BlockFingerprints(caches, BLOCKS, TOKENS), [0, 1], of[:2])


def test_the_detection_rate_of_partial_faults_is_as_documented() -> None:
    """One layer of 24 in one block, which none of the common words is in: (1 - 1/24)**4 of the blocks do not show it."""
    whole = noise(LAYERS, 1, 2, TOKENS, 4, 32)
    made = BlockFingerprints({f"layer {n}": whole[n] for n in range(LAYERS)}, 1, TOKENS)
    of = hashes(2000)
    before = read(made, [0] * len(of), of)
    common = {int(begin * made._word // whole.element_size() // whole[0].numel()) for begin in made._begin[:COMMON]}
    whole[min({*range(LAYERS)} - common)] += 1
    changed = np.mean([one != other for one, other in zip(before, read(made, [0] * len(of), of), strict=True)])
    assert abs(changed - (1 - (1 - 1 / LAYERS) ** DRAWN)) < 0.03


def test_a_cache_that_does_not_show_its_tokens_says_so() -> None:
    assert not BlockFingerprints({"layer": noise(BLOCKS, 4096)}, BLOCKS, TOKENS).sees_partial

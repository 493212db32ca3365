"""Some bytes of every block: which are read, and what they show."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from kvtrail.connector.fingerprints import slim_reference
from kvtrail.connector.fingerprints.bloom_filter import BloomFilter
from kvtrail.connector.fingerprints.mismatch import Mismatch, Origin
from kvtrail.connector.fingerprints.slim import COMMON, DRAWN, SlimFingerprints, equal_groups
from kvtrail.connector.fingerprints.slim_reference import SlimReference

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


def read(made: SlimFingerprints, blocks: list[int], of: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> list[int]:
    values: list[int] = made.read(blocks, of).values().tolist()
    return values


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_blocks_differ_in_nearly_every_group_and_the_same_block_in_none(layout: str) -> None:
    caches = {
        name: cache.clone() if layout != "one piece of memory" else cache for name, cache in LAYOUTS[layout].items()
    }
    made, of = SlimFingerprints(caches, BLOCKS, TOKENS), hashes(BLOCKS)
    blocks = [*range(BLOCKS)]
    first = read(made, blocks, of)
    assert first == read(made, blocks, of) == read(SlimFingerprints(caches, BLOCKS, TOKENS), blocks, of)
    assert [read(made, [n], of[n : n + 1])[0] for n in blocks] == first, "a block's does not depend on the others"
    assert len(set(first)) == BLOCKS
    shifted = read(made, [*blocks[1:], 0], of)
    for before, after in zip(first, shifted, strict=True):
        assert equal_groups(np.array([before], dtype=np.uint64), after) <= 2
    assert all(read(made, blocks, of[::-1].copy())[n] >> 16 == first[n] >> 16 for n in blocks), "common to all hashes"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_last_token_of_a_block_is_not_read(layout: str) -> None:
    caches = {name: cache.clone() for name, cache in LAYOUTS[layout].items()}
    made, of, blocks = SlimFingerprints(caches, BLOCKS, TOKENS), hashes(BLOCKS), [*range(BLOCKS)]
    before = read(made, blocks, of)
    assert made.skips_last
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
        made = SlimFingerprints({f"layer {n}": whole[n] for n in range(LAYERS)}, BLOCKS, TOKENS)
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
        made = SlimFingerprints(
            {name: cache.contiguous() for name, cache in caches.items()}, BLOCKS, TOKENS, heads=heads.shape[2]
        )
        assert made.of_first_head
        return [each >> 16 for each in read(made, [*range(BLOCKS)], hashes(BLOCKS))]

    whole = noise(3, BLOCKS, 8, TOKENS, 64)
    sizes = [whole[:, :, first : first + 8 // size] for first in range(0, 8, 8 // size)]
    assert [groups(part) for part in sizes] == [
        groups(whole[:, :, first : first + 1]) for first in range(0, 8, 8 // size)
    ]
    assert len({tuple(groups(part)) for part in sizes}) == size


def test_where_it_is_not_known_what_counts_heads_no_head_is_chosen() -> None:
    caches = {"layer": noise(BLOCKS, 2, TOKENS, 2, 32)}
    made = SlimFingerprints(caches, BLOCKS, TOKENS, heads=2)
    assert not made.of_first_head
    of = hashes(BLOCKS)
    assert read(made, [0, 1], of[:2]) == read(SlimFingerprints(caches, BLOCKS, TOKENS), [0, 1], of[:2])


def test_the_detection_rate_of_partial_faults_is_as_documented() -> None:
    """One layer of 24 in one block, which none of the common words is in: (1 - 1/24)**4 of the blocks do not show it."""
    whole = noise(LAYERS, 1, 2, TOKENS, 4, 32)
    made = SlimFingerprints({f"layer {n}": whole[n] for n in range(LAYERS)}, 1, TOKENS)
    of = hashes(2000)
    before = read(made, [0] * len(of), of)
    common = {int(begin * made._word // whole.element_size() // whole[0].numel()) for begin in made._begin[:COMMON]}
    whole[min({*range(LAYERS)} - common)] += 1
    changed = np.mean([one != other for one, other in zip(before, read(made, [0] * len(of), of), strict=True)])
    assert abs(changed - (1 - (1 - 1 / LAYERS) ** DRAWN)) < 0.03


def test_a_cache_that_does_not_show_its_tokens_says_so() -> None:
    assert not SlimFingerprints({"layer": noise(BLOCKS, 4096)}, BLOCKS, TOKENS).skips_last


HERE = Origin("r-1", 0, "plain")
WIDE = (1 << 40) + 1
"""Makes a hash of a small number."""


def known(*, own: bool = True, exact: bool = True) -> SlimReference:
    made = SlimReference(own=own, incomplete=BloomFilter())
    made.is_exact = exact
    learn(made, {11 * WIDE: 0xA1A2A3A4A5A60000, 12 * WIDE: 0xB1B2B3B4B5B60000})
    return made


def learn(made: SlimReference, contents: dict[int, int], of: Origin = HERE) -> None:
    hashes_, fingerprints = (np.array([*values], dtype=np.uint64) for values in (contents.keys(), contents.values()))
    made.add(0, hashes_, fingerprints, [of] * len(contents), [*range(len(contents))])


def judge(made: SlimReference, hash_: int, content: int, *, is_whole: bool = True) -> Mismatch | bool | None:
    return made.match(0, hash_ * WIDE, content, is_whole=is_whole, names=True)


def test_what_is_not_what_was_computed_is_wrong_and_named() -> None:
    made = known()
    assert judge(made, 11, 0xA1A2A3A4A5A60000) is True
    assert judge(made, 11, 0xB1B2B3B4B5B6FFFF) == Mismatch(Origin("r-1", 1, "plain"), ()), "its bits by another hash"
    assert judge(made, 11, 0) == Mismatch("zeros", ())
    assert judge(made, 11, 0xC1C2C3C4C5C60000) == Mismatch("unknown", ())
    assert judge(made, 13, 0xC1C2C3C4C5C60000) is None, "nothing is known of this hash"
    made.add_contaminated(0, 12 * WIDE, 0xD1D2D3D4D5D60000)
    assert judge(made, 12, 0xD1D2D3D4D5D60000) == Mismatch("poison", ())
    learn(made, {12 * WIDE: 0xD1D2D3D4D5D60000})
    assert judge(made, 12, 0xD1D2D3D4D5D60000) is True, "it was computed rightly, too"


def test_every_version_that_was_computed_is_right() -> None:
    made = known()
    learn(made, {11 * WIDE: 0xA1A2A3A4A5A60001})
    assert judge(made, 11, 0xA1A2A3A4A5A60000) is judge(made, 11, 0xA1A2A3A4A5A60001) is True


def test_a_store_that_others_write_to_or_that_loses_precision_proves_nothing() -> None:
    assert judge(known(own=False), 11, 0xC1C2C3C4C5C60000) is None
    assert judge(known(exact=False), 11, 0xC1C2C3C4C5C60000) is None
    assert judge(known(exact=False), 11, 0xB1B2B3B4B5B60000) is not None, "exactly another's"


def test_a_block_may_differ_in_part_after_its_last_token_was_recomputed() -> None:
    assert judge(known(), 11, 0xA1A2A3A4C5C60000, is_whole=False) is None
    assert judge(known(), 11, 0xC1C2C3C4C5C60000, is_whole=False) == Mismatch("unknown", ())


def test_where_zeros_are_computed_they_are_nothing_special() -> None:
    made = known()
    learn(made, {14 * WIDE: 0})
    assert judge(made, 13, 0) is None


def test_what_is_forgotten_is_unknown_even_when_it_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slim_reference, "BUCKETS", 4)
    rng = random.Random(0)
    contents = {rng.getrandbits(64): rng.getrandbits(64) for _ in range(200)}
    made = SlimReference(own=True, incomplete=BloomFilter())
    made.is_exact = True
    for some in ([*contents.items()][:100], [*contents.items()][100:]):
        learn(made, dict(some))
    assert len(made) == 32
    assert made.bytes == 16 * 32
    verdicts = [made.match(0, hash_, content, is_whole=True, names=True) for hash_, content in contents.items()]
    assert {*verdicts} == {True, None}
    learn(made, {hash_: content ^ 1 for hash_, content in [*contents.items()][:100]})
    again = [made.match(0, hash_, content, is_whole=True, names=True) for hash_, content in contents.items()]
    assert {*again} <= {True, None}, "they were right once"


def test_other_weights_leave_nothing_known() -> None:
    made = known()
    made.clear()
    learn(made, {11 * WIDE: 0xA1A2A3A4A5A60001})
    made.is_exact = True
    assert judge(made, 11, 0xA1A2A3A4A5A60000) is None
    assert judge(made, 11, 0xA1A2A3A4A5A60001) is True


def test_a_request_is_named_no_longer_when_many_have_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slim_reference, "REQUESTS", 4)
    monkeypatch.setattr(slim_reference, "MAX_SERIALS", 12)
    made = known()
    for n in range(40):
        learn(made, {(20 + n) * WIDE: (n + 1) << 56 | 0xFFFFFFFF0000}, Origin(f"later-{n}", 0, "plain"))
        found = judge(made, 11, (n + 1) << 56 | 0xFFFFFFFF0000)
        assert isinstance(found, Mismatch)
        assert found.holds == Origin(f"later-{n}", 0, "plain")
    assert judge(made, 11, 0xB1B2B3B4B5B60000) == Mismatch("unknown", ())

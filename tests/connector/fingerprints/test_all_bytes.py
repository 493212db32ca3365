"""A block's fingerprint depends on every bit and its place, in every layout of a KV cache that vLLM has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvtrail.connector.fingerprints import all_bytes
from kvtrail.connector.fingerprints.all_bytes import AllBytes
from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints
from kvtrail.connector.fingerprints.fingerprint import OWN_BITS, UNREPORTED_BITS
from kvtrail.connector.kv_layout import Cache, fill_with_zeros

BLOCKS, TOKENS, HEADS, SIZE, LAYERS = 12, 16, 3, 8, 3
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.float8_e4m3fn]
LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "blocks first": lambda dtype: noise((BLOCKS, 2, TOKENS, HEADS, SIZE), dtype),
    "keys, then values": lambda dtype: noise((2, BLOCKS, TOKENS, HEADS, SIZE), dtype),
    "keys and values side by side": lambda dtype: noise((BLOCKS, 2, TOKENS, HEADS, SIZE), dtype).movedim(1, 0),
    "heads before tokens": lambda dtype: noise((BLOCKS, 2, HEADS, TOKENS, SIZE), dtype).transpose(2, 3),
    "one of several in a tensor": lambda dtype: noise((BLOCKS, 2, TOKENS, HEADS, 2 * SIZE), dtype)[..., :SIZE],
    "an odd number of bytes": lambda dtype: noise((BLOCKS, 7, 5), dtype),
    "blocks in several of the kernel's": lambda dtype: noise((4 * BLOCKS, 2, TOKENS // 4, HEADS, SIZE), dtype),
    "several rows of bytes": lambda dtype: noise((BLOCKS, 2, 10 * TOKENS, HEADS, SIZE), dtype),
}


def noise(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    cells = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8)
    return cells.view(dtype)


def caches(layout: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {f"layer.{n}": LAYOUTS[layout](dtype) for n in range(LAYERS)}


def reader(given: Mapping[str, Cache], blocks: int = BLOCKS) -> AllBytes:
    return AllBytes(given, blocks)


def of_block(given: dict[str, torch.Tensor], block: int = 5) -> int:
    return int(reader(given).sums([block])[0])


def by_block(cache: torch.Tensor) -> torch.Tensor:
    """The same memory as [blocks, ...], as it is addressed by hand."""
    if cache.shape[0] == 2:
        return cache.movedim(1, 0)
    return cache if cache.shape[0] == BLOCKS else cache.unflatten(0, (BLOCKS, -1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_bytes_have_equal_fingerprints_and_others_do_not(layout: str, dtype: torch.dtype) -> None:
    given = caches(layout, dtype)
    made = reader(given)
    before = made.sums(range(BLOCKS))
    assert before.shape == (BLOCKS,)
    assert before.unique().numel() == BLOCKS
    for cache in given.values():
        views = by_block(cache).view(torch.uint8)
        views[3].copy_(views[5])
    assert made.sums([5, 3, 4]).tolist() == [before[5], before[5], before[4]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_changed_block_has_another_fingerprint(layout: str, dtype: torch.dtype) -> None:
    """Each change alone."""
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "one bit": lambda block: flipped(block, 0, [0]),
        "the last bit": lambda block: flipped(block, 7, [block.numel() - 1]),
        "shifted": lambda block: block.flatten().roll(1).view(block.shape),
        "zeros": torch.zeros_like,
        "the first two exchanged": lambda block: block.index_select(0, torch.tensor([1, 0, *range(2, len(block))])),
        "backwards": lambda block: block.flip(0),
        "the last dimension backwards": lambda block: block.flip(-1),
    }
    for name, change in changes.items():
        given = caches(layout, dtype)
        made = reader(given)
        before = made.sums([4, 5, 6])
        block = by_block(given["layer.1"].view(torch.uint8))[5]
        block.copy_(change(block.clone()))
        assert (before != made.sums([4, 5, 6])).nonzero().tolist() == [[1]], name


def test_exchanged_layers_blocks_and_halves_differ() -> None:
    for layout in ("blocks first", "keys, then values"):
        given = caches(layout, torch.bfloat16)
        before, seen = of_block(given), [by_block(cache)[5].clone() for cache in given.values()]
        by_block(given["layer.0"])[5], by_block(given["layer.2"])[5] = seen[2], seen[0]
        assert of_block(given) != before
        by_block(given["layer.0"])[5], by_block(given["layer.2"])[5] = seen[0], seen[2]
        assert of_block(given) == before
        by_block(given["layer.1"])[5] = seen[1].flip(0)  # keys for values
        assert of_block(given) != before


def test_zeros_are_known_by_their_own_fingerprint() -> None:
    given = caches("keys, then values", torch.float16)
    for cache in given.values():
        by_block(cache)[5] = 0
    assert of_block(given) == 0


@given(st.data())
def test_two_flips_of_one_bit_and_two_exchanged_bytes_differ(data: st.DataObject) -> None:
    count = 3 * all_bytes.ROW + 40
    block = data.draw(st.binary(min_size=count, max_size=count))
    one, other = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    cache = torch.tensor([list(block)] * 3, dtype=torch.uint8)
    cache[1] = flipped(cache[0], data.draw(st.integers(0, 7)), [one, other])
    cache[2, one], cache[2, other] = cache[0, other], cache[0, one]
    first, flips, exchange = reader({"layer": cache}, 3).sums([0, 1, 2]).tolist()
    assert first != flips
    assert (first == exchange) == (block[one] == block[other])


def test_any_two_flips_of_the_highest_bit_in_a_row_differ() -> None:
    """Where a plain sum with odd weights is blind."""
    pairs = list(combinations(range(all_bytes.ROW), 2))
    flips = torch.stack([flipped(torch.zeros(all_bytes.ROW, dtype=torch.uint8), 7, [*pair]) for pair in pairs])
    assert (reader({"layer": flips}, len(pairs)).sums(range(len(pairs))) != 0).all()


def test_no_two_places_in_a_row_have_the_same_weights() -> None:
    weights = {tuple(pair) for pair in all_bytes._weights(torch.device("cpu")).t().tolist()}
    assert len(weights) == all_bytes.ROW
    assert not weights & {(-first, -second) for first, second in weights}


def test_the_way_without_products_of_bytes_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given = caches("keys, then values", torch.bfloat16)
    before = reader(given).sums(range(BLOCKS))
    all_bytes._exact_product.cache_clear()
    monkeypatch.setattr(all_bytes, "_product_of_bytes", lambda rows, weights: torch.zeros(1))
    slower = reader(given)
    all_bytes._exact_product.cache_clear()
    assert slower._product is all_bytes._product_in_words
    assert torch.equal(slower.sums(range(BLOCKS)), before)


def test_many_blocks_come_to_the_same_as_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are cut into tiles."""
    given = caches("blocks first", torch.float32) | {"wide.layer": LAYOUTS["several rows of bytes"](torch.float32)}
    made = reader(given)
    one_by_one = torch.cat([made.sums([block]) for block in range(BLOCKS)])
    for tile in (1, 10_000, 30_000, 1 << 20):
        monkeypatch.setattr(all_bytes, "TILE_BYTES", tile)
        assert torch.equal(made.sums(range(BLOCKS)), one_by_one), tile
    assert made.sums([]).shape == (0,)


def test_the_order_of_the_layers_counts() -> None:
    given = caches("blocks first", torch.bfloat16)
    backwards = reader(dict(reversed(given.items())))
    assert not (backwards.sums(range(BLOCKS)) == reader(given).sums(range(BLOCKS))).any()


def test_layers_that_share_a_tensor_count_once_and_unknown_shapes_are_refused() -> None:
    cache, other = (LAYOUTS["blocks first"](torch.float32) for _ in range(2))
    made = reader({"layer.0": cache, "layer.1": cache, "layer.2": other})
    assert torch.equal(made.sums([3]), reader({"layer.0": cache, "layer.2": other}).sums([3]))
    with pytest.raises(ValueError, match=r"layer\.0 has a KV cache of shape \(5, 7\)"):
        reader({"layer.0": torch.zeros(5, 7)})


def states(pages: torch.Tensor) -> list[torch.Tensor]:
    """Two tensors of a recurrent state, of 700 and 650 bytes, in one page of a block."""
    return [pages[:, :700], pages[:, 800:1450].view(BLOCKS, 65, 10)]


def test_of_a_page_what_is_between_the_tensors_of_a_state_belongs_to_no_block() -> None:
    pages = [noise((BLOCKS, 2048), torch.uint8) for _ in range(2)]
    given = {f"layer.{n}": states(each) for n, each in enumerate(pages)}
    made = reader(given)
    before = made.sums([5, 6])
    pages[1][5, 750] ^= 1
    pages[1][5, 1500] ^= 1
    assert torch.equal(made.sums([5, 6]), before)
    for place in (0, 699, 800, 1449):
        pages[1][5, place] ^= 1
        assert (made.sums([5, 6]) != before).tolist() == [True, False], place
        pages[1][5, place] ^= 1
    fill_with_zeros(given, BLOCKS, [5])
    assert made.sums([5]).tolist() == [0]
    assert torch.equal(made.sums([6]), before[1:])
    assert torch.equal(reader(given).sums([6]), before[1:]), "whatever was read before"


def test_only_the_lower_bits_are_of_all_bytes() -> None:
    """The upper ones show whose content a block holds, as they do with some bytes."""
    given = caches("blocks first", torch.bfloat16)
    of = range(BLOCKS)
    words, made = BlockFingerprints(given, BLOCKS, TOKENS), BlockFingerprints(given, BLOCKS, TOKENS, all_bytes=True)
    for change in range(2):
        some, every = words.values([words.read(of, of)]), made.values([made.read(of, of)])
        assert [each >> OWN_BITS for each in some] == [each >> OWN_BITS for each in every], change
        by_block(given["layer.2"]).view(torch.uint8)[5, -1] ^= 1
    after = made.values([made.read([4, 5], [4, 5]), made.read([6], [6])])
    assert [one == other for one, other in zip(after, every[4:7], strict=True)] == [True, False, True]
    assert made.values([made.read([6, 4, 6], [6, 4, 6])]) == [after[2], after[0], after[2]]
    fill_with_zeros(given, BLOCKS, [4])
    assert made.values([made.read([4], [4])]) == [0]


def test_fingerprints_are_the_same_everywhere() -> None:
    """Engines that hold the same bytes compare theirs: a change of these numbers changes what they exchange."""
    cache = torch.arange(4 * 600, dtype=torch.int32).mul(1_000_003).view(4, 600)
    made = BlockFingerprints({"a": cache, "b": cache.flip(0).contiguous()}, 4, TOKENS, all_bytes=True)
    reported = [each >> UNREPORTED_BITS for each in made.values([made.read([0, 3], [7, 8])])]
    assert reported == [11955712352881932456, 6304697721711965371]


def flipped(block: torch.Tensor, bit: int, places: list[int]) -> torch.Tensor:
    """Bytes, with a bit flipped at these places."""
    changed = block.flatten().clone()
    for place in places:
        changed[place] ^= 1 << bit
    return changed.view(block.shape)

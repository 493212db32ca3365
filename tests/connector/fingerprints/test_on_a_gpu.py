"""The fingerprints on a GPU, without one: devices, shapes, dtypes, and what CUDA's product of bytes asks for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from fake_gpu import DEVICE, fake_gpu

from kvtrail.connector.fingerprints import all_bytes
from kvtrail.connector.fingerprints.all_bytes import AllBytes
from kvtrail.connector.fingerprints.block_fingerprints import COMMON, DRAWN, BlockFingerprints
from kvtrail.connector.kv_layout import Cache, fill_with_zeros

BLOCKS, TOKENS, LAYERS = 40, 16, 3


def states(blocks: int) -> list[torch.Tensor]:
    """A page of a block has both, and is longer than they are, as in vLLM."""
    page = torch.empty(blocks, 8192, dtype=torch.bfloat16, device=DEVICE)
    conv = page[:, : 3 * 64].view(blocks, 3, 64)
    return [conv, page[:, 192 : 192 + 4 * 16 * 32].view(blocks, 4, 16, 32)]


def caches(kind: str) -> dict[str, Cache]:
    made: dict[str, Cache] = {}
    whole = torch.empty(LAYERS, BLOCKS, 2, TOKENS, 4, 64, dtype=torch.bfloat16, device=DEVICE)
    for n in range(LAYERS):
        match kind:
            case "one piece of memory":
                made[f"layer {n}"] = whole[n]
            case "keys and values apart":
                made[f"layer {n}"] = torch.empty(2, BLOCKS, TOKENS, 4, 64, dtype=torch.float16, device=DEVICE)
            case "small blocks":
                made[f"layer {n}"] = torch.empty(BLOCKS, 2, TOKENS, 1, 8, dtype=torch.uint8, device=DEVICE)
            case "states":
                made[f"layer {n}"] = states(BLOCKS)
    return made


KINDS = ["one piece of memory", "keys and values apart", "small blocks", "states"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Contents that do not exist cannot be compared, and what is computed once for a device must not outlive it."""
    for name in ("_weights", "_row_weights", "_words"):
        monkeypatch.setattr(all_bytes, name, cache(getattr(all_bytes, name).__wrapped__))
    monkeypatch.setattr(all_bytes, "_exact_product", lambda device: all_bytes._product_on_cuda)
    with fake_gpu() as rules:
        yield rules


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 33])
def test_all_bytes_stay_on_the_gpu_until_they_are_read(gpu: Any, kind: str, count: int) -> None:
    given = caches(kind)
    made = AllBytes(given, BLOCKS)
    blocks = [*range(count)]
    sums = made.sums(blocks)
    assert (sums.device, sums.dtype, sums.shape) == (DEVICE, torch.int64, (count,))
    reading = words(kind, given, all_bytes=True).read(blocks, range(count))
    *_, on_host = reading._parts
    assert isinstance(on_host, torch.Tensor)
    assert (on_host.device.type, on_host.shape) == ("cpu", (count,))
    assert reading.is_ready()
    fill_with_zeros(given, BLOCKS, blocks)
    assert made.sums([]).device == DEVICE


def words(kind: str, given: dict[str, Cache], *, all_bytes: bool = False) -> BlockFingerprints:
    return BlockFingerprints(given, BLOCKS, 0 if kind == "states" else TOKENS, all_bytes=all_bytes)


def test_many_rows_take_the_product_of_bytes_and_few_do_not(gpu: Any) -> None:
    given = caches("one piece of memory")
    whole = AllBytes(given, BLOCKS)
    before = gpu.products
    whole.sums([1, 2, 3])
    assert gpu.products > before
    few: dict[str, Cache] = {"layer": torch.empty(BLOCKS, 256, dtype=torch.uint8, device=DEVICE)}
    small = AllBytes(few, BLOCKS)
    before = gpu.products
    small.sums([1])
    assert gpu.products == before


@pytest.mark.parametrize("rows", [1, all_bytes.LEAST_ROWS - 1, all_bytes.LEAST_ROWS, 1000])
def test_all_products_have_one_shape(gpu: Any, rows: int) -> None:
    numbers = torch.empty(rows, all_bytes.ROW, dtype=torch.int8, device=DEVICE)
    weights = all_bytes._weights(DEVICE)
    for product in (all_bytes._product_on_cuda, all_bytes._product_in_words):
        made = product(numbers, weights)
        assert (made.shape, made.dtype, made.device) == ((all_bytes.SUMS, rows), torch.int32, DEVICE)


@pytest.mark.parametrize("kind", KINDS)
def test_some_bytes_are_read_in_one_gather_for_each_piece_of_memory(gpu: Any, kind: str) -> None:
    made = words(kind, caches(kind))
    reading = made.read([1, 2, 5], [7, 8, 9])
    assert len(reading._parts) == (1 if kind == "one piece of memory" else LAYERS)
    words_read = [part for part in reading._parts if isinstance(part, torch.Tensor)]
    assert {part.device.type for part in words_read} == {"cpu"}
    assert sum(part.numel() for part in words_read) == 3 * (COMMON + DRAWN)
    assert reading.is_ready()
    assert made.sees_partial

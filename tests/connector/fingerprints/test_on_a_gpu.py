"""The fingerprints on a GPU, without one: devices, shapes, dtypes, and what CUDA's product of bytes asks for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import DEVICE, fake_gpu

from kvtrail.connector.fingerprints import full
from kvtrail.connector.fingerprints.full import Cache, FullFingerprints
from kvtrail.connector.fingerprints.slim import COMMON, DRAWN, SlimFingerprints

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
        monkeypatch.setattr(full, name, cache(getattr(full, name).__wrapped__))
    monkeypatch.setattr(full, "_exact_product", lambda device: full._product_on_cuda)
    with fake_gpu() as rules:
        yield rules


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 33])
def test_full_fingerprints_stay_on_the_gpu_until_they_are_read(gpu: Any, kind: str, count: int) -> None:
    made = FullFingerprints(caches(kind), BLOCKS)
    assert not made.is_on_cpu
    blocks = [*range(count)]
    fingerprints = made.of(blocks)
    assert (fingerprints.device, fingerprints.dtype, fingerprints.shape) == (DEVICE, torch.int64, (count, LAYERS))
    assert (made.folded(fingerprints).device, made.folded(fingerprints).shape) == (DEVICE, (count,))
    reading = made.read(blocks)
    assert (reading._rows.device.type, reading._rows.shape) == ("cpu", (count, 1 + LAYERS))
    assert reading.is_ready()
    assert made.of_layer("layer 1", blocks).shape == (count,)
    layers = made.layer_by_layer(blocks)
    assert [layers.read(f"layer {n}") is None for n in range(LAYERS)] == [True] * (LAYERS - 1) + [False]
    made.fill_with_zeros(blocks)
    assert made.of([]).device == DEVICE


def test_many_rows_take_the_product_of_bytes_and_few_do_not(gpu: Any) -> None:
    whole = FullFingerprints(caches("one piece of memory"), BLOCKS)
    before = gpu.products
    whole.of([1, 2, 3])
    assert gpu.products > before
    small = FullFingerprints({"layer": torch.empty(BLOCKS, 256, dtype=torch.uint8, device=DEVICE)}, BLOCKS)
    before = gpu.products
    small.of([1])
    assert gpu.products == before


@pytest.mark.parametrize("rows", [1, full.LEAST_ROWS - 1, full.LEAST_ROWS, 1000])
def test_all_products_have_one_shape(gpu: Any, rows: int) -> None:
    numbers = torch.empty(rows, full.ROW, dtype=torch.int8, device=DEVICE)
    weights = full._weights(DEVICE)
    for product in (full._product_on_cuda, full._product_in_words):
        made = product(numbers, weights)
        assert (made.shape, made.dtype, made.device) == ((full.SUMS, rows), torch.int32, DEVICE)


@pytest.mark.parametrize("kind", KINDS)
def test_slim_fingerprints_are_read_in_one_gather_for_each_piece_of_memory(gpu: Any, kind: str) -> None:
    made = SlimFingerprints(caches(kind), BLOCKS, 0 if kind == "states" else TOKENS)
    reading = made.read([1, 2, 5], np.array([7, 8, 9], dtype=np.uint64))
    assert len(reading._parts) == (1 if kind == "one piece of memory" else LAYERS)
    words = [part for _, part in reading._parts]
    assert {part.device.type for part in words} == {"cpu"}
    assert sum(part.numel() for part in words) == 3 * (COMMON + DRAWN)
    assert reading.is_ready()
    assert made.skips_last

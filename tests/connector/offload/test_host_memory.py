"""What is stored and loaded again is what was there, in every layout of a KV cache that vLLM has."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from kvtrail.connector.offload import host_memory
from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.groups import Group
from kvtrail.connector.offload.host_memory import HostMemory, _Rows, _Tensors
from kvtrail.connector.offload.plan import Copy

BLOCKS, PER_CHUNK, SLOTS = 24, 4, 8


def flat(dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-100, 100, (BLOCKS, 2, 16, 3, 8)).to(dtype)


LAYOUTS: dict[str, tuple[Callable[[], torch.Tensor], type]] = {
    "blocks first": (lambda: flat(torch.float32), _Rows),
    "half precision": (lambda: flat(torch.bfloat16), _Rows),
    "bytes": (lambda: flat(torch.int8), _Rows),
    "keys, then values": (lambda: flat(torch.float32).movedim(0, 1).contiguous(), _Rows),
    "keys and values side by side": (lambda: flat(torch.bfloat16).movedim(1, 0), _Rows),
    "heads before tokens": (lambda: flat(torch.float32).transpose(2, 3), _Rows),
    "one of several in a tensor": (lambda: flat(torch.float32)[..., :4], _Tensors),
    "blocks in the middle, not dense": (lambda: flat(torch.float32)[..., :4].movedim(0, 1), _Tensors),
}


def blocks_of(cache: torch.Tensor, blocks: list[int]) -> torch.Tensor:
    return (cache if cache.shape[0] == BLOCKS else cache.movedim(1, 0))[blocks].clone()


@pytest.mark.parametrize("many_bytes", [1, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_loaded_is_what_was_stored(layout: str, many_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several threads and with one; of chunks that lie side by side, and of others."""
    monkeypatch.setattr(host_memory, "MANY_BYTES", many_bytes)
    make, way = LAYOUTS[layout]
    caches = {"a": make(), "b": make()}
    memory = HostMemory(OffloadConfig(64, 16, (Group(16, 1),), SLOTS), num_blocks=BLOCKS)
    memory.register({**caches, "the same again": caches["a"]})
    assert {type(part) for part in memory._parts} == {way}
    rng = random.Random(layout)
    for number in range(20):
        ids = rng.sample(range(BLOCKS), 2 * PER_CHUNK)
        first = rng.randrange(PER_CHUNK)  # a part of a chunk
        slots = [3, 4] if number % 2 else rng.sample(range(SLOTS), 2)
        first *= number % 4 > 1
        stored = [
            Copy("r", 0, 1, slots[0], 0, tuple(ids[:PER_CHUNK]), ""),
            Copy("r", 0, 1, slots[1], first, tuple(ids[PER_CHUNK : 2 * PER_CHUNK - first]), ""),
        ]
        before = {name: cache.clone() for name, cache in caches.items()}
        memory.store(stored)
        assert all(torch.equal(caches[name], before[name]) for name in caches)
        elsewhere = rng.sample(range(BLOCKS), 2 * PER_CHUNK)
        loaded = [
            Copy("r", 0, 1, slots[0], 0, tuple(elsewhere[:PER_CHUNK]), ""),
            Copy("r", 0, 1, slots[1], first, tuple(elsewhere[PER_CHUNK : 2 * PER_CHUNK - first]), ""),
        ]
        for cache in caches.values():
            cache.neg_()
        memory.load(loaded)
        for name, cache in caches.items():
            for there, here in zip(stored, loaded, strict=True):
                assert torch.equal(blocks_of(cache, list(here.blocks)), blocks_of(before[name], list(there.blocks)))
            rest = sorted(set(range(BLOCKS)) - {block for copy in loaded for block in copy.blocks})
            assert torch.equal(blocks_of(cache, rest), -blocks_of(before[name], rest))
    block_bytes = sum(blocks_of(cache, [0]).nbytes for cache in caches.values())
    assert memory.bytes_of(stored[0]) == PER_CHUNK * block_bytes


def test_a_layout_that_is_not_known_is_refused_by_name() -> None:
    memory = HostMemory(OffloadConfig(64, 16, (Group(16, 1),), SLOTS), num_blocks=BLOCKS)
    with pytest.raises(ValueError, match=r"layer odd has a KV cache of shape \(3, 5, 7\)"):
        memory.register({"odd": torch.zeros(3, 5, 7)})

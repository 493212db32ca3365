"""Bytes per second of the OffloadConnector's copies, beside a plain copy of as many bytes.

    python benchmarks/copies.py
    python benchmarks/copies.py --block-kib 16 --layers 16 --rounds 30

A step stores, or loads, 64 chunks of 8 scattered blocks in 16 layers. The plain copy moves the same bytes with
`torch.Tensor.copy_`, a layer at a time from one long piece of memory to another. Both take as many threads as torch has.
With `--slots scattered` the chunks do not lie side by side in host memory, as in a cache that has been full for long. With
`--device cuda` both sides go between the GPU and pinned memory, and are waited for.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from itertools import product

import torch
from rounds import print_ratio

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.groups import Group
from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.offload.plan import Copy

CHUNKS, BLOCKS_PER_CHUNK = 64, 8


def gigabytes_a_second(moved: int, move: Callable[[], None], device: str) -> float:
    begun = time.perf_counter()
    move()
    if device == "cuda":
        torch.cuda.synchronize()
    return moved / (time.perf_counter() - begun) / 1e9


def measure(block_kib: int, layers: int, rounds: int, device: str, shape: str, slots: str) -> None:
    """Print the ratios of stores and loads for KV blocks of this size."""
    count = CHUNKS * BLOCKS_PER_CHUNK
    numbers = block_kib * 1024 // 2  # of 16 bits
    sizes = (2, 2 * count, numbers // 2) if shape == "split" else (2 * count, numbers)
    caches = {f"layer {n}": torch.ones(sizes, dtype=torch.bfloat16, device=device) for n in range(layers)}
    memory = HostMemory(OffloadConfig(128, 16, (Group(16, 1),), CHUNKS), num_blocks=2 * count)
    memory.register(caches)
    ids = random.Random(0).sample(range(2 * count), count)
    per = BLOCKS_PER_CHUNK
    order = list(range(CHUNKS))
    if slots == "scattered":
        random.Random(1).shuffle(order)
    copies = [Copy("r", 0, 1, slot, 0, tuple(ids[per * n : per * n + per]), "") for n, slot in enumerate(order)]
    plain = [torch.ones(count, numbers, dtype=torch.bfloat16, pin_memory=device == "cuda") for _ in range(layers)]
    there = [cache.flatten()[: count * numbers].view(count, numbers) for cache in caches.values()]
    moved = layers * count * block_kib * 1024

    def out() -> None:
        for to, of in zip(plain, there, strict=True):
            to.copy_(of, non_blocking=True)

    def back() -> None:
        for to, of in zip(there, plain, strict=True):
            to.copy_(of, non_blocking=True)

    for what, ours, theirs in (
        ("store", lambda: memory.store(copies), out),
        ("load", lambda: memory.load(copies), back),
    ):
        sides = []
        for number in range(rounds + 2):
            pair = (gigabytes_a_second(moved, ours, device), gigabytes_a_second(moved, theirs, device))
            if number > 1:  # the first ones touch memory that was never touched
                sides.append(pair)
        label = f"{what}, {block_kib} KiB a block and layer, {shape}, slots {slots}"
        kvtrail, plain_copy = zip(*sides, strict=True)
        print_ratio(label, kvtrail, plain_copy, "GB/s", ("kvtrail", "plain copy"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-kib", type=int, nargs="+", default=[16, 64], help="KiB of a block in a layer")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=["whole", "split"], nargs="+", default=["whole", "split"], help="of a cache")
    parser.add_argument("--slots", choices=["in-a-row", "scattered"], nargs="+", default=["in-a-row", "scattered"])
    arguments = parser.parse_args()
    for slots, shape, block_kib in product(arguments.slots, arguments.shape, arguments.block_kib):
        measure(block_kib, arguments.layers, arguments.rounds, arguments.device, shape, slots)


if __name__ == "__main__":
    main()

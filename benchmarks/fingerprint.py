"""Bytes per second of the fingerprints of all bytes of KV blocks, beside a plain copy of as many bytes.

    python benchmarks/fingerprint.py
    python benchmarks/fingerprint.py --block-kib 16 --blocks 8 --device cuda

A step looks at scattered blocks of all layers. The plain copy moves as many bytes with `torch.Tensor.copy_`, a layer at a
time from one long piece of memory to another. Both take as many threads as `--threads` says.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from itertools import product

import torch
from rounds import print_ratio

from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints

CACHE_MIB = 1024
"""Of all layers: no processor's cache holds what a step reads."""


def gigabytes_a_second(read: int, do: Callable[[], object], device: str) -> float:
    begun = time.perf_counter()
    do()
    if device == "cuda":
        torch.cuda.synchronize()
    return read / (time.perf_counter() - begun) / 1e9


def measure(block_kib: int, blocks: int, layers: int, rounds: int, device: str, shape: str) -> None:
    """Print the ratio for KV blocks of this size."""
    count, numbers = max(CACHE_MIB // (layers * block_kib) * 1024, 2 * blocks), block_kib * 1024 // 2  # of 16 bits
    sizes = (2, count, numbers // 2) if shape == "split" else (count, numbers)
    caches = {f"layer {n}": torch.randn(sizes, device=device).to(torch.bfloat16) for n in range(layers)}
    made = BlockFingerprints(caches, count, 0, all_bytes=True)
    chosen = random.Random(0)
    plain = [torch.empty(blocks * numbers, dtype=torch.bfloat16, device=device) for _ in caches]

    def look() -> None:
        made.values([made.read(chosen.sample(range(count), blocks), range(blocks))])

    def copy() -> None:
        begin = chosen.randrange(count - blocks + 1) * numbers
        for to, of in zip(plain, caches.values(), strict=True):
            to.copy_(of.flatten()[begin : begin + blocks * numbers])

    read, sides = layers * blocks * block_kib * 1024, []
    for number in range(rounds + 2):
        pair = (gigabytes_a_second(read, look, device), gigabytes_a_second(read, copy, device))
        if number > 1:  # the first ones touch memory that was never touched
            sides.append(pair)
    label = f"{blocks} blocks of {block_kib} KiB in {layers} layers, {shape}"
    fingerprints, plain_copy = zip(*sides, strict=True)
    print_ratio(label, fingerprints, plain_copy, "GB/s", ("fingerprint", "plain copy"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-kib", type=int, nargs="+", default=[16, 64], help="KiB of a block in a layer")
    parser.add_argument("--blocks", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=["whole", "split"], nargs="+", default=["whole", "split"], help="of a cache")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for shape, block_kib, blocks in product(arguments.shape, arguments.block_kib, arguments.blocks):
        measure(block_kib, blocks, arguments.layers, arguments.rounds, arguments.device, shape)


if __name__ == "__main__":
    main()

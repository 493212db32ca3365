"""Bytes per second of the fingerprints of all bytes of KV blocks, beside a plain copy of as many bytes.

    python benchmarks/fingerprint.py
    python benchmarks/fingerprint.py --block-kib 16 --blocks 8 --device cuda
    python benchmarks/fingerprint.py --step --against OTHER    a worker's step that has computed 512 blocks, with a checkout's

A step looks at scattered blocks of all layers. The plain copy moves as many bytes with `torch.Tensor.copy_`, a layer at a
time from one long piece of memory to another. Both take as many threads as `--threads` says.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch
from rounds import compare, print_ratio

from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints
from kvtrail.connector.fingerprints.plan import COMPUTED, Check, CheckPlan
from kvtrail.connector.fingerprints.references import References
from kvtrail.connector.fingerprints.worker import CheckWorker

ROOT = Path(__file__).parents[1]
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


def milliseconds_of_a_step(steps: int = 60) -> float:
    """The least thread time of a worker's step in which 8 requests have computed 64 blocks each, of 16 layers."""
    count, each, chosen = 8192, 64, random.Random(0)
    made = BlockFingerprints({f"layer {n}": torch.randn(count, 2048).to(torch.bfloat16) for n in range(16)}, count, 16)
    references = References(own=True, units={0: 16})
    worker = CheckWorker(
        {0: made},
        references,
        checksums=None,
        fill_with_zeros=lambda blocks: None,
        heals=False,
        report=lambda result: None,
    )
    plans, numbers = [], tuple(range(each))
    for n in range(steps):
        plans.append(CheckPlan(step=n))
        for request in range(8):
            blocks, hashes = chosen.sample(range(1, count), each), [chosen.getrandbits(64) for _ in numbers]
            name = f"{n}-{request}"
            plans[n].before.append(Check(name, COMPUTED, 0, numbers, tuple(blocks), tuple(hashes), None, ""))
    took = []
    gc.disable()
    for plan in plans:
        begun = time.thread_time()
        worker.begin(plan)
        took.append((time.thread_time() - begun) * 1e3)
    assert len(references) == steps * 8 * each, "all are judged at once"
    return min(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-kib", type=int, nargs="+", default=[16, 64], help="KiB of a block in a layer")
    parser.add_argument("--blocks", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=["whole", "split"], nargs="+", default=["whole", "split"], help="of a cache")
    parser.add_argument("--step", action="store_true", help="print the milliseconds of a worker's step")
    parser.add_argument("--against", type=Path, help="of a step: the root of another checkout with this program")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.against is not None:
        sides = {"this": (ROOT, ("--step",)), "the other": (arguments.against, ("--step",))}
        compare("a worker's step of 512 computed blocks", __file__, sides, arguments.rounds, "ms")
        return
    if arguments.step:
        print(milliseconds_of_a_step())
        return
    for shape, block_kib, blocks in product(arguments.shape, arguments.block_kib, arguments.blocks):
        measure(block_kib, blocks, arguments.layers, arguments.rounds, arguments.device, shape)


if __name__ == "__main__":
    main()

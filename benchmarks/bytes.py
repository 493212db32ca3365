"""Nothing is wrong where nothing was done, and nothing that was done goes unseen: bytes on the real engine on the CPU.

    python benchmarks/bytes.py --faults 1000 --looks 1000000
    python benchmarks/bytes.py --some --faults 300 --looks 1000000

Faults are put into blocks just after the connector has loaded them, and the tokens are compared with those of an engine
without a connector: a request with wrong tokens must be named, and a load that was touched must be found. Then engines
with a correct connector look at everything, with preemption, chunked
prefill, prefix hits, several chunk sizes and hosts too small. What is accused there is a false alarm. The exit code is 1 if
anything is missed or accused falsely.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from throughput import NullExporter

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.recording.recorder import exporting_to
from kvtrail.connector.simulate import tiny_model

Layers = list[np.ndarray[Any, Any]]
Tokens = dict[str, list[int]]
REQUESTS = 9
SHAPES = [(256, 1 << 30), (64, 1 << 30), (64, 24 * 65_536), (32, 48 * 32_768)]
"""Tokens of a chunk, and bytes of host memory."""
ROUNDS_OF_SOME = 40
"""Rounds of an engine that looks at some bytes of every block."""


def flipped_bit(rng: random.Random, layers: Layers, blocks: list[int]) -> None:
    row = rng.choice(layers)[rng.choice(blocks)]
    row[rng.randrange(len(row))] ^= 1 << rng.randrange(8)


def flipped_signs(rng: random.Random, layers: Layers, blocks: list[int]) -> None:
    numbers = rng.choice(layers)[rng.choice(blocks)].view(np.float32)
    numbers[: len(numbers) // 4] *= -1


def exchanged_blocks(rng: random.Random, layers: Layers, blocks: list[int]) -> None:
    one, other = rng.choice(blocks), rng.randrange(len(layers[0]))
    for layer in layers:
        layer[one] = layer[other]


def zeroed_layer(rng: random.Random, layers: Layers, blocks: list[int]) -> None:
    rng.choice(layers)[rng.choice(blocks)] = 0


def exchanged_layers(rng: random.Random, layers: Layers, blocks: list[int]) -> None:
    block = rng.choice(blocks)
    layers[0][block], layers[-1][block] = layers[-1][block].copy(), layers[0][block].copy()


def shifted_blocks(rng: random.Random, layers: Layers, blocks: list[int]) -> None:
    for layer in layers:
        layer[blocks[1:]] = layer[blocks[:-1]]


def emptied_block(rng: random.Random, layers: Layers, blocks: list[int]) -> None:
    block = rng.choice(blocks)
    for layer in layers:
        layer[block] = 0


class StaleBlock:
    """A block holds what a block held in an earlier load."""

    __name__ = "stale_block"

    def __init__(self) -> None:
        self._before: list[Layers] = []

    def __call__(self, rng: random.Random, layers: Layers, blocks: list[int]) -> None:
        kept, block = [layer[blocks[0]].copy() for layer in layers], rng.choice(blocks)
        if self._before:
            for layer, old in zip(layers, rng.choice(self._before), strict=True):
                layer[block] = old
        self._before.append(kept)


WHOLE: list[Callable[[random.Random, Layers, list[int]], None]] = [
    exchanged_blocks, shifted_blocks, emptied_block, StaleBlock(),
]  # fmt: skip
FAULTS: list[Callable[[random.Random, Layers, list[int]], None]] = [
    flipped_bit, flipped_signs, exchanged_blocks, zeroed_layer, exchanged_layers,
]  # fmt: skip


class Engine:
    """A real engine with bytes that are checked.

    Attributes:
        counts: blocks looked at, by look, and those of unknown content.
        named: the requests with reported wrong blocks.
    """

    def __init__(self, folder: Path, chunk_size: int | None = None, host_bytes: int = 0, *, some: bool = False) -> None:
        """Without a chunk size, it has no connector. `some`: with default settings, and not all bytes."""
        connector = None
        if chunk_size is not None:
            kvtrail = {} if some else {"fingerprints": "all"}
            extra = {"chunk_size": chunk_size, "cpu_bytes_to_use": host_bytes, "kvtrail": kvtrail}
            connector = {"kv_connector": "OffloadConnector", "kv_connector_extra_config": extra}
        larger: dict[str, Any] = {"max_num_batched_tokens": 1024, "num_gpu_blocks_override": 256} if some else {}
        self.llm = tiny_model.build(folder / "model", connector, **larger)
        self.counts: Counter[str] = Counter()
        self.named: set[str] = set()
        if connector is not None:
            from vllm.distributed.kv_transfer import get_kv_transfer_group

            agent: Any = get_kv_transfer_group()
            agent._kvtrail_checks._worker._results.report = self._count
        self._rounds = 0

    def _count(self, result: Any) -> None:
        self.counts[result.kind] += result.blocks
        self.counts["unknown"] += result.unknown
        if result.mismatches:
            self.named.add(result.request_id.rpartition("-")[0])

    def round(self, jobs: list[DemoRequest]) -> tuple[str, Tokens]:
        """Run the jobs with vLLM's own prefix cache empty at first; the prefix of their names, and their tokens."""
        self.llm.reset_prefix_cache()
        self._rounds += 1
        prefix = f"{self._rounds}-"
        named = [DemoRequest(prefix + j.id, j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs]
        tokens = workload.run(self.llm, named)
        workload.run(self.llm, [DemoRequest(f"{prefix}after", (5, 6, 7), 1)])  # the checks after the last step
        return prefix, {name.removeprefix(prefix): made for name, made in tokens.items()}

    def end(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        gc.collect()


def soundness(folder: Path, looks: int, some: bool) -> int:
    """Check blocks of correct engines `looks` times; returns how many requests were accused."""
    counts: Counter[str] = Counter()
    accused, seed = 0, 0
    while sum(counts[look] for look in ("computed", "loaded", "admitted", "held")) < looks:
        engine = Engine(folder, *SHAPES[seed % len(SHAPES)], some=some)
        for number in range(ROUNDS_OF_SOME if some else 8):
            if some:
                engine.round(_long_prompts(random.Random(seed * ROUNDS_OF_SOME + number // 2), number))
            else:
                engine.round(workload.shared_prefixes(seed=seed + number // 2, requests=REQUESTS))
        counts += engine.counts
        accused += len(engine.named)
        engine.end()
        seed += 1
    print(f"correct connector, {seed} engines: looks {dict(counts)}; requests accused: {accused}", flush=True)
    return accused


def _long_prompts(rng: random.Random, number: int) -> list[DemoRequest]:
    """Prompts, and some of them begin alike, in another order each time: so they are computed in other batches."""
    heads = [[rng.randrange(3, tiny_model.VOCABULARY) for _ in range(256)] for _ in range(4)]
    prompts = [
        (*rng.choice(heads), *(rng.randrange(3, tiny_model.VOCABULARY) for _ in range(rng.randrange(64, 700))))
        for _ in range(24)
    ]
    named = [DemoRequest(f"long-{n}", prompt, 2) for n, prompt in enumerate(prompts)]
    return random.Random(number).sample(named, len(named))


def completeness(folder: Path, faults: int, some: bool) -> int:
    """Inject `faults` faults; returns how many requests were missed."""
    from kvtrail.connector.offload.host_memory import HostMemory

    jobs = workload.shared_prefixes(requests=REQUESTS)
    plain = Engine(folder)
    _, expected = plain.round(jobs)
    plain.end()
    engine = Engine(folder, 64, 1 << 30, some=some)
    for _ in range(2):  # the second loads what the first has stored
        engine.round(jobs)
    rng, load = random.Random(0), HostMemory.load
    injected: Counter[str] = Counter()
    touched: set[str] = set()

    def loading(memory: HostMemory, copies: Any) -> None:
        load(memory, copies)
        layers: Layers = [part._cache for part in memory._parts]  # type: ignore[misc]
        for copy in copies:
            if rng.random() < 0.3:
                blocks, fault = list(copy.blocks), rng.choice(WHOLE if some else FAULTS)
                before = [layer[blocks].copy() for layer in layers]
                fault(rng, layers, blocks)
                if any((one != layer[blocks]).any() for one, layer in zip(before, layers, strict=True)):
                    injected[fault.__name__] += 1
                    touched.add(copy.request_id.rpartition("-")[0])

    wrong: set[str] = set()
    with patch.object(HostMemory, "load", loading):
        while injected.total() < faults:
            prefix, tokens = engine.round(jobs)
            wrong |= {prefix + name for name, made in tokens.items() if made != expected[name]}
    missed = (wrong | touched) - engine.named
    print(
        f"faults {dict(injected)}: {injected.total()} in loads of {len(touched)} requests; requests with wrong tokens"
        f" {len(wrong)}, named {len(engine.named)}; missed {len(missed)} {sorted(missed)[:5]}"
    )
    engine.end()
    return len(missed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--looks", type=int, default=1_000_000)
    parser.add_argument("--some", action="store_true", help="default settings, and faults of whole blocks")
    arguments = parser.parse_args()
    tiny_model.prepare_environment()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, exporting_to(NullExporter):
        missed = completeness(Path(folder), arguments.faults, arguments.some) if arguments.faults else 0
        accused = soundness(Path(folder), arguments.looks, arguments.some) if arguments.looks else 0
    print(f"{time.monotonic() - begun:,.0f} s")
    sys.exit(bool(missed or accused))


if __name__ == "__main__":
    main()

"""Bytes of several KV cache groups on the real engine on the CPU: windows beside full attention, and recurrent states.

    python benchmarks/bytes_of_groups.py --faults 300 --looks 1000000

Faults are put into blocks of vLLM's own prefix cache and into loads, and each that was looked at afterwards must be found:
exchanged groups, shifted tables, states of another boundary, blocks that were freed and written to, zeros. Then correct
engines run with default settings, synchronous and not, in small chunks, and with preemptions; what is accused there is a
false alarm. The exit code is 1 if anything is missed or accused falsely.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from throughput import NullExporter

from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.recording.recorder import exporting_to
from kvtrail.connector.simulate import tiny_model

SEEDS_OF_AN_ENGINE = 12
ROUNDS_OF_AN_ENGINE = 60
MODELS: dict[str, dict[str, Any]] = {"gemma3": {}, "gpt-oss": {}, "lfm2": {"max_num_batched_tokens": 96}}
SHAPES: list[dict[str, Any]] = [
    {},
    {"async_scheduling": True, "num_gpu_blocks_override": 700},
    {"max_num_batched_tokens": 96},
    {"num_gpu_blocks_override": 700},
    {"num_gpu_blocks_override": 60, "max_num_batched_tokens": 128},
]
OF_STATES: list[dict[str, Any]] = [{"prefix_match_unit": 16}, {"block_size": 64, "prefix_match_unit": 32}]


def completeness(folder: Path, faults: int) -> int:
    """Inject so many faults; returns how many blocks were looked at and missed."""
    from group_engines import GroupEngine, Injected, prompts
    from group_engines import faults as all_faults
    from group_store import GroupStoreConnector

    missed, seed = 0, 0
    counts: Counter[str] = Counter()
    looked: Counter[str] = Counter()
    while counts.total() < faults:
        model = [*MODELS][seed // SEEDS_OF_AN_ENGINE % len(MODELS)]
        engine = GroupEngine.built(folder / model, model, {}, seed=seed, **MODELS[model])
        for _ in range(SEEDS_OF_AN_ENGINE):
            rng = random.Random(seed)
            seed += 1
            jobs = prompts(rng, 4)
            for n in range(2):  # the second loads what the first has stored
                assert engine.scheduler.reset_prefix_cache()
                engine.round(jobs, f"{seed}.{n}")
            assert not engine.mismatches(), engine.mismatches()[:3]
            for kinds, into_loads in ((["admitted"], False), (["loaded"], True)):
                engine.checked.clear()
                engine.results.clear()
                injected = Injected(engine, rng, all_faults())
                if into_loads:
                    assert engine.scheduler.reset_prefix_cache()
                    with patch.object(GroupStoreConnector, "load", injected.into_loads(1.0)):
                        engine.round(jobs, f"{seed}.loaded")
                else:
                    for job in jobs:
                        injected.into(engine.cached(f"{seed}.1-{job.id}"))
                    engine.round(jobs, f"{seed}.admitted")
                counts += Counter({f"{name} in {model}, {kinds[0]}": n for name, n in injected.counts.items()})
                looked["wrong blocks"] += len(injected.touched)
                looked["of them looked at"] += injected.looked_at(kinds)
                if gone := injected.missed(kinds):
                    missed += len(gone)
                    print("missed", kinds, model, gone[:3], injected.counts)
                looked["named by their origin"] += sum(not isinstance(m.holds, str) for _, m in engine.mismatches())
                engine.results.clear()
            assert engine.scheduler.reset_prefix_cache(reset_connector=True)
            engine.round([], "reset")
            engine.results.clear()
        _end(engine)
    for name, number in sorted(counts.items()):
        print(f"  {number:4} {name}")
    print(f"faults {counts.total()}; {dict(looked)}; missed {missed}", flush=True)
    return missed


def soundness(folder: Path, looks: int) -> int:
    """Look so many times at blocks of correct engines; returns how many requests were accused."""
    from group_engines import GroupEngine

    counts: Counter[str] = Counter()
    accused, number = 0, 0
    while sum(n for kind, n in counts.items() if not kind.startswith("unknown")) < looks:
        model = [*MODELS][number % len(MODELS)]
        shapes = [*SHAPES, *OF_STATES] if model == "lfm2" else SHAPES
        shape = shapes[number // len(MODELS) % len(shapes)]
        engine = GroupEngine.built(folder / model, model, {}, seed=number, **shape)
        for n in range(ROUNDS_OF_AN_ENGINE):
            if n % 6 == 5:
                assert engine.scheduler.reset_prefix_cache()
            engine.round(_requests(random.Random(number * ROUNDS_OF_AN_ENGINE + n // 12), n), str(n))
            engine.checked.clear()
        for (kind, group), count in engine.counted().items():
            counts[f"{kind} {'states' if model == 'lfm2' and not group else 'window' if not group else 'full'}"] += (
                count
            )
        for result, mismatch in engine.mismatches():
            accused += 1
            print("accused", model, shape, result.request_id, result.kind, result.group, mismatch, flush=True)
        _end(engine)
        number += 1
        print(f"  {model} {shape}: {sum(counts.values()):,} looks", flush=True)
    print(f"correct connector, {number} engines: looks {dict(counts)}; accused: {accused}", flush=True)
    return accused


def _requests(rng: random.Random, number: int) -> list[DemoRequest]:
    """Prompts of which some begin alike, in another order each time; a few generate long enough to leave their window."""
    heads = [[rng.randrange(3, 250) for _ in range(640)] for _ in range(3)]
    prompts = [
        (*heads[n % 3][: rng.choice((96, 400, 640))], *(rng.randrange(3, 250) for _ in range(rng.randrange(20, 300))))
        for n in range(16)
    ]
    named = [
        DemoRequest(f"r{n}", prompt, 180 if n % 8 == 0 and number % 6 == 0 else 2) for n, prompt in enumerate(prompts)
    ]
    return random.Random(number).sample(named, len(named))


def _end(engine: Any) -> None:
    engine.llm.llm_engine.engine_core.shutdown()
    gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--looks", type=int, default=1_000_000)
    arguments = parser.parse_args()
    tiny_model.prepare_environment()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, exporting_to(NullExporter):
        missed = completeness(Path(folder), arguments.faults) if arguments.faults else 0
        print(f"{time.monotonic() - begun:,.0f} s")
        accused = soundness(Path(folder), arguments.looks) if arguments.looks else 0
    print(f"{time.monotonic() - begun:,.0f} s")
    sys.exit(bool(missed or accused))


if __name__ == "__main__":
    main()

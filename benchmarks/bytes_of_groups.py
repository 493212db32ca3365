"""Bytes of several KV cache groups on the real engine on the CPU: windows beside full attention, and recurrent states.

    python benchmarks/bytes_of_groups.py --faults 300 --looks 1000000

Faults are put into blocks of vLLM's own prefix cache and into loads, and each that was looked at afterwards must be found:
exchanged groups, shifted tables, states of another boundary, blocks that were freed and written to, zeros, and what another
request writes through a wrong table of the model runner. Then correct engines run with default settings, synchronous and not,
in small chunks, and with preemptions; what is accused there is a false alarm. The exit code is 1 if anything is missed or
accused falsely.
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

tiny_model.prepare_environment()  # before vLLM and torch are imported

from group_engines import GroupEngine, Injected, misdirected, named_places, prompts  # noqa: E402
from group_engines import faults as all_faults  # noqa: E402

SEEDS_OF_AN_ENGINE = 12
ROUNDS_OF_AN_ENGINE = 60
MODELS: dict[str, dict[str, Any]] = {"gemma3": {}, "gpt-oss": {}, "lfm2": {"max_num_batched_tokens": 96}}
SHAPES: list[dict[str, Any]] = [
    {},
    {"async_scheduling": True, "num_gpu_blocks_override": 700},
    {"max_num_batched_tokens": 96},
    {"num_gpu_blocks_override": 700},
    {"num_gpu_blocks_override": 150, "max_num_batched_tokens": 128, "max_num_seqs": 6},
]
OF_STATES: list[dict[str, Any]] = [{"prefix_match_unit": 16}, {"block_size": 64, "prefix_match_unit": 32}]


class Tally:
    """What was injected, looked at, found and missed."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()
        self.blocks: Counter[str] = Counter()

    def add(self, engine: GroupEngine, injected: Injected, kind: str, model: str) -> None:
        """What was injected was there to be looked at by this kind of check; the engine forgets what it has found."""
        self.faults += Counter({f"{name} in {model}, {kind}": n for name, n in injected.counts.items()})
        self.blocks["wrong"] += len(injected.touched)
        self.blocks["looked at"] += injected.looked_at([kind])
        self.blocks["named by their origin"] += len(named_places(engine))
        if missed := injected.missed([kind]):
            self.blocks["missed"] += len(missed)
            print("missed", kind, model, missed[:3], injected.counts)
        forget(engine)


def forget(engine: GroupEngine) -> None:
    engine.checked.clear()
    engine.results.clear()


def completeness(folder: Path, faults: int) -> int:
    """Inject `faults` faults; returns how many blocks were checked and missed."""
    from group_store import GroupStoreConnector

    tally, seed = Tally(), 0
    while tally.faults.total() < faults:
        model = [*MODELS][seed // SEEDS_OF_AN_ENGINE % len(MODELS)]
        engine = GroupEngine.built(folder / model, model, {}, seed=seed, **MODELS[model])
        for _ in range(SEEDS_OF_AN_ENGINE):
            rng = random.Random(seed)
            jobs = prompts(rng, 4)
            for prefix in ("computed", "loaded", "again"):
                assert engine.scheduler.reset_prefix_cache()
                if prefix == "again":  # what another request has written to is gone
                    _misdirect(engine, rng, jobs, tally, model)
                    assert engine.scheduler.reset_prefix_cache()
                engine.round(jobs, prefix)
                assert not engine.mismatches(), engine.mismatches()[:3]
            forget(engine)
            injected = Injected(engine, rng, all_faults())
            for job in jobs:
                injected.into(engine.cached(f"again-{job.id}"))
            engine.round(jobs, "taken over")
            tally.add(engine, injected, "admitted", model)
            injected = Injected(engine, rng, all_faults())
            assert engine.scheduler.reset_prefix_cache()
            with patch.object(GroupStoreConnector, "load", injected.into_loads(1.0)):
                engine.round(jobs, "wrongly loaded")
            tally.add(engine, injected, "loaded", model)
            assert engine.scheduler.reset_prefix_cache(reset_connector=True)
            engine.round([], "reset")
            forget(engine)
            seed += 1
        _end(engine)
    for name, number in sorted(tally.faults.items()):
        print(f"  {number:4} {name}")
    print(f"faults {tally.faults.total()}; blocks {dict(tally.blocks)}", flush=True)
    return tally.blocks["missed"]


def _misdirect(engine: GroupEngine, rng: random.Random, jobs: list[DemoRequest], tally: Tally, model: str) -> None:
    """Another request writes to a block of the prefix cache, as the model runner's table tells it to."""
    engine.round(jobs, "clean")
    forget(engine)
    places = [place for job in jobs for place in engine.cached(f"clean-{job.id}")]
    group = rng.choice((0, 1))
    victims = [place for place in places if place.group == group]
    with misdirected(engine, rng, "other", victims) as written:
        engine.round(prompts(rng, 1), "other")
    forget(engine)
    engine.round(jobs, "victims")
    injected = Injected(engine, rng, [])
    injected.touched, injected.counts = written, Counter({"misdirected": len(written)})
    tally.add(engine, injected, "admitted", model)


def soundness(folder: Path, looks: int, first: int) -> int:
    """Check blocks of correct engines `looks` times, from engine number `first` on; returns how many were accused."""
    counts: Counter[str] = Counter()
    accused, number = 0, first
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
    print(f"correct connector, {number - first} engines: looks {dict(counts)}; accused: {accused}", flush=True)
    return accused


def _requests(rng: random.Random, number: int) -> list[DemoRequest]:
    """Prompts, and some of them begin alike, in another order each time; a few generate long enough to leave their window."""
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
    parser.add_argument("--first", type=int, default=0, help="of the correct engines; their loads differ by number")
    arguments = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, exporting_to(NullExporter):
        missed = completeness(Path(folder), arguments.faults) if arguments.faults else 0
        print(f"{time.monotonic() - begun:,.0f} s")
        accused = soundness(Path(folder), arguments.looks, arguments.first) if arguments.looks else 0
    print(f"{time.monotonic() - begun:,.0f} s")
    sys.exit(bool(missed or accused))


if __name__ == "__main__":
    main()

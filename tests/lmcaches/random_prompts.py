"""Random prompts with a real LMCache in a real vLLM engine, each admission looked at: for a process of its own.

Takes one argument, JSON: `folder` for the model, `extra` (the connector's configuration), `chunks` (how many LMCache has
room for), `seed`, `requests`, `blocks` (of vLLM's pool), `at_a_time` (requests), `generate` (tokens), and `sizes`. Prints
one line of JSON at the end. Without sizes, each admission is looked at: tokens by the reference's cause and what was said
of them, for each thing that may be left out of a recording. With sizes, in chunks: what the store gave, and what each of
these would have given.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cpu
from causes_not_recorded import NOT_RECORDED, heard
from causes_reference import Reference, StoreView, compare, number_them
from saved import given, saved_of

from kvtrail.connector.demo import workload
from kvtrail.connector.simulate import in_memory, tiny_model
from kvtrail.tracer.events.events import Event

CHUNK = 64
CHUNK_BYTES = 2 * tiny_model.LAYERS * tiny_model.HIDDEN * 4 * CHUNK


class LMCacheView(StoreView):
    """LMCache's local CPU backend. Its keys are those that it makes of the tokens of each request that was looked up."""

    def __init__(self, worker: Any, block_size: int) -> None:
        super().__init__(worker, CHUNK, from_start=True)
        engine = worker._lmcache_engine.lmcache_engine
        self._keys, self._backend = engine.token_database, engine.storage_manager.storage_backends["LocalCPUBackend"]
        self._block_size = block_size
        self._names: dict[int, bytes] = {}

    def asked(self, request: Any) -> None:
        for _, end, key in self._keys.process_tokens(list(request.all_token_ids)):
            if end % CHUNK == 0:
                name = request.block_hashes[end // self._block_size - 1]
                self._names[key.chunk_hash] = bytes(name)

    def held(self) -> list[set[bytes]]:
        return [{self._names[key.chunk_hash] for key in self._backend.hot_cache}]


def jobs(seed: int, requests: int, generate: int) -> list[workload.DemoRequest]:
    """Prompts that grow out of each other: some repeat one, some go on where one ended, most share a beginning. Each
    generates fewer tokens than this."""
    rng = random.Random(seed)
    known: list[tuple[int, ...]] = [_tokens(rng, rng.randrange(100, 500)) for _ in range(6)]
    made, step = [], 0
    for n in range(requests):
        before = known[min(int(rng.expovariate(1) * len(known) / 4), len(known) - 1)]
        before = before[: rng.randrange(32, len(before))] if rng.random() < 0.3 else before
        prompt = before if rng.random() < 0.15 else before + _tokens(rng, rng.randrange(1, 250))
        prompt = prompt[:900]
        known.insert(0, prompt)
        step += int(rng.expovariate(1 / 4))
        made.append(workload.DemoRequest(f"r{n:04d}", prompt, rng.randrange(1, generate), step))
    return made


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, tiny_model.VOCABULARY) for _ in range(count))


def main(task: dict[str, Any]) -> dict[str, Any]:
    tiny_model.prepare_environment()
    cpu.prepare_late(mended=True)
    os.environ["LMCACHE_CHUNK_SIZE"] = str(CHUNK)
    os.environ["LMCACHE_MAX_LOCAL_CPU_SIZE"] = str(CHUNK_BYTES * task["chunks"] / 2**30)
    connector = {"kv_connector": "TracedLMCacheConnectorV1", "kv_connector_module_path": "kvtrail.connector"}
    extra = {**task["extra"], "kvtrail": {"level": "detailed", "fingerprints": "off"}}
    with in_memory.exporters() as exporters:
        llm = tiny_model.build(
            Path(task["folder"]),
            connector | {"kv_connector_extra_config": extra, "kv_load_failure_policy": "recompute"},
            num_gpu_blocks_override=task["blocks"],
            max_num_batched_tokens=256,
            max_num_seqs=task["at_a_time"],
        )
        reference = None if task["sizes"] else watched(llm)
        workload.run(llm, jobs(task["seed"], task["requests"], task["generate"]))
        in_memory.flush()
    events = [event for each in exporters for event in each.events()]
    if reference is None:
        return estimated(events, task["sizes"])
    number_them(reference.admissions, events)
    said = {}
    for missing in NOT_RECORDED:
        tally = compare(reference.admissions, heard(events, missing, seed=task["seed"]))
        said[missing] = [[*pair, tokens] for pair, tokens in tally.items()]
    return {"said": said}


def watched(llm: Any) -> Reference:
    """What looks at both caches of an engine at every call."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    view = LMCacheView(get_kv_transfer_group(), tiny_model.BLOCK_SIZE)
    reference = Reference(scheduler, tiny_model.BLOCK_SIZE, view)
    update = scheduler.update_from_output

    def stepped(*arguments: Any, **named: Any) -> Any:
        answer = update(*arguments, **named)
        reference.stepped()
        return answer

    scheduler.update_from_output = stepped
    return reference


def estimated(events: Sequence[Event], sizes: Sequence[int]) -> dict[str, Any]:
    """What the run gave, and what stores of these sizes would have given: shares of the tokens asked for."""
    (saved,) = saved_of(events)
    return {"given": saved.worth.hit_share or 0, "points": [[size, given(saved, size)] for size in sizes]}


if __name__ == "__main__":
    result = main(json.loads(sys.argv[1]))
    print(json.dumps(result), flush=True)
    os._exit(0)  # hard: LMCache's threads do not end

"""A real engine with recurrent states, few blocks and many requests: what a preempted request has computed and stored, and
nobody could look at before its blocks were given to others, is loaded again and accuses nobody."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import forks
import pytest

pytest.importorskip("vllm", reason="a real engine needs vLLM")

import hybrid_models
from recording import recording

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import BlockCheck, Preempt
from kvtrail.tracer.history.history import load

TRACE = "trace.jsonl"
FEW_BLOCKS = {
    "num_gpu_blocks_override": 32,
    "max_num_batched_tokens": 96,
    "max_num_seqs": 12,
    "max_model_len": 512,
    "scheduler_reserve_full_isl": False,
}
CONNECTOR = {
    "kv_connector": "OffloadConnector",
    "kv_connector_module_path": "kvtrail.connector",
    "kv_connector_extra_config": {
        "chunk_size": 32,
        "cpu_bytes_to_use": 1_500_000,
        "load_async": True,
        "kvtrail": {"fingerprints": "all"},
    },
}
"""The store is small: what an earlier round has computed is forgotten, but for its fingerprints."""
ROUNDS, REQUESTS = 20, 20


def requests(rng: random.Random) -> list[DemoRequest]:
    """The same prompts in each round, in another order and at other steps: who shares a step decides the last bits of what is
    computed in it."""
    prompts = random.Random(0)
    heads = [tuple(prompts.randrange(3, 256) for _ in range(96)) for _ in range(REQUESTS)]
    tails = [tuple(prompts.randrange(3, 256) for _ in range(prompts.randrange(8, 150))) for _ in range(REQUESTS)]
    return [
        DemoRequest(f"r{n}", heads[n] + tails[n], rng.randrange(20, 120), arrives_at_step=rng.randrange(60))
        for n in rng.sample(range(REQUESTS), REQUESTS)
    ]


def _run(folder: Path) -> None:
    with recording(folder / TRACE):
        llm = hybrid_models.build(folder / "model", "lfm2", CONNECTOR, **FEW_BLOCKS)
        for number in range(ROUNDS):
            assert llm.reset_prefix_cache()
            rng = random.Random(number)
            workload.run(llm, [replace(each, id=f"{number}-{each.id}") for each in requests(rng)])
        llm.llm_engine.engine_core.shutdown()


@pytest.mark.long
@pytest.mark.costly("runs 400 requests on a real engine")
def test_states_of_preempted_requests_are_not_accused(tmp_path: Path) -> None:
    """Where the plan of checks keeps silent about what nobody could look at, 22 loads are accused."""
    log = tmp_path / "engine.log"
    process = forks.start(_run, tmp_path, out=log)
    process.join()
    assert process.exitcode == 0, log.read_text()[-3000:]
    events = load([tmp_path / TRACE]).events
    detector = Detector()
    detector.feed(events)
    detector.settle()
    checked = [event for event in events if isinstance(event, BlockCheck)]
    loaded = sum(event.check_blocks for event in checked if event.check_look == "loaded" and event.group == 0)
    preempted = sum(isinstance(event, Preempt) for event in events)
    assert preempted > 200
    assert loaded > 200
    findings = [each for held in detector.findings.values() for each in held.values()]
    assert [(each.rule, each.request, each.numbers) for each in findings] == []

"""Real engines whose blocks are looked at, each in a fork of its own; what they record is a trace file."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import forks
from recording import recording

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.simulate import tiny_model
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.replay.history import load

PROMPT = 4 * tiny_model.BLOCK_SIZE + 10
"""Tokens of the prompts that share a store."""
EXCHANGE = "exchange"
"""Between prompts: what is stored of two of them changes places."""
JOBS = workload.shared_prefixes(requests=9)
EXTRA = {"kv_connector_extra_config": {"chunk_size": 64, "kvtrail": {"fingerprints": "all", "fingerprint_held": "all"}}}
AFTER = DemoRequest("after", (5, 6, 7), 1)
"""A last request, for the looks after the step before."""


def two_rounds(folder: Path, fault: str) -> list[Event]:
    """An engine with a fault of copies: two rounds, of which the second loads what the first has stored."""
    return _in_fork(folder, partial(_two_rounds, fault))


def drafting(folder: Path) -> list[Event]:
    """An engine that speculates, for the same two rounds. After it, this vLLM cannot make another one in the process."""
    return _in_fork(folder, _drafting)


def sharing(folder: Path, engine: str, jobs: Sequence[str]) -> list[Event]:
    """An engine with vLLM's ExampleConnector, whose store is in the folder: prompts by name, and exchanges between them."""
    return _in_fork(folder, partial(_sharing, engine, jobs))


def _in_fork(folder: Path, run: Callable[[Path], None]) -> list[Event]:
    trace, log = folder / "trace.jsonl", folder / "engine.log"
    process = forks.start(_recorded, run, folder, trace, out=log)
    process.join(forks.SLOW_S)
    assert process.exitcode == 0, log.read_text()[-3000:]
    return list(load([trace]).events)


def _recorded(run: Callable[[Path], None], folder: Path, trace: Path) -> None:
    with recording(trace):
        run(folder)


def _two_rounds(fault: str, folder: Path) -> None:
    faulty = {"kv_connector": f"Faulty:{fault}:OffloadConnector", "kv_connector_module_path": "kvtrail.connector"}
    _rounds(tiny_model.build(folder / "model", {**faulty, **EXTRA}))


def _drafting(folder: Path) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    _rounds(
        tiny_model.build(folder / "model", {"kv_connector": "OffloadConnector", **EXTRA}, speculative_config=drafts)
    )


def _rounds(llm: Any) -> None:
    for number in range(2):
        assert llm.reset_prefix_cache()
        named = [DemoRequest(f"{number}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in JOBS]
        workload.run(llm, named)
    _end(llm)


def _sharing(engine: str, jobs: Sequence[str], folder: Path) -> None:
    extra = {"shared_storage_path": str(folder / "store"), "kvtrail": {"fingerprints": "all"}}
    connector = {"kv_connector": "TracedExampleConnector", "engine_id": engine, "kv_connector_extra_config": extra}
    # A prompt in one step: that is what this connector stores.
    llm = tiny_model.build(folder / "model", connector, max_num_batched_tokens=1024)
    for job in jobs:
        if job == EXCHANGE:
            _exchange(folder)
        else:
            workload.run(llm, [DemoRequest(job, _prompt(job), 3)])
    _end(llm)


def _prompt(name: str) -> tuple[int, ...]:
    rng = random.Random(name)
    return tuple(rng.randrange(3, tiny_model.VOCABULARY) for _ in range(PROMPT))


def _exchange(folder: Path) -> None:
    """Of a prompt that is shorter than a block there is an empty file."""
    stored = (folder / "store").iterdir()
    one, other = (prompt for prompt in stored if max(file.stat().st_size for file in prompt.iterdir()) > 1000)
    for source, target in ((one, folder / "aside"), (other, one), (folder / "aside", other)):
        source.rename(target)


def _end(llm: Any) -> None:
    workload.run(llm, [AFTER])
    llm.llm_engine.engine_core.shutdown()

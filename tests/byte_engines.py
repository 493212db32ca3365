"""Real engines whose blocks are looked at, each in a fork of its own; what they record is a trace file."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
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
AFTER = DemoRequest("after", (5, 6, 7), 1)
"""A last request, for the looks after the step before."""


def two_rounds(folder: Path, fault: str) -> list[Event]:
    """An engine with a fault of copies: two rounds, of which the second loads what the first has stored."""
    return _in_fork(folder, partial(_two_rounds, fault))


def as_without(folder: Path, connector: Mapping[str, Any], **overrides: Any) -> list[Event]:
    """An engine of these settings: two rounds, in which it makes the tokens that it makes without a connector."""
    return _in_fork(folder, partial(_as_without, connector, overrides))


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
    connector = {
        "kv_connector": f"Faulty:{fault}:OffloadConnector",
        "kv_connector_module_path": "kvtrail.connector",
        "kv_connector_extra_config": {"chunk_size": 64, "kvtrail": {"fingerprints": "all", "fingerprint_held": "all"}},
    }
    llm = tiny_model.build(folder / "model", connector)
    for number in range(2):
        _round(llm, str(number))
    _end(llm)


def _as_without(connector: Mapping[str, Any], overrides: Mapping[str, Any], folder: Path) -> None:
    llm = tiny_model.build(folder / "plain", **overrides)
    expected = _round(llm, "expected")
    _end(llm)
    llm = tiny_model.build(folder / "model", connector, **overrides)
    for number in range(2):
        assert _round(llm, str(number)) == expected
    _end(llm)


def _round(llm: Any, prefix: str) -> dict[str, list[int]]:
    """The tokens of each job, with vLLM's own prefix cache empty at first; the jobs' names have this prefix."""
    assert llm.reset_prefix_cache()
    named = [DemoRequest(f"{prefix}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in JOBS]
    return {name.removeprefix(f"{prefix}-"): made for name, made in workload.run(llm, named).items()}


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


def two_ranks(folder: Path, connector: Mapping[str, Any]) -> None:
    """Two rounds on two tensor-parallel ranks, each in a process of its own. To be called in a fork."""
    folder.mkdir()
    llm = tiny_model.build(folder / "model", connector, tensor_parallel_size=2, distributed_executor_backend="mp")
    for number in range(2):
        _round(llm, str(number))
    _end(llm)

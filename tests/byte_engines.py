"""Real engines with checks of their blocks, each in a fork of its own; what they record is a trace file."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import faults  # noqa: F401 - makes them known
import forks
import torch
from recording import recording

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.simulate import tiny_model
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import BlockCheck, Event
from kvtrail.tracer.history.history import load
from kvtrail.tracer.model.findings import Finding

ROUNDS = ("first", "second")
"""The second round loads what the first has stored."""
PROMPT = 4 * tiny_model.BLOCK_SIZE + 10
"""Tokens of the prompts that share a store."""
EXCHANGE = "exchange"
"""Between prompts: what is stored of two of them changes places."""
JOBS = workload.shared_prefixes(requests=6)
OF_TWO_RANKS = [replace(job, max_tokens=8) for job in JOBS[:4]]
"""Few steps: in each of them the ranks wait for each other, and keep a processor busy while they do."""
AFTER = DemoRequest("after", (5, 6, 7), 1)
"""A last request, for the looks after the step before."""
TOKENS = "tokens.json"
Tokens = dict[str, list[int]]
"""What requests have generated, by their names."""


@dataclass(frozen=True)
class Ran:
    """The tokens that an engine has made, and what it has recorded, if that is a file."""

    tokens: Tokens
    events: list[Event] = field(default_factory=list)

    def looks(self) -> Counter[str]:
        """Blocks by look, and those that were unknown or wrong."""
        counts: Counter[str] = Counter()
        for event in self.events:
            if isinstance(event, BlockCheck):
                counts[event.check_look] += event.check_blocks
                counts["unknown"] += event.check_unknown
                counts["wrong"] += event.wrong
        return counts

    def findings(self) -> list[Finding]:
        """What the rules find in it."""
        return found(self.events)

    def unlike(self, other: Ran) -> set[str]:
        """The requests that begin with other tokens; those of the other run may go on for longer."""
        return {name for name, made in self.tokens.items() if made != other.tokens[name][: len(made)]}


def found(*parts: list[Event]) -> list[Finding]:
    """What the rules find in these histories together."""
    return [finding for held in judged(*parts).findings.values() for finding in held.values()]


def judged(*parts: list[Event]) -> Detector:
    """The rules, when they have heard these histories."""
    detector = Detector()
    for part in parts:
        detector.feed(part)
    detector.settle()
    return detector


def offload(name: str = "OffloadConnector", *, guard: str = "observe") -> dict[str, Any]:
    """The settings of an OffloadConnector, or of what is made of it, with checks of all bytes."""
    return {
        "kv_connector": name,
        "kv_connector_module_path": "kvtrail.connector",
        "kv_connector_extra_config": {
            "chunk_size": 64,
            "kvtrail": {"fingerprints": "all", "guard": guard},
        },
        "kv_load_failure_policy": "recompute",
    }


def two_rounds(
    folder: Path, connector: Mapping[str, Any], environment: Mapping[str, str] | None = None, **overrides: Any
) -> Ran:
    """An engine with this connector, and `JOBS` twice; `environment` adds to this process's."""
    events = _in_fork(folder, partial(_two_rounds, connector, overrides), environment)
    return Ran(_tokens(folder), events)


def without_connector(folder: Path) -> Ran:
    """An engine that computes the same two rounds."""
    _run(folder, _two_rounds, None, {}, folder)
    return Ran(_tokens(folder))


def two_ranks(folder: Path, connector: Mapping[str, Any], grpc_port: int) -> Ran:
    """`OF_TWO_RANKS` twice on two tensor-parallel ranks, each of them a process that sends what it records to this port."""
    overrides = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{grpc_port}"}
    _run(folder, _of_two_ranks, connector, overrides, folder, environment=environment)
    return Ran(_tokens(folder))


def sharing(
    folder: Path,
    engine: str,
    jobs: Sequence[str],
    kvtrail: Mapping[str, Any] = MappingProxyType({"fingerprints": "all"}),
) -> list[Event]:
    """An engine with vLLM's ExampleConnector and its store in the folder: prompts by name, and exchanges between them."""
    return _in_fork(folder, partial(_sharing, engine, jobs, dict(kvtrail)))


def damage(folder: Path, seed: int) -> None:
    """Of every prompt in that store, blocks are exchanged, shifted by one, emptied, or hold what another prompt's did."""
    from safetensors.torch import load_file, save_file

    rng, block = random.Random(seed), tiny_model.BLOCK_SIZE
    prompts = [sorted(each.iterdir()) for each in sorted((folder / "store").iterdir()) if _is_whole(each)]
    before = [[load_file(layer)["kv_cache"] for layer in prompt] for prompt in prompts]
    for n, prompt in enumerate(prompts):
        one, other = rng.sample(range(PROMPT // block), 2)
        for layer, held, foreign in zip(prompt, before[n], before[n - 1], strict=True):
            blocks = [held[first : first + block].clone() for first in range(0, len(held), block)]
            match n % 4:
                case 0:
                    blocks[one], blocks[other] = blocks[other], blocks[one]
                case 1:
                    blocks = [blocks[-1], *blocks[:-1]]
                case 2:
                    blocks[one].zero_()
                case 3:
                    blocks[one] = foreign[other * block : other * block + block].clone()
            save_file({"kv_cache": torch.cat(blocks)}, layer)


def _in_fork(folder: Path, run: Callable[[Path], None], environment: Mapping[str, str] | None = None) -> list[Event]:
    trace = folder / "trace.jsonl"
    _run(folder, _recorded, run, folder, trace, environment={**os.environ, **(environment or {})})
    return list(load([trace]).events)


def _tokens(folder: Path) -> Tokens:
    tokens: Tokens = json.loads((folder / TOKENS).read_text())
    return tokens


def _run(
    folder: Path, call: Callable[..., None], *arguments: Any, environment: Mapping[str, str] | None = None
) -> None:
    folder.mkdir(exist_ok=True)
    log = folder / "engine.log"
    process = forks.start(call, *arguments, environment=environment, out=log)
    process.join()
    assert process.exitcode == 0, log.read_text()[-3000:]


def _recorded(run: Callable[[Path], None], folder: Path, trace: Path) -> None:
    with recording(trace):
        run(folder)


def _two_rounds(
    connector: Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    folder: Path,
    jobs: Sequence[DemoRequest] = JOBS,
) -> None:
    llm = tiny_model.build(folder / "model", connector, **overrides)
    tokens: Tokens = {}
    for prefix in ROUNDS:
        assert llm.reset_prefix_cache()
        named = [DemoRequest(f"{prefix}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs]
        tokens |= workload.run(llm, named)
    (folder / TOKENS).write_text(json.dumps(tokens))
    _end(llm)


def _of_two_ranks(connector: Mapping[str, Any], overrides: Mapping[str, Any], folder: Path) -> None:
    forks.start_workers_as_forks()
    _two_rounds(connector, overrides, folder, OF_TWO_RANKS)


def _sharing(engine: str, jobs: Sequence[str], kvtrail: dict[str, Any], folder: Path) -> None:
    extra = {"shared_storage_path": str(folder / "store"), "kvtrail": kvtrail}
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
    one, other = filter(_is_whole, (folder / "store").iterdir())
    for source, target in ((one, folder / "aside"), (other, one), (folder / "aside", other)):
        source.rename(target)


def _is_whole(prompt: Path) -> bool:
    return max(file.stat().st_size for file in prompt.iterdir()) > 1000


def _end(llm: Any) -> None:
    workload.run(llm, [AFTER])
    llm.llm_engine.engine_core.shutdown()

"""Real engines in this process with checks of their blocks, and faults in what they load."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.fingerprints.references import References
from kvtrail.connector.fingerprints.result import CheckResult
from kvtrail.connector.fingerprints.worker import CheckWorker
from kvtrail.connector.offload.host_memory import HostMemory

Tokens = dict[str, list[int]]
JOBS = workload.shared_prefixes(requests=6)
"""Three of them are preempted."""
AFTER = DemoRequest("after", (5, 6, 7), 1)
"""A last request, for the checks after the step before."""
ALL = {"fingerprints": "all"}
CHUNK_BYTES = 64 * 2 * 2 * 64 * 4  # tokens, layers, heads, K and V of a head, float32
Corrupt = Callable[[random.Random, list[np.ndarray[Any, Any]], list[int]], None]


@dataclass
class Engine:
    """A real engine in this process, and what its checks have found."""

    llm: Any
    results: list[CheckResult] = field(default_factory=list)
    _known: References | None = None
    """What it knew when it had run `JOBS`."""

    def round(self, jobs: Sequence[DemoRequest] = JOBS, prefix: str = "r") -> Tokens:
        """Run the jobs, with vLLM's own prefix cache empty at first; their names have this prefix."""
        assert self.llm.reset_prefix_cache()
        named = [DemoRequest(f"{prefix}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs]
        tokens = workload.run(self.llm, named)
        workload.run(self.llm, [AFTER])  # the looks after the last step
        return {name.removeprefix(f"{prefix}-"): made for name, made in tokens.items()}

    def forget(self) -> None:
        """Let vLLM, the connector and the checks know nothing, as if it had just begun."""
        assert self.llm.reset_prefix_cache(reset_connector=True)
        workload.run(self.llm, [AFTER])  # the reset is reported with the next step
        self._known = None
        if (checks := self._checks()) is not None:
            known = checks._judge._references
            self._restore(References(own=known.own, units=known._units))

    def rewind(self, expected: Tokens, rounds: int) -> None:
        """Let the checks know what they did when it had run `JOBS` in so many rounds, which are called 0, 1, ... The store
        of the connector holds at least what it did then."""
        if self._known is None:
            self.forget()
            for number in range(rounds):
                assert self.round(prefix=str(number)) == expected
            assert not self.named()
            assert self.counted()["computed"] > 5
            self._known = deepcopy(self.checks._judge._references)
        self._restore(deepcopy(self._known))

    def _restore(self, references: References) -> None:
        self.checks._judge._references = self.checks._references = references
        self.checks._judge.heals = False
        self.results.clear()

    def counted(self) -> Counter[str]:
        """Checked blocks, by check; and those that could not be judged."""
        counts: Counter[str] = Counter()
        for each in self.results:
            counts[each.kind] += each.blocks
            counts["unknown"] += each.unknown
        return counts

    def named(self) -> set[str]:
        """The jobs with reported mismatches."""
        return {each.request_id.partition("-")[2].rpartition("-")[0] for each in self.results if each.mismatches}

    @property
    def checks(self) -> CheckWorker:
        checks = self._checks()
        assert checks is not None
        return checks

    def _checks(self) -> CheckWorker | None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        checks: Any = getattr(get_kv_transfer_group(), "_kvtrail_checks", None) if has_kv_transfer_group() else None
        worker: CheckWorker | None = getattr(checks, "_worker", None)
        return worker

    def watch(self) -> None:
        """Keep the results of its checks, which are sent nowhere then."""
        if (checks := self._checks()) is not None:
            checks._results.report = self.results.append


def flipped(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    """The signs of a token's keys in one layer: what a flipped bit of each number is."""
    numbers = rng.choice(layers)[rng.choice(blocks)].view(np.float32)
    numbers[: len(numbers) // 4] *= -1


def one_bit(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    """Too little to change a token, most of the time."""
    row = rng.choice(layers)[rng.choice(blocks)]
    row[rng.randrange(len(row))] ^= 1 << rng.randrange(8)


def exchanged(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    """Two blocks of the load, in all layers."""
    if len(blocks) > 1:
        one, other = rng.sample(blocks, 2)
        for layer in layers:
            layer[[one, other]] = layer[[other, one]]


def anothers(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    """Another block's content, whoever's that is."""
    block = rng.choice(blocks)
    other = rng.choice([n for n in range(len(layers[0])) if n != block])
    for layer in layers:
        layer[block] = layer[other]


def layer_of_zeros(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    rng.choice(layers)[rng.choice(blocks)] = 0


def layers_exchanged(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    block = rng.choice(blocks)
    layers[0][block], layers[1][block] = layers[1][block].copy(), layers[0][block].copy()


FAULTS: list[Corrupt] = [flipped, one_bit, exchanged, anothers, layer_of_zeros, layers_exchanged]


class Injected:
    """Corrupts some of the blocks that HostMemory has just loaded.

    Attributes:
        touched: the jobs with blocks into which it has put something else.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fault: Corrupt, *, seed: int = 0) -> None:
        self.touched: set[str] = set()
        rng, plain = random.Random(seed), HostMemory.load

        def load(memory: HostMemory, copies: Any) -> None:
            plain(memory, copies)
            layers: list[np.ndarray[Any, Any]] = [part._cache for part in memory._parts]  # type: ignore[misc]
            for copy in copies:
                if rng.random() < 0.3:
                    before = [layer[list(copy.blocks)].copy() for layer in layers]
                    fault(rng, layers, list(copy.blocks))
                    changed = (layer[list(copy.blocks)] for layer in layers)
                    if any((one != other).any() for one, other in zip(before, changed, strict=True)):
                        self.touched.add(copy.request_id.partition("-")[2].rpartition("-")[0])

        monkeypatch.setattr(HostMemory, "load", load)


def wrong(tokens: Tokens, expected: Tokens) -> set[str]:
    return {name for name, made in tokens.items() if made != expected[name]}


FULL_HIT = DemoRequest("full", tuple(range(5, 133)), 4)
"""Its last block is loaded, and the last token of it computed."""


def last_block_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads put the first block's content into the last block, too."""
    plain = HostMemory.load

    def load(memory: HostMemory, copies: Any) -> None:
        plain(memory, copies)
        first, last = copies[0].blocks[0], copies[-1].blocks[-1]
        for part in memory._parts:
            part._cache[last] = part._cache[first]

    monkeypatch.setattr(HostMemory, "load", load)


def its_last_block_is_named(engine: Engine) -> None:
    ((result, found),) = [(result, each) for result in engine.results for each in result.mismatches]
    assert (result.kind, found.kind, found.token) == ("loaded", "drift", 96)

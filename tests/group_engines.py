"""Real engines with several KV cache groups in this process, with checks of their blocks, and faults in what blocks hold: in
vLLM's own prefix cache, and in loads."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import hybrid_models
from group_store import Copy, GroupStoreConnector

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.fingerprints.result import CheckResult, MismatchedBlock, Origin
from kvtrail.connector.fingerprints.worker import CheckWorker

AFTER = DemoRequest("after", (5, 6, 7), 1)
"""A last request, for the checks after the step before."""

OPTIONS = {"num_gpu_blocks_override": 200, "max_num_batched_tokens": 512, "scheduler_reserve_full_isl": False}


class Place(NamedTuple):
    """Where a block is in a prompt; `token` is its first one, or those that a state has seen."""

    prompt: str
    group: int
    token: int
    block: int
    hash: int


Corrupt = Callable[[random.Random, "GroupEngine", list[Place]], None]


@dataclass
class GroupEngine:
    """A real engine, and what its checks have found."""

    llm: Any
    results: list[CheckResult] = field(default_factory=list)
    checked: set[tuple[str, int, int, int]] = field(default_factory=set)
    """Checks by kind, group, block and hash."""

    @classmethod
    def built(cls, folder: Path, model: str, kvtrail: dict[str, Any], **overrides: Any) -> GroupEngine:
        """One of this model, with a connector that stores blocks of all groups."""
        GroupStoreConnector.contents.clear()
        connector = {
            "kv_connector": "Traced:group_store:GroupStoreConnector",
            "kv_connector_module_path": "kvtrail.connector",
            "kv_connector_extra_config": {"kvtrail": kvtrail},
        }
        engine = cls(hybrid_models.build(folder, model, connector, **{**OPTIONS, **overrides}))
        record = engine.checks._results.report

        def report(result: CheckResult) -> None:
            engine.results.append(result)
            record(result)

        engine.checks._results.report = report
        judge_all = engine.checks._judge.judge_all

        def noting(judge: Any, checks: Any, contents: Any) -> None:
            for check in checks:
                engine.checked |= {
                    (check.kind, check.group, *each) for each in zip(check.blocks, check.hashes, strict=True)
                }
            judge_all(judge, checks, contents)

        engine.checks._judge.judge_all = noting  # type: ignore[method-assign]
        engine.checks._readings._on_batch = lambda *read: noting(engine.checks._judge.before_step(), *read)
        return engine

    @property
    def checks(self) -> CheckWorker:
        checks: CheckWorker = self.worker_side._kvtrail_checks._worker
        return checks

    @property
    def worker_side(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    def round(self, jobs: Sequence[DemoRequest], prefix: str) -> dict[str, list[int]]:
        """Run the jobs; their names have this prefix. Returns their tokens."""
        named = [DemoRequest(f"{prefix}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs]
        tokens = workload.run(self.llm, named)
        workload.run(self.llm, [AFTER])
        self.checks.end()
        return {name.removeprefix(f"{prefix}-"): made for name, made in tokens.items()}

    def counted(self) -> Counter[tuple[str, int]]:
        """Checked blocks by check and group, and those that could not be judged."""
        counts: Counter[tuple[str, int]] = Counter()
        for each in self.results:
            counts[each.kind, each.group] += each.blocks
            counts["unknown", each.group] += each.unknown
        return counts

    def mismatches(self) -> list[tuple[CheckResult, MismatchedBlock]]:
        return [(result, each) for result in self.results for each in result.mismatches]

    def cached(self, prompt: str) -> list[Place]:
        """The blocks of vLLM's prefix cache that hold the beginning of a finished request, by group and token."""
        from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

        at = {each: n for n, each in enumerate(self.scheduler.connector.finished[prompt])}
        size = self.scheduler.hash_block_size
        units = {group.number: group for group in self.worker_side.groups}
        places = []
        for block in self.scheduler.kv_cache_manager.block_pool.blocks:
            if block.block_hash is not None and (hash_ := get_block_hash(block.block_hash)) in at:
                group = units[get_group_id(block.block_hash)]
                seen = (at[hash_] + 1) * size
                token = seen if group.boundary else seen - group.block_size
                places.append(Place(prompt, group.number, token, block.block_id, int.from_bytes(hash_[-8:], "big")))
        return sorted(places, key=lambda place: (place.group, place.token))

    def bytes_of(self, places: Iterable[Place]) -> list[list[Any]]:
        """Copies of what blocks hold."""
        views = self.worker_side.views
        return [[view[place.block].clone() for view in views[place.group]] for place in places]

    def write(self, place: Place, pieces: Sequence[Any]) -> None:
        """Let a block hold this, or as much of it as there is room for."""
        views = self.worker_side.views[place.group]
        flat = [piece.flatten() for piece in pieces]
        for n, view in enumerate(views):
            target = view[place.block]
            source = flat[n % len(flat)]
            target.copy_(
                source[: target.numel()].reshape(target.shape) if len(source) >= target.numel() else target.flip(0)
            )


# Faults. Each changes some of the blocks of a prompt.


def _any(rng: random.Random, places: list[Place]) -> Place:
    """A block of any group, however many blocks that has."""
    group = rng.choice(sorted({place.group for place in places}))
    return rng.choice([place for place in places if place.group == group])


def exchanged_groups(rng: random.Random, engine: GroupEngine, places: list[Place]) -> None:
    """A block of each group holds what the other group's should."""
    one = _any(rng, places)
    others = [place for place in places if place.group != one.group]
    if others:
        other = min(others, key=lambda place: (place.token != one.token, rng.random()))
        (mine,), (theirs,) = engine.bytes_of([one]), engine.bytes_of([other])
        engine.write(one, theirs)
        engine.write(other, mine)


def shifted_table(rng: random.Random, engine: GroupEngine, places: list[Place]) -> None:
    """Each block of a group holds what the one before it should."""
    group = rng.choice(sorted({place.group for place in places}))
    chain = [place for place in places if place.group == group]
    for place, held in zip(chain[1:], engine.bytes_of(chain[:-1]), strict=True):
        engine.write(place, held)


class OtherBoundary:
    """A block holds what another of its group does: of this prompt or of an earlier one. Of a state that is another
    boundary's."""

    __name__ = "other_boundary"

    def __init__(self) -> None:
        self._before: dict[int, list[Any]] = {}

    def __call__(self, rng: random.Random, engine: GroupEngine, places: list[Place]) -> None:
        place = _any(rng, places)
        others = [each for each in places if each.group == place.group and each.block != place.block]
        candidates = [*engine.bytes_of(others), *self._before.get(place.group, [])]
        self._before.setdefault(place.group, []).extend(engine.bytes_of([place]))
        if candidates:
            engine.write(place, rng.choice(candidates))


def rewritten(rng: random.Random, engine: GroupEngine, places: list[Place]) -> None:
    """A block was freed too soon: somebody has written other numbers there."""
    place = _any(rng, places)
    for view in engine.worker_side.views[place.group]:
        noise = [rng.random() for _ in range(64)]
        target = view[place.block]
        target.copy_(target.new_tensor(noise).repeat(-(-target.numel() // 64))[: target.numel()].reshape(target.shape))


def zeros(rng: random.Random, engine: GroupEngine, places: list[Place]) -> None:
    place = _any(rng, places)
    for view in engine.worker_side.views[place.group]:
        view[place.block] = 0


def faults() -> list[Corrupt]:
    return [exchanged_groups, shifted_table, OtherBoundary(), rewritten, zeros]


@contextmanager
def misdirected(
    engine: GroupEngine, rng: random.Random, request: str, victims: Sequence[Place]
) -> Iterator[list[Place]]:
    """The model runner's table of a new request names another's block, to which the request then writes. Gives the blocks
    that were written to."""
    runner = engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    execute = runner.execute_model
    written: list[Place] = []

    def altered(output: Any, *arguments: Any, **options: Any) -> Any:
        for n, new in enumerate(output.scheduled_new_reqs):
            if new.req_id.startswith(request) and not written:
                victim = rng.choice(victims)
                tables = [list(table) for table in new.block_ids]
                table = tables[victim.group]
                end = new.num_computed_tokens + output.num_scheduled_tokens[new.req_id]
                size = engine.worker_side.groups[victim.group].block_size
                is_state = engine.worker_side.groups[victim.group].boundary
                table[end // size - 1 if is_state else rng.randrange(end // size)] = victim.block
                output.scheduled_new_reqs[n] = replace(new, block_ids=tuple(tables))
                written.append(victim)
        return execute(output, *arguments, **options)

    with patch.object(runner, "execute_model", altered):
        yield written


class Injected:
    """Faults that were put into blocks.

    Attributes:
        touched: the blocks that hold something else now.
        counts: by fault.
    """

    def __init__(self, engine: GroupEngine, rng: random.Random, faults: Sequence[Corrupt]) -> None:
        self._engine, self._rng, self._faults = engine, rng, faults
        self.touched: list[Place] = []
        self.counts: Counter[str] = Counter()

    def into(self, places: list[Place]) -> None:
        """Put one into some of these blocks, which are of one prompt."""
        fault = self._rng.choice(self._faults)
        before = self._engine.bytes_of(places)
        fault(self._rng, self._engine, places)
        changed = [
            place
            for place, old, new in zip(places, before, self._engine.bytes_of(places), strict=True)
            if any((a != b).any() for a, b in zip(old, new, strict=True))
        ]
        if changed:
            self.counts[fault.__name__] += 1  # type: ignore[attr-defined]
            self.touched += changed

    def into_loads(self, share: float) -> Callable[[Any, Sequence[Copy]], None]:
        """What `GroupStoreConnector.load` is to be."""
        plain = GroupStoreConnector.load

        def load(connector: GroupStoreConnector, copies: Sequence[Copy]) -> None:
            plain(connector, copies)
            for request_id in {copy.request_id for copy in copies}:
                if self._rng.random() < share:
                    self.into(
                        [
                            Place(c.request_id, c.group, c.token, c.block, int.from_bytes(c.key[1][-8:], "big"))
                            for c in copies
                            if c.request_id == request_id
                        ]
                    )

        return load

    def missed(self, kinds: Sequence[str]) -> list[Place]:
        """Those of the touched blocks that were checked afterwards, and not found."""
        found = {(result.group, each.block, each.hash) for result, each in self._engine.mismatches()}
        return [
            place
            for place in self.touched
            if (place.group, place.block, place.hash) not in found
            and any((kind, place.group, place.block, place.hash) in self._engine.checked for kind in kinds)
        ]

    def looked_at(self, kinds: Sequence[str]) -> int:
        """How many of the touched blocks were checked afterwards."""
        return sum(
            any((kind, place.group, place.block, place.hash) in self._engine.checked for kind in kinds)
            for place in self.touched
        )


def prompts(rng: random.Random, count: int, longest: int = 420) -> list[DemoRequest]:
    """Prompts that share nothing."""
    return [
        DemoRequest(
            f"p{n}", tuple(rng.randrange(3, hybrid_models.VOCABULARY) for _ in range(rng.randrange(180, longest))), 3
        )
        for n in range(count)
    ]


def named_places(engine: GroupEngine) -> list[Origin]:
    return [each.holds for _, each in engine.mismatches() if isinstance(each.holds, Origin)]

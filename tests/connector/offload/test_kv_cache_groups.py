"""Several KV cache groups in one store: a hit is as long as all groups allow, and brings all that the next token sees."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the groups are vLLM's")

import torch
from vllm.v1.core import single_type_kv_cache_manager as managers
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.groups import Group, group_of
from kvtrail.connector.offload.plan import Copy
from kvtrail.connector.offload.scheduler import OffloadScheduler
from kvtrail.tracer.events.cache_groups import ALIGN, ALL, CHUNKED, MAMBA, SLIDING, CacheGroup

LAYOUT: Any = {"block_size": 4, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}


def window(size: int, block_size: int = 4) -> Group:
    return Group(block_size, 1, cache=CacheGroup(SLIDING, window=size))


def local(size: int, block_size: int = 4) -> Group:
    return Group(block_size, 1, cache=CacheGroup(CHUNKED, window=size))


def state(block_size: int = 4, *, dense: bool = False) -> Group:
    return Group(block_size, 1, cache=CacheGroup(MAMBA, cache_mode=ALL if dense else ALIGN))


FULL = Group(4, 1)


@pytest.mark.parametrize("tokens", range(40))
def test_what_the_next_token_does_not_see_is_what_vllm_drops(tokens: int) -> None:
    def dropped(manager: Any, **its: int) -> int:
        return int(max(0, manager.get_num_skipped_tokens(SimpleNamespace(**its), tokens)))

    for size in (1, 2, 5, 8, 12):
        given = {"sliding_window": size, "extra_retained_tokens": 0}
        assert window(size).first_seen(tokens) == dropped(managers.SlidingWindowManager, **given)
        given = {"attention_chunk_size": 4 * size}
        assert local(4 * size).first_seen(tokens) == dropped(managers.ChunkedLocalAttentionManager, **given)
    assert state().first_seen(tokens) == dropped(managers.MambaManager)


def test_groups_are_read_from_vllms_specs() -> None:
    layers = ["a", "b"]
    bytes_of_two = 2 * 4 * 2 * 2 * 4  # layers, tokens, K and V, numbers of a head, float32
    names, many = ("a", "b"), bytes_of_two
    assert group_of(FullAttentionSpec(**LAYOUT), layers) == Group(
        4, many, names, CacheGroup("full_attention", 4, None, 2, many)
    )
    spec: Any = SlidingWindowSpec(**LAYOUT, sliding_window=9)
    assert group_of(spec, layers) == Group(4, many, names, CacheGroup(SLIDING, 4, 9, 2, many))
    spec = ChunkedLocalAttentionSpec(**LAYOUT, attention_chunk_size=8)
    assert group_of(spec, layers) == Group(4, many, names, CacheGroup(CHUNKED, 4, 8, 2, many))
    for mode in ("align", "all"):
        spec = MambaSpec(block_size=4, shapes=((3,),), dtypes=(torch.float32,), mamba_cache_mode=mode)
        assert group_of(spec, layers) == Group(4, 24, names, CacheGroup(MAMBA, 4, None, 2, 24, mode))


def test_what_has_no_prefixes_is_no_group_of_ours() -> None:
    assert group_of(MambaSpec(block_size=4, shapes=((3,),), dtypes=(torch.float32,)), ["a"]) is None
    assert group_of(CrossAttentionSpec(**LAYOUT), ["a"]) is None


def test_a_slot_has_room_for_what_can_be_needed() -> None:
    assert [group.rows(16) for group in (FULL, window(5), window(6), window(100), local(8), state())] == [
        4, 1, 2, 4, 2, 1,
    ]  # fmt: skip


MODELS = {
    "full attention": (FULL,),
    "a window": (window(9), FULL),
    "a window longer than a chunk": (FULL, window(21)),
    "windows alone": (window(9),),
    "blocks of two sizes": (window(9, 2), Group(8, 1)),
    "local attention": (local(12), FULL),
    "a state": (state(), FULL),
    "a state in each block": (FULL, state(dense=True)),
    "everything": (FULL, window(7), window(14), local(8), state()),
}


class Engine:
    """What vLLM and the workers do for one request at a time. Of each block it is known which prefix its KV is of."""

    def __init__(self, groups: tuple[Group, ...], chunk_size: int, slots: int) -> None:
        self.groups = groups
        self.scheduler = OffloadScheduler(OffloadConfig(chunk_size, 2, groups, slots), drafts=False)
        self.config = self.scheduler._config
        self.holds: dict[int, Any] = {}
        self.host: dict[tuple[int, int, int], Any] = {}
        """By slot, group and row."""
        self._last_block = 0

    def run(self, name: str, tokens: list[int], local_hit: int, rng: random.Random) -> int:
        """Run a request; returns how many tokens were loaded."""
        hashes = [repr(tokens[: n + 2]).encode() for n in range(0, len(tokens) // 2 * 2, 2)]
        request = SimpleNamespace(
            request_id=name, num_tokens=len(tokens), block_hashes=hashes, num_preemptions=0, tokens=tokens
        )
        new = self.scheduler.new_tokens(request, local_hit)
        assert self.scheduler.last_matched == self._longest(tokens)
        computed = local_hit + new
        tables: list[list[int]] = []
        for group in self.groups:
            seen = group.needed(0, computed)
            tables.append([self._block() if at in seen else 0 for at in range(seen.stop)])
            for at in seen:
                if at * group.block_size < local_hit:
                    self.holds[tables[-1][at]] = self._of(group, tokens, at)
        self.scheduler.admitted(request, new, tables)
        first = True
        while computed < len(tokens):
            after = min(len(tokens), computed + rng.choice([1, 2, 7, 8, 16, 23]))
            added = [self._allocate(group, table, after) for group, table in zip(self.groups, tables, strict=True)]
            plan = self.scheduler.end_step(self._output(name, tables if first else added, computed, after, new=first))
            for copy in plan.loads:
                for n, block in enumerate(copy.blocks):
                    assert block, "the null block is never written"
                    self.holds[block] = self.host[copy.slot, copy.group, copy.first + n]
            for group, table in zip(self.groups, tables, strict=True):
                for at in group.needed(0, computed):
                    whole = (at + 1) * group.block_size <= computed
                    assert not whole or self.holds[table[at]] == self._of(group, tokens, at), "a token sees wrong KV"
            self._compute(tokens, tables, computed, after)
            new_in = {copy.slot for copy in plan.stores}
            self.host = {place: kept for place, kept in self.host.items() if place[0] not in new_in}
            for copy in plan.to_store():
                for n, block in enumerate(copy.blocks):
                    assert block, "the null block is never read"
                    self.host[copy.slot, copy.group, copy.first + n] = self.holds[block]
            self._drop(tables, computed)
            computed, first = after, False
        self.scheduler.finished(request)
        return new

    def _allocate(self, group: Group, table: list[int], after: int) -> list[int]:
        """As vLLM does: of a state, a step has its last block only."""
        places = range(len(table), -(-after // group.block_size))
        sparse = group.has_few_states
        table += (added := [0 if sparse and at != places[-1] else self._block() for at in places])
        return added

    def _compute(self, tokens: list[int], tables: list[list[int]], computed: int, after: int) -> None:
        for group, table in zip(self.groups, tables, strict=True):
            first, end = computed // group.block_size, -(-after // group.block_size)
            if group.has_few_states:
                first = end - 1  # a step writes to its last block only
            for at in range(first, end):
                whole = (at + 1) * group.block_size <= after
                self.holds[table[at]] = self._of(group, tokens, at) if whole else "a part"

    def _drop(self, tables: list[list[int]], computed: int) -> None:
        """Blocks that no token sees any more get other contents; the connector is not notified."""
        for group, table in zip(self.groups, tables, strict=True):
            for at in range(group.first_seen(computed) // group.block_size):
                self.holds[table[at]] = "somebody else's"
                table[at] = 0

    def _longest(self, tokens: list[int]) -> int:
        """The longest prefix of whole chunks behind which host memory has what every group needs."""
        size, index = self.config.chunk_size, self.scheduler._index
        keys = [repr(tokens[: n + size]).encode() for n in range(0, len(tokens) // size * size, size)]
        best = 0
        for n in range(1, len(keys) + 1):
            if keys[n - 1] not in index:
                break
            if n * size < len(tokens) or self.config.sees_all:
                slots = index.slots(keys[:n])
                best = n * size if all(self._has(g, slots, tokens, n * size) for g in range(len(self.groups))) else best
        return best

    def _has(self, number: int, slots: list[int], tokens: list[int], boundary: int) -> bool:
        group = self.groups[number]
        per_chunk, rows = self.config.chunk_size // group.block_size, self.config.rows[number]
        for at in group.needed(0, boundary):
            row = at % per_chunk - (per_chunk - rows)
            if self.host.get((slots[at // per_chunk], number, row)) != self._of(group, tokens, at):
                return False
        return True

    def _of(self, group: Group, tokens: list[int], at: int) -> Any:
        return self.groups.index(group), tuple(tokens[: (at + 1) * group.block_size])

    def _block(self) -> int:
        self._last_block += 1
        return self._last_block

    def _output(self, name: str, blocks: list[list[int]], computed: int, after: int, *, new: bool) -> Any:
        running: Any = {"req_ids": [], "num_computed_tokens": [], "new_block_ids": [], "resumed_req_ids": set()}
        if not new:
            running |= {"req_ids": [name], "num_computed_tokens": [computed]}
            running["new_block_ids"] = [tuple(blocks) if any(blocks) else None]
        made = SimpleNamespace(req_id=name, num_computed_tokens=computed, block_ids=tuple(map(list, blocks)))
        return SimpleNamespace(
            scheduled_new_reqs=[made] if new else [],
            scheduled_cached_reqs=SimpleNamespace(**running),
            num_scheduled_tokens={name: after - computed},
        )


@pytest.mark.parametrize("slots", [5, 60])
@pytest.mark.parametrize("chunk_size", [8, 16])
@pytest.mark.parametrize("model", MODELS)
def test_every_hit_is_the_longest_and_right(model: str, chunk_size: int, slots: int) -> None:
    """Prompts that share prefixes, computed in steps of all sizes, with and without hits of vLLM's own, and evictions."""
    rng = random.Random(f"{model}/{chunk_size}/{slots}")
    engine = Engine(MODELS[model], chunk_size, slots)
    blocks = math.lcm(*(group.block_size for group in engine.groups))
    loaded = 0
    for number in range(60):
        head, length = rng.randrange(3), rng.choice([rng.randrange(10, 90), 16 * rng.randrange(1, 6)])
        cut = rng.choice([length, rng.randrange(length)])
        tokens = [head * 100 + at if at < cut else 1000 * number + at for at in range(length)]
        local_hit = rng.choice([0, 0, rng.randrange(length) // blocks * blocks])
        loaded += engine.run(f"r-{number}", tokens, local_hit, rng)
    assert loaded > 0


def test_what_a_chunk_lacks_is_stored_when_it_is_at_hand() -> None:
    """Its state was not there when a long step passed it; a request that stops there has it."""
    engine, tokens = Engine((state(), FULL), 8, 9), list(range(40))
    steps = SimpleNamespace(choice=lambda sizes: 23)
    assert engine.run("passes", tokens, 0, steps) == 0  # type: ignore[arg-type]  # steps of 23 tokens
    assert engine.run("finds nothing", [*tokens[:17], 99], 0, SimpleNamespace(choice=lambda sizes: 16)) == 0  # type: ignore[arg-type]
    assert engine.run("finds it", [*tokens[:17], 98], 0, steps) == 16  # type: ignore[arg-type]


def test_blocks_that_a_window_has_passed_are_not_stored_again() -> None:
    """What was evicted while a request runs is stored again, without the blocks that vLLM has given to others since."""
    scheduler = OffloadScheduler(OffloadConfig(8, 2, (window(9), FULL), slots=3), drafts=False)

    def step(name: str, computed: int, after: int) -> list[tuple[int, int, tuple[int, ...]]]:
        first = 100 if name == "a" else 500
        tables = list(range(first, first + 8)), list(range(first + 50, first + 58))
        made = SimpleNamespace(req_id=name, num_computed_tokens=computed, block_ids=tables)
        none = SimpleNamespace(req_ids=[], num_computed_tokens=[], new_block_ids=[], resumed_req_ids=set())
        output = SimpleNamespace(
            scheduled_new_reqs=[made], scheduled_cached_reqs=none, num_scheduled_tokens={name: after - computed}
        )
        return [(copy.start, copy.group, copy.blocks) for copy in scheduler.end_step(output).stores]

    for name in ("a", "b"):
        hashes = [f"{name}{n}".encode() for n in range(12)]
        request = SimpleNamespace(request_id=name, num_tokens=25, block_hashes=hashes, num_preemptions=0)
        scheduler.new_tokens(request, 0)
        assert len(step(name, 0, 16 if name == "a" else 24)) == (4 if name == "a" else 6)
    assert step("a", 17, 24) == [
        (0, 1, (150, 151)),
        (8, 0, (102, 103)),
        (8, 1, (152, 153)),
        (16, 0, (104, 105)),
        (16, 1, (154, 155)),
    ]


def test_a_load_that_nothing_held_can_serve_is_refused() -> None:
    engine = Engine((state(), FULL), 8, 9)
    tokens = list(range(33))
    engine.run("first", tokens, 0, SimpleNamespace(choice=lambda sizes: 16))  # type: ignore[arg-type]
    hashes = [repr(tokens[: n + 2]).encode() for n in range(0, 32, 2)]
    request = SimpleNamespace(request_id="r", num_tokens=33, block_hashes=hashes, num_preemptions=0)
    assert engine.scheduler.new_tokens(request, 0) == 32
    with pytest.raises(AssertionError, match="Nothing is held with which request r could go on at token 24"):
        engine.scheduler.admitted(request, 24, [list(range(1, 9)), list(range(11, 19))])


def test_copies_of_a_chunk_name_their_group() -> None:
    engine = Engine((window(9), FULL), 8, 9)
    tokens = list(range(17))
    engine.run("first", tokens, 0, SimpleNamespace(choice=lambda sizes: 16))  # type: ignore[arg-type]
    hashes = [repr(tokens[: n + 2]).encode() for n in range(0, 16, 2)]
    request = SimpleNamespace(request_id="r", num_tokens=17, block_hashes=hashes, num_preemptions=0)
    assert engine.scheduler.new_tokens(request, 0) == 16
    engine.scheduler.admitted(request, 16, [[0, 0, 13, 14], [21, 22, 23, 24]])
    first, second = ({"key": repr(tokens[:n]).encode()[-8:].hex(), "request_id": "r", "count": 8} for n in (8, 16))
    loads = engine.scheduler._plan.loads
    assert loads == [
        Copy(start=0, slot=0, first=0, blocks=(21, 22), group=1, **first),  # type: ignore[arg-type]
        Copy(start=8, slot=1, first=0, blocks=(13, 14), group=0, **second),  # type: ignore[arg-type]
        Copy(start=8, slot=1, first=0, blocks=(23, 24), group=1, **second),  # type: ignore[arg-type]
    ]

"""What a prompt finds in a cache of several KV cache groups, against vLLM's own lookup in a pool that holds the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvtrail.tracer.causes.cache_model import BlockChange, BlockState, CacheModel
from kvtrail.tracer.causes.hybrid_groups import HybridGroups
from kvtrail.tracer.events.cache_groups import CHUNKED, FULL, MAMBA, SLIDING, CacheGroup

SIZE, BLOCKS = 16, 12
CHAIN = [bytes([n]) * 8 for n in range(BLOCKS)]
KINDS: list[tuple[CacheGroup, ...]] = [
    (CacheGroup(FULL, 16), CacheGroup(SLIDING, 16, 40)),
    (CacheGroup(SLIDING, 16, 1), CacheGroup(FULL, 16), CacheGroup(SLIDING, 16, 64)),
    (CacheGroup(FULL, 16), CacheGroup(CHUNKED, 16, 48)),
    (CacheGroup(FULL, 16), CacheGroup(MAMBA, 16)),
    (CacheGroup(FULL, 32), CacheGroup(SLIDING, 16, 40)),
    (CacheGroup(FULL, 16), CacheGroup(SLIDING, 64, 65)),
]


def model(held: list[list[bytes]], lost: list[list[bytes]]) -> CacheModel:
    """A cache with groups that hold these, and have lost those one after the other."""
    cache = CacheModel("gpu")
    cache.is_reported = True
    for number, (there, gone) in enumerate(zip(held, lost, strict=True)):
        cache.group(number).record(there, BlockChange(BlockState.HELD, 1, group=number))
        for moment, key in enumerate(gone):
            cache.group(number).record([key], BlockChange(BlockState.EVICTED, 2 + moment, group=number))
    return cache


def said(groups: tuple[CacheGroup, ...], cache: CacheModel, chain: list[bytes], **more: Any) -> list[str]:
    joint = HybridGroups.of(groups, SIZE)
    assert joint is not None
    blocks = len(chain) * SIZE // joint.unit
    states = joint.states(cache, chain, SIZE, (0, blocks), lambda key: False, **more)
    return [
        "new" if each is None else f"{each.state.name.lower()}{'' if each.state is BlockState.HELD else each.group}"
        for each in states
    ]


def hit_of_vllm(groups: tuple[CacheGroup, ...], held: list[list[bytes]], chain: list[bytes]) -> int:
    """The tokens that vLLM's own lookup finds in a pool that holds these."""
    pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
    import torch
    from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    def spec(group: CacheGroup) -> Any:
        size = group.block_size or SIZE
        layout: Any = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32, "block_size": size}
        match group.kind:
            case "sliding_window":
                return SlidingWindowSpec(**layout, sliding_window=group.window or 0)
            case "chunked_local_attention":
                return ChunkedLocalAttentionSpec(**layout, attention_chunk_size=group.window or 0)
            case "mamba":
                return MambaSpec(block_size=size, shapes=((8,),), dtypes=(torch.float32,))
        return FullAttentionSpec(**layout)

    joint = HybridGroups.of(groups, SIZE)
    assert joint is not None
    config = KVCacheConfig(
        num_blocks=200,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer.{n}"], spec(group)) for n, group in enumerate(groups)],
    )
    coordinator = HybridKVCacheCoordinator(
        config, 4096, 4096, use_eagle=False, enable_caching=True, enable_kv_cache_events=False, dcp_world_size=1,
        pcp_world_size=1, scheduler_block_size=joint.unit, hash_block_size=SIZE,
    )  # fmt: skip
    pool: Any = coordinator.block_pool
    pool.get_cached_block = lambda key, ids: [key for number in ids if key in held[number]]
    _, hit, _ = coordinator.find_longest_cache_hit(chain, len(chain) * SIZE)  # type: ignore[arg-type]
    return hit


@pytest.mark.parametrize(
    "groups", KINDS, ids=lambda groups: "+".join(f"{each.kind}-{each.block_size}" for each in groups)
)
def test_what_is_held_together_is_what_vllm_finds(groups: tuple[CacheGroup, ...]) -> None:
    joint, rng, hits = HybridGroups.of(groups, SIZE), random.Random(len(groups)), set[int]()
    assert joint is not None
    for _ in range(300):
        share = rng.choice([0.5, 0.8, 0.95])
        held, lost = [], []
        for group in groups:
            per = (group.block_size or 1) // SIZE
            own = CHAIN[per - 1 :: per]
            held.append([key for key in own if rng.random() < share])
            lost.append([key for key in own if key not in held[-1] and rng.random() < 0.8])
        found = said(groups, model(held, lost), CHAIN)
        hit = next((n for n, each in enumerate(found) if each != "held"), len(found)) * joint.unit
        assert hit == hit_of_vllm(groups, held, CHAIN)
        hits.add(hit)
    assert len(hits) > 3


WINDOW = (CacheGroup(FULL, 16), CacheGroup(SLIDING, 16, 40))
STATES = (CacheGroup(FULL, 16), CacheGroup(MAMBA, 16))
A, B, C, D = CHAIN[:4]


@pytest.mark.parametrize(
    ("groups", "held", "lost", "expected"),
    [
        pytest.param(WINDOW, ["abcd", "abcd"], ["", ""], "held held held held", id="all"),
        pytest.param(WINDOW, ["abcd", "bcd"], ["", "a"], "held held held held", id="the window has moved on"),
        pytest.param(WINDOW, ["abcd", "cd"], ["", "ab"], "evicted1 evicted1 evicted1 evicted1", id="the window lost one"),
        pytest.param(WINDOW, ["abc", "abcd"], ["d", ""], "held held held evicted0", id="full attention lost one"),
        pytest.param(WINDOW, ["ab", "ab"], ["dc", "cd"], "held held evicted1 evicted0", id="the first loss counts"),
        pytest.param(WINDOW, ["abc", "abc"], ["", ""], "held held held new", id="new"),
        pytest.param(STATES, ["abcd", "d"], ["", ""], "held held held held", id="a state covers what is before it"),
        pytest.param(STATES, ["abcd", "b"], ["", "d"], "held held evicted1 evicted1", id="the next state was lost"),
        pytest.param(STATES, ["abd", "bd"], ["c", ""], "held held evicted0 held", id="full attention has a hole"),
        pytest.param(STATES, ["abcd", "b"], ["", ""], "held held uncached1 uncached1", id="no state was ever kept"),
        pytest.param(STATES, ["ab", ""], ["c", "b"], "evicted1 evicted1 evicted0 new", id="no state, and lost"),
    ],
)  # fmt: skip
def test_the_group_that_lost_its_part_first_is_named(
    groups: tuple[CacheGroup, ...], held: list[str], lost: list[str], expected: str
) -> None:
    of = dict(zip("abcd", CHAIN, strict=False))
    there, gone = ([[of[each] for each in group] for group in some] for some in (held, lost))
    assert said(groups, model(there, gone), CHAIN[:4]) == expected.split()


def test_no_hit_ends_with_the_prompt() -> None:
    cache = model([[A, B, C], [C]], [[], []])
    assert said(STATES, cache, [A, B, C]) == ["held", "held", "held"]
    assert said(STATES, cache, [A, B, C], is_cut=True) == ["uncached1", "uncached1", "held"]


@pytest.mark.parametrize(
    "groups",
    [
        (CacheGroup(FULL, 16),),
        (CacheGroup(FULL, 16), CacheGroup("RSWASpec", 16)),
        (CacheGroup(FULL, 16), CacheGroup(SLIDING, 16)),
        (CacheGroup(FULL), CacheGroup(MAMBA, 16)),
        (CacheGroup(FULL, 16), CacheGroup(MAMBA, 32)),
        (CacheGroup(FULL, 32), CacheGroup(SLIDING, 32, 64)),
    ],
)
def test_what_a_hit_needs_of_some_groups_is_not_known(groups: tuple[CacheGroup, ...]) -> None:
    assert HybridGroups.of(groups, SIZE) is None


def test_a_hit_with_its_state_lost_from_the_recording_has_an_unknown_end() -> None:
    groups = (CacheGroup(FULL, 16), CacheGroup(MAMBA, 16))
    joint = HybridGroups.of(groups, SIZE)
    assert joint is not None
    cache = model([CHAIN[:8], [CHAIN[1]]], [[], [CHAIN[6]]])
    assert joint.held(cache, CHAIN, SIZE, 8 * SIZE, lambda key: False) == (2 * SIZE, 2 * SIZE)
    cache.mark_gap(100, cache.why)
    assert joint.held(cache, CHAIN, SIZE, 8 * SIZE, lambda key: False) == (0, 8 * SIZE)
    cache.group(1).record([CHAIN[3]], BlockChange(BlockState.HELD, 101, group=1))
    cache.group(1).record(CHAIN[5:8], BlockChange(BlockState.EVICTED, 102, group=1))
    assert joint.held(cache, CHAIN, SIZE, 8 * SIZE, lambda key: False) == (4 * SIZE, 5 * SIZE)

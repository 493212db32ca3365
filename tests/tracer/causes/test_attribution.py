"""A prompt is split by stretches of blocks with the same known about all of them; block by block its parts are the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from kvtrail.tracer.causes.attribution import AdmissionContext, Attribution, Store
from kvtrail.tracer.causes.cache_model import BlockChange, BlockState, CacheModel
from kvtrail.tracer.causes.hybrid_groups import HybridGroups
from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup
from kvtrail.tracer.model.causes import Cause, NotRecorded, Part


class BlockByBlock(Attribution):
    """Looks at each block alone."""

    def _stretches(self, facts: Any, first: int) -> Iterator[tuple[int, int]]:
        return ((block, block + 1) for block in range(first, self._full))


def cache(rng: random.Random, name: str, chain: list[bytes]) -> CacheModel:
    """A cache with a few facts."""
    cache = CacheModel(name)
    cache.is_reported = rng.random() < 0.8
    for number in range(1, rng.randrange(1, 7)):
        if rng.random() < 0.15:
            cache.clear(BlockChange(BlockState.RESET, number))
            continue
        first = rng.randrange(len(chain))
        before = (
            BlockChange(rng.choice([BlockState.EVICTED, BlockState.HELD]), number - 1) if rng.random() < 0.3 else None
        )
        reported = BlockChange(
            rng.choice(list(BlockState)[: BlockState.ABSENT]), number, number, str(number), "another", before
        )
        cache.record(chain[first : rng.randrange(first, len(chain)) + 1], reported)
        if rng.random() < 0.15:
            cache.mark_gap(number, NotRecorded.LOST)
    return cache


def asked(rng: random.Random) -> tuple[AdmissionContext, CacheModel, list[Store], set[bytes]]:
    """An admission, vLLM's cache, the stores, and the blocks that were named for the first time since a loss."""
    size, full = rng.choice((4, 16)), rng.randrange(1, 24)
    total = full * size + rng.choice((0, 0, rng.randrange(size)))
    chain = [rng.randbytes(8) for _ in range(full)]
    computed = min(rng.choice((0, rng.randrange(full + 1) * size, rng.randrange(total + 1))), total)
    allocated = rng.choice((0, 0, rng.randrange(total - computed + 1)))
    promised = rng.randrange(total + 1)
    stores = [
        Store(
            cache(rng, name, chain),
            is_reported=rng.random() < 0.75,
            chunk_size=size * rng.choice((1, 2, 3)),
            matched=rng.choice((None, rng.randrange(total + 1))),
            offered=rng.choice((0, allocated, rng.randrange(total + 1))),
            was_deferred=rng.random() < 0.3,
        )
        for name in ("cpu", "disk")[: rng.randrange(3)]
    ]
    context = AdmissionContext(
        total=total,
        computed=computed,
        sources=[("cpu", allocated)] if allocated else [],
        block_size=size,
        chain=chain,
        pending=rng.choice((0, rng.randrange(full + 1))),
        pending_by=BlockChange(BlockState.STORING, 99),
        shadow=rng.choice((None, None, None, NotRecorded.LOST)),
        has_groups=rng.random() < 0.1,
        promised=rng.choice(((0, 0), (promised, rng.randrange(promised, total + 1)))),
        failed=BlockChange(BlockState.FAILED, 98, 5),
    )
    return context, cache(rng, "gpu", chain), stores, {key for key in chain if rng.random() < 0.5}


@pytest.mark.parametrize("seed", range(4))
def test_stretches_of_blocks_have_the_parts_of_each_block(seed: int) -> None:
    rng, found = random.Random(seed), set[Cause]()
    for number in range(1000):
        context, vllm, stores, fresh = asked(rng)
        whole, single = (
            each(context, vllm, stores, fresh.__contains__).parts() for each in (Attribution, BlockByBlock)
        )
        assert whole == single, f"number {number}"
        found.update(part.cause for part in whole)
    assert found == set(Cause) - {Cause.ELSEWHERE, Cause.UNCACHED, Cause.NOT_COMPUTED}, (
        "all that a split can find was found"
    )


def test_a_long_new_prompt_is_one_stretch() -> None:
    chain = [number.to_bytes(8) for number in range(8000)]
    context = AdmissionContext(total=128_001, computed=0, sources=(), block_size=16, chain=chain)
    split = Attribution(context, CacheModel("gpu"), [], lambda _: False)
    assert split.parts() == [Part(Cause.NEW, "", 0, 128_000), Part(Cause.UNALIGNED, "", 128_000, 1)]
    assert len(list(split._stretches([None] * 8000, 0))) == 3, "the first, those between, and the last"


def test_the_last_chunk_of_a_store_of_several_groups_is_computed_by_rule() -> None:
    """A hit in it ends with a chunk before the last token, so all of the last chunk is computed though it is held."""
    chain = [number.to_bytes(8) for number in range(8)]
    groups = (CacheGroup(FULL, block_size=16), CacheGroup(SLIDING, block_size=16, window=17))
    held = CacheModel("cpu")
    held.is_reported = True
    for number in range(2):
        held.group(number).record(chain, BlockChange(BlockState.HELD, 1))
    together = HybridGroups.of(groups, 16, chunk_size=32, by_block=True)
    store = Store(held, True, 32, None, 96, was_deferred=False, groups=together)
    context = AdmissionContext(
        total=128, computed=0, sources=[("cpu", 96)], block_size=16, chain=chain, has_groups=True
    )
    parts = Attribution(context, CacheModel("gpu"), [store], lambda _: False).parts()
    assert [(part.cause, part.tier, part.start, part.end) for part in parts] == [
        (Cause.LOADED, "cpu", 0, 96),
        (Cause.LAST_TOKEN, "cpu", 96, 128),
    ]

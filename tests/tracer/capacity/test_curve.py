"""The curve beside simulated stores, one for each capacity; and samples beside the whole."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import sqrt
from statistics import fmean

import pytest

from kvtrail.tracer.capacity.accesses import Access, wanted_of
from kvtrail.tracer.capacity.memory_curves import Curve
from kvtrail.tracer.capacity.reuse_distance import ReuseDistances

CAPACITIES = (1, 2, 5, 10, 20, 40, 80, 160, 400)
ALL = 10**6
"""More chunks than any history here has."""


def hashed(name: str) -> bytes:
    """The hash of a block."""
    return blake2b(name.encode(), digest_size=8).digest()


def prefixes(seed: int, count: int, *, heads: int = 12, chunks: int = 6) -> list[Access | None]:
    """Requests with prompts that branch like conversations; vLLM's own cache holds a part of some, and caches are emptied."""
    rng = random.Random(seed)
    accesses: list[Access | None] = []
    for _ in range(count):
        keys, path = [], f"{min(int(rng.paretovariate(0.6)), heads)}"
        for _ in range(rng.randrange(1, chunks)):
            path += f"/{min(int(rng.paretovariate(1.5)), 9)}"
            keys.append(hashed(path))
        total = len(keys) * 64 + rng.randrange(64)
        computed = rng.choice((0, 0, 0, 32, 64, 128))
        wanted = wanted_of(len(keys), 64, computed=min(computed, total), total=total)
        accesses.append(None if rng.random() < 0.005 else Access(keys, wanted if rng.random() < 0.8 else ()))
    return accesses


def curve_of(accesses: Iterable[Access | None], *, evicts_tails_first: bool = True, most_chunks: int = ALL) -> Curve:
    """The curve of a whole history; None stands for a reset of the store."""
    distances = ReuseDistances(most_chunks=most_chunks, evicts_tails_first=evicts_tails_first)
    wanted = sampled = 0
    tokens: defaultdict[int, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))
    for access in accesses:
        if access is None:
            distances.reset()
            continue
        for group, chunks, held in distances.enter(access):
            tokens[group][chunks] += held
        wanted += sum(access.wanted)
        sampled += sum(access.wanted) * distances.is_sample
    return Curve(wanted, sampled, tokens)


def hits_of_a_store(accesses: Sequence[Access | None], capacity: int, *, evicts_tails_first: bool) -> int:
    """The tokens that are hits in a least-recently-used store of this capacity."""
    store: OrderedDict[bytes, None] = OrderedDict()
    hits = 0
    for access in accesses:
        if access is None:
            store.clear()
            continue
        for key, wanted in zip(access.keys, access.wanted, strict=False):
            if key not in store:
                break
            hits += wanted
        for key in reversed(access.keys) if evicts_tails_first else access.keys:
            store[key] = None
            store.move_to_end(key)
        while len(store) > capacity:
            store.popitem(last=False)
    return hits


@pytest.mark.parametrize("evicts_tails_first", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_curve_has_the_hits_of_a_store_of_each_capacity(seed: int, evicts_tails_first: bool) -> None:
    accesses = prefixes(seed, 1500)
    curve = curve_of(accesses, evicts_tails_first=evicts_tails_first)
    given = [hits_of_a_store(accesses, capacity, evicts_tails_first=evicts_tails_first) for capacity in CAPACITIES]
    assert [round(share.share * curve.wanted) for share in curve.hits(CAPACITIES)] == given
    assert given[0] < given[4] < given[-1], "the capacities differ in their hits"
    assert {share.error for share in curve.hits(CAPACITIES)} == {0.0}
    enough = curve.saturates_at()
    most, less = (hits_of_a_store(accesses, int(enough) - n, evicts_tails_first=evicts_tails_first) for n in (0, 1))
    assert most == hits_of_a_store(accesses, ALL, evicts_tails_first=evicts_tails_first) > less


def test_tails_first_is_better_than_heads_first() -> None:
    accesses = prefixes(0, 1500)
    tails, heads = (curve_of(accesses, evicts_tails_first=stay).hits(CAPACITIES) for stay in (True, False))
    assert all(tail.share >= head.share for tail, head in zip(tails, heads, strict=True))
    assert tails[3].share > 1.1 * heads[3].share


SHAPES = ({"heads": 400, "chunks": 12}, {"heads": 60, "chunks": 8}, {"heads": 3000, "chunks": 20})


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_are_within_two_errors_nine_times_in_ten(shape: dict[str, int]) -> None:
    """Of a stream, the keys differ by sample, and so does what is followed; nothing else does."""
    capacities, within, apart, errors = (100, 400, 1600), [], [], []
    for seed in range(3):
        accesses = prefixes(seed, 3000, **shape)
        truth = curve_of(accesses).hits(capacities)
        for sample in range(10):
            named = [
                access and Access([hashed(f"{sample}/{key.hex()}") for key in access.keys], access.wanted)
                for access in accesses
            ]
            curve = curve_of(named, most_chunks=400)
            assert 0 < curve.sampled < curve.wanted, "it was whole at first"
            for exact, guess in zip(truth, curve.hits(capacities), strict=True):
                within.append(abs(guess.share - exact.share) <= 2 * guess.error)
                apart.append(guess.share - exact.share)
                errors.append(guess.error)
    assert fmean(within) > 0.9
    assert 0.5 < sqrt(fmean(each**2 for each in apart) / fmean(each**2 for each in errors)) < 1.15
    assert fmean(errors) < 0.05


def test_the_number_of_followed_chunks_is_bounded() -> None:
    distances, most = ReuseDistances(most_chunks=200), 0
    for n in range(5000):
        distances.enter(Access([hashed(f"{n}/{chunk}") for chunk in range(10)], [64] * 10))
        most = max(most, len(distances._stack))
        assert len(distances._by_hash) == len(distances._stack)
    assert most <= 210
    assert 150 < distances.rate * 50_000 < 250


def test_an_empty_history_has_no_hits() -> None:
    assert [share.share for share in curve_of([]).hits((1, 2))] == [0.0, 0.0]
    once = curve_of([Access((b"a", b"b"), (64, 64))])
    assert (once.hits((9,))[0].share, once.saturates_at()) == (0.0, 0.0)

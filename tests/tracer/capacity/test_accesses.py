"""Accesses to a prefix cache."""

from __future__ import annotations

from itertools import product

from kvtrail.tracer.capacity.accesses import wanted_of


def test_wanted_tokens_are_those_outside_vllms_cache_but_for_the_last_one() -> None:
    for chunks, size, computed, total in product(range(6), (1, 3, 4), range(22), range(22)):
        held = range(computed, total - 1)
        wanted = [sum(token in held for token in range(n * size, (n + 1) * size)) for n in range(chunks)]
        assert wanted_of(chunks, size, computed=computed, total=total) == wanted, (chunks, size, computed, total)

"""What a request asks of a cache, chunk by chunk."""

from __future__ import annotations

from itertools import product

from kvtrail.tracer.capacity.touches import wanted_of


def test_of_each_chunk_is_wanted_what_vllm_does_not_hold_but_for_the_last_token() -> None:
    for chunks, size, computed, total in product(range(6), (1, 3, 4), range(22), range(22)):
        held = range(computed, total - 1)
        wanted = [sum(token in held for token in range(n * size, (n + 1) * size)) for n in range(chunks)]
        assert wanted_of(chunks, size, computed=computed, total=total) == wanted, (chunks, size, computed, total)

"""The tiny models' answers depend on each block of the KV: a comparison of tokens finds wrong KV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pair import alone
from processes import SLOW_S

from kvtrail.connector.demo.workload import stale_lookup
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE


@pytest.mark.parametrize("hybrid", [False, True])
def test_another_block_gives_other_tokens(hybrid: bool, tmp_path: Path) -> None:
    job, other = (replace(each, max_tokens=24) for each in stale_lookup()[:2])
    with alone(tmp_path, hybrid=hybrid) as engine:

        def tokens(prompt: tuple[int, ...]) -> tuple[int, ...]:
            return engine.ask(replace(job, prompt=prompt)).result(SLOW_S).tokens

        found = [tokens(job.prompt)]
        assert tokens(job.prompt) == found[0]
        for first in range(0, 20 * BLOCK_SIZE, 3 * BLOCK_SIZE):
            behind = first + BLOCK_SIZE
            found.append(tokens(job.prompt[:first] + other.prompt[first:behind] + job.prompt[behind:]))
    assert len(set(found)) == len(found)

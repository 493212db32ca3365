"""What a recording with LMCache says of stores of other sizes, beside real LMCaches of these sizes
(`benchmarks/capacity.py` has more of it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import real_lmcache

SIZES = (30, 90)


@pytest.mark.long  # `tests/tracer/capacity` has curves against simulated stores
def test_it_predicts_what_other_capacities_give(tmp_path: Path) -> None:
    """Within three points of the tokens asked for: LMCache's order of evictions is not quite the curve's."""

    def ran(chunks: int) -> dict[str, Any]:
        return real_lmcache.capacity(tmp_path, "0.5.6", chunks=chunks, sizes=SIZES, seed=5)

    recorded = ran(60)
    given = []
    for size, predicted in recorded["points"]:
        given.append(ran(size)["given"])
        assert abs(predicted - given[-1]) < 0.03, size
    assert given[0] + 0.05 < recorded["given"] < given[-1] - 0.05, "the capacities differ in what they give"

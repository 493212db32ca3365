"""Why tokens were no hits, with real LMCaches in a real vLLM engine, against what both caches hold at every lookup
(`benchmarks/causes.py` has more of it)."""

from __future__ import annotations

from pathlib import Path

import pytest
import real_lmcache
from causes_not_recorded import EVERYTHING, NOTHING_LACKS
from causes_reference import missed

ARISE = ("evicted store", "evicted gpu", "stranded store", "new")


@pytest.mark.parametrize(
    ("version", "extra"),
    [
        pytest.param("0.5.6", {}, id="0.5.6"),
        pytest.param("0.5.6", real_lmcache.ASYNCHRONOUS, marks=pytest.mark.long, id="0.5.6, asynchronous"),
        pytest.param("0.3.11", {}, marks=pytest.mark.long, id="0.3.11"),
        pytest.param("0.3.11", real_lmcache.ASYNCHRONOUS, marks=pytest.mark.long, id="0.3.11, asynchronous"),
    ],
)
def test_causes_are_those_that_the_caches_show(tmp_path: Path, version: str, extra: dict[str, bool]) -> None:
    said = real_lmcache.causes(tmp_path, version, chunks=40, requests=120, blocks=48, seed=3, **extra)
    for missing, tally in said.items():
        shares, wrong = missed(tally)
        assert shares["wrong"] <= 0.001 * shares.total(), (missing, wrong)
        assert shares["right"] >= (0.99 if missing in NOTHING_LACKS else 0) * shares.total(), (missing, shares)
    for cause in ARISE:
        assert said[EVERYTHING][cause, "right"], cause
    assert missed(said[EVERYTHING])[0].total() > 10_000
    assert said["no probe"]["evicted store", "unknown"], "without reports of the store, its evictions are not known"


@pytest.mark.long  # `test_lmcache_contents.py` has other tiers
def test_of_chunks_on_a_disk_nothing_is_said(tmp_path: Path) -> None:
    """Where LMCache has another tier, its local CPU backend does not say what it holds."""
    extra = {"lmcache.local_disk": f"file://{tmp_path}/disk/", "lmcache.max_local_disk_size": 0.1}
    said = real_lmcache.causes(tmp_path, "0.5.6", chunks=40, requests=40, blocks=48, seed=3, **extra)
    tally = said[EVERYTHING]
    assert not any(verdict not in ("right", "unknown") for _, verdict in tally), tally
    assert tally["evicted gpu", "unknown"] + tally["evicted store", "unknown"] + tally["stranded store", "unknown"]
    assert not tally["evicted store", "right"]

"""The demo's workload on the whole CPU engine, driven again: on the bare scheduler, and on the whole engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import DEMO, OURS, assert_the_same, recorded

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.redrive.redrive import redrive
from kvtrail.connector.simulate.run import Played, Unbuildable, play
from kvtrail.connector.simulate.scenario import Arrival, Scenario


@pytest.fixture(scope="module")
def played() -> Played:
    return play(DEMO, configuration("OffloadConnector", OURS), whole_engine=True)


@pytest.mark.long
@pytest.mark.parametrize("whole_engine", [False, True], ids=["bare scheduler", "whole engine"])
def test_what_a_real_engine_did_comes_out_lookup_for_lookup(tmp_path: Path, played: Played, whole_engine: bool) -> None:
    """The model's answers are in the recording only as block hashes; that is enough."""
    driven = redrive(recorded(played, tmp_path), whole_engine=whole_engine)
    assert driven.workload.notes == ()
    assert driven.played.error is None
    assert_the_same(driven.comparison)
    assert driven.comparison.preemptions > 5
    assert driven.comparison.hits > 1000
    assert any(event.kind == "kv.load" for event in driven.played.events) == whole_engine, "only a worker loads"


def test_what_the_cpu_cannot_run_is_refused() -> None:
    small = Scenario(arrivals=(Arrival("r", (("p", 40),)),), block_size=16)
    with pytest.raises(Unbuildable, match="blocks of a multiple of 32 tokens, not 16"):
        play(small, configuration("OffloadConnector", {"chunk_size": 64}), whole_engine=True)

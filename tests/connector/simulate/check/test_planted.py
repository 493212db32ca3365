"""`kvtrail check` finds bugs of the kinds that authors of connectors write, and accuses the one without them of nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from planted.bugs import BUGS

from kvtrail.connector.simulate.check.session import check

MISSED = {"MarkMovedByFailedStore"}
"""It only wastes work: nothing that a request reads or a lookup claims is wrong."""
RARE = {"StoresOfFailedLoadKept"}
"""Needs loads within a step that fail, and what was stored behind them."""


@pytest.mark.parametrize("bug", [name for name in BUGS if name not in MISSED | RARE])
def test_a_planted_bug_is_found_without_a_probe(bug: str) -> None:
    checked = check(f"planted.bugs:{bug}", steps=20_000, shrink_tries=0, stop_at_first=True)
    assert checked.found, f"{bug} is not found in {checked.steps.total()} steps"


def test_stores_of_a_failed_load_are_found_where_loads_fail_within_the_step() -> None:
    config = {"late": False, "chunk_size": 64}
    name = "planted.bugs:StoresOfFailedLoadKept"
    checked = check(name, config=config, profiles=["load-failure"], steps=6000, shrink_tries=0, stop_at_first=True)
    assert checked.found


def test_the_connector_without_a_bug_is_clean() -> None:
    checked = check("planted.host_cache:HostCache", steps=6000, shrink_tries=0)
    assert [found.failure for found in checked.found] == []
    assert checked.fake_workers is None, "its own workers run"
    assert checked.loads_read > 20

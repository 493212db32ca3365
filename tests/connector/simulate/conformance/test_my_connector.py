"""The documentation's connector is one that a maintainer may copy: `kvtrail check` finds nothing in it, and does run it."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.check.session import check
from kvtrail.connector.simulate.judges import capacity
from kvtrail.connector.simulate.run import run_more
from kvtrail.connector.simulate.scenario import Scenario, Workers

FOLDER = Path(__file__).parents[4] / "docs" / "conformance"
LINES = 165
"""The most that a maintainer reads in a few minutes, without blank ones."""
KV = 16 * 8 * 2 * 2 * 32 * 64 * 4
"""Bytes of 16 prompts: blocks, layers, heads, tokens, numbers of a token, bytes of a number."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("my_connector")


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("steps", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_the_documentation_s_connector_is_correct(steps: int) -> None:
    checked = check("my_connector:MyConnector", steps=steps, shrink_tries=0)
    assert [found.failure for found in checked.found] == []
    assert checked.fake_workers is None, "its own workers run"
    assert checked.loads_read > 20
    assert checked.blocks_compared > 10_000


SHOWN = ("store/planned", "store/evicted", "load/planned", "lookup/after-eviction")
"""What is reached with a probe alone."""


@pytest.mark.usefixtures("module")
def test_the_documentation_s_probe_shows_what_the_connector_decides() -> None:
    runs: dict[str, Any] = {"profiles": ["room", "preemption-storm"], "runs": 2, "steps": None, "shrink_tries": 0}
    probed = check("my_probe:MyProbedConnector", **runs)
    assert [found.failure for found in probed.found] == []
    assert all(probed.reached[point] > 0 for point in SHOWN)
    without = check("my_connector:MyConnector", **runs)
    assert not any(without.reached[point] for point in SHOWN)


@pytest.mark.usefixtures("module")
def test_with_its_probe_a_store_of_the_wrong_blocks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe says from which token a store begins: with a later token, its blocks are the wrong ones."""
    my_probe = importlib.import_module("my_probe")
    place = my_probe.MyProbe._place

    def late(self: Any, connector: Any, block: int) -> tuple[str, int]:
        request_id, start = place(self, connector, block)
        return request_id, start + connector.block_size

    monkeypatch.setattr(my_probe.MyProbe, "_place", late)
    checked = check("my_probe:MyProbedConnector", profiles=["room"], runs=1, steps=None, shrink_tries=0)
    assert "rule: plan-blocks" in {found.failure.id for found in checked.found}


def test_workers_that_keep_what_is_evicted_are_found(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's side forgets a block, and does not tell the workers: each block that is stored takes room for ever."""

    def forget(self: Any, key: bytes) -> None:
        del self.held[key]
        self.plan.stores.pop(key, None)

    monkeypatch.setattr(module.MyConnector, "drop", forget)
    checked = check("my_connector:MyConnector", profiles=["room"], runs=1, steps=None, shrink_tries=0)
    (found,) = checked.found
    assert found.failure.id == "rest: workers keep what is evicted"
    assert f"16 others of 257 tokens: {KV:,} bytes" in found.failure.text
    assert f"has grown by {KV:,} bytes" in found.failure.text


def test_a_store_that_the_first_prompts_do_not_fill_may_grow(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has room for 28 prompts of 8 blocks, and evicts what was used last: so of the second 16 some are evicted, while its
    memory grows by 12 prompts."""

    def use(self: Any, keys: list[bytes]) -> None:
        for key in reversed(keys):
            self.held.move_to_end(key, last=False)

    monkeypatch.setattr(module.MyConnector, "use", use)
    workers = Workers(latest_steps=0)
    settings: dict[str, Any] = {"max_num_batched_tokens": 512}
    connector = configuration("my_connector:MyConnector", {"capacity": 28 * 8})
    stage = BareScheduler(tmp_path, connector, own_workers=True, workers=workers, **settings)
    new = capacity.measured_when_new(
        stage, partial(run_more, stage, Scenario(arrivals=(), settings=settings, workers=workers)), at_once=False
    )
    stage.close()
    assert new.is_full
    assert (new.came, new.grown) == (KV, 0), "there was a reason to measure, when it was full"
    assert capacity.not_given_back(new) is None


def test_it_stays_short() -> None:
    text = (FOLDER / "my_connector.py").read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= LINES

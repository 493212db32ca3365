"""With several KV cache groups the bytes of each are compared where it is read, and the rules accuse nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.model import Model
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.stages import BareScheduler
from kvtrail.tracer.events.events import Schedule
from kvtrail.tracer.model.findings import Verdict

HOST = {"cpu_bytes_to_use": 50_000_000}
WINDOW = 80


@pytest.fixture
def bare(tmp_path: Path) -> BareScheduler:
    """A request of 200 tokens that generates; the last layer sees 80 of them."""
    native = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": HOST}
    made = BareScheduler(tmp_path, native, copies=True, window=WINDOW, disable_hybrid_kv_cache_manager=False)
    made.add("r-0", list(range(3, 203)), 300)
    while made.scheduler.requests["r-0"].num_output_tokens < 2:
        made.step()
    return made


def model(bare: BareScheduler) -> Model:
    assert bare.worker is not None
    assert bare.worker.model is not None
    return bare.worker.model


def wrong(bare: BareScheduler) -> list[str]:
    bare.step()
    return model(bare).wrong


def spoil(bare: BareScheduler, layer: str, group: int, token: int) -> None:
    tables: Any = bare.scheduler.kv_cache_manager.get_block_ids("r-0")
    model(bare).caches[layer].tensor[tables[group][token // 32], :, token % 32] = 0


def test_a_layer_is_compared_in_the_blocks_of_its_own_group(bare: BareScheduler) -> None:
    assert wrong(bare) == []
    spoil(bare, "layer.0", 1, 190)
    assert wrong(bare) == [], "no layer of this group has anything in that block"
    spoil(bare, "layer.1", 1, 190)
    (text,) = wrong(bare)
    assert "wrong KV in layer.1, the first of them token 190" in text


def test_what_no_window_sees_any_more_is_not_compared(bare: BareScheduler) -> None:
    computed = bare.scheduler.requests["r-0"].num_computed_tokens
    spoil(bare, "layer.1", 1, computed - WINDOW)
    assert wrong(bare) == []
    spoil(bare, "layer.1", 1, computed - WINDOW + 2)
    assert "r-0 reads the KV of its 79 last of" in wrong(bare)[0]


@pytest.mark.parametrize("seed", [0, 5])
def test_a_correct_connector_is_accused_of_nothing(seed: int) -> None:
    scenario = scenario_of("groups", seed)
    played = play(scenario, configuration("OffloadingConnector", HOST), observed=True)
    assert (played.findings, played.observations, played.error) == ([], [], None)
    assert played.loads_read > 3
    assert played.blocks_compared > 10_000
    assert {len(event.blocks_by_group or ()) for event in played.events if isinstance(event, Schedule)} <= {0, 2}
    assert all(played.checks[rule, Verdict.OK] > 10 for rule in ("plan-blocks", "null-block", "joint-boundary"))

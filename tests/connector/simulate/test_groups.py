"""With several KV cache groups the bytes of each are compared where it is read, and the rules find nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.run import Unbuildable, play
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.connector.simulate.workers.model import Model
from kvtrail.tracer.events.cache_groups import ALL, FULL, MAMBA, SLIDING, CacheGroup
from kvtrail.tracer.events.events import Schedule, StorePlan
from kvtrail.tracer.model.findings import Verdict

HOST = {"cpu_bytes_to_use": 50_000_000}
WINDOW = 80
FULL_GROUP, WINDOW_GROUP, STATE_GROUP = CacheGroup(FULL), CacheGroup(SLIDING, window=WINDOW), CacheGroup(MAMBA)


@pytest.fixture
def bare(tmp_path: Path) -> BareScheduler:
    """A request of 200 tokens that generates; the last layer sees 80 of them."""
    native = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": HOST}
    made = BareScheduler(tmp_path, native, copies=True, groups=(FULL_GROUP, WINDOW_GROUP))
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


@pytest.fixture
def recurrent(tmp_path: Path) -> BareScheduler:
    """A request of 200 tokens that generates; the last layer keeps a state. vLLM's cache may find half a block."""
    native = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": HOST}
    made = BareScheduler(tmp_path, native, copies=True, groups=(FULL_GROUP, STATE_GROUP), prefix_match_unit=16)
    made.add("r-0", list(range(3, 203)), 300)
    while made.scheduler.requests["r-0"].num_output_tokens < 2:
        made.step()
    return made


def test_a_state_is_compared_before_it_is_overwritten(recurrent: BareScheduler) -> None:
    assert wrong(recurrent) == []
    computed = recurrent.scheduler.requests["r-0"].num_computed_tokens
    table: Any = recurrent.scheduler.kv_cache_manager.get_block_ids("r-0")[1]
    cache = model(recurrent).caches["layer.1"]
    cache.tensor[table[(computed - 1) // 32 - 1]] = 0  # an earlier state is not needed, if it is there at all
    assert wrong(recurrent) == []
    cache.tensor[table[computed // 32]] = 0
    (text,) = wrong(recurrent)
    assert f"reads the state after its first {computed + 1} tokens, which is wrong in layer.1" in text
    assert "it holds zeros" in text
    model(recurrent).wrong.clear()
    assert wrong(recurrent) == [], "the step has written the next one"


def test_a_state_of_another_request_is_named(recurrent: BareScheduler) -> None:
    recurrent.add("r-1", list(range(103, 303)), 300)
    while recurrent.scheduler.requests["r-1"].num_output_tokens < 2:
        recurrent.step()
    (mine, theirs) = (recurrent.scheduler.kv_cache_manager.get_block_ids(name)[1][-1] for name in ("r-0", "r-1"))
    end = recurrent.scheduler.requests["r-1"].num_computed_tokens
    cache = model(recurrent).caches["layer.1"]
    cache.tensor[mine] = cache.tensor[theirs].clone()
    (text,) = wrong(recurrent)
    assert f"it holds the state after token {end - 1} of r-1" in text


def test_what_vllm_copies_for_a_hit_within_a_block_is_copied(recurrent: BareScheduler) -> None:
    """The second request begins with the state after 208 tokens, within a block; the first one goes on from there."""
    copied: list[Any] = []
    own = model(recurrent)
    copy = own.copy

    def copying(output: Any) -> None:
        copied.extend(output.kv_cache_block_copies or ())
        copy(output)

    own.copy = copying  # type: ignore[method-assign]
    for name in ("r-1", "r-2"):
        recurrent.add(name, list(range(103, 319)), 40)
        while recurrent.scheduler.requests[name].num_output_tokens < 2:
            assert wrong(recurrent) == []
    assert copied
    assert {"r-0", "r-1", "r-2"} <= recurrent.scheduler.requests.keys()


@pytest.mark.parametrize(
    ("profile", "seed", "kinds", "unit"),
    [
        ("groups", 3, [SLIDING, FULL], None),
        ("states", 8, [FULL, MAMBA], None),
        ("states", 19, [FULL, MAMBA], 16),
        ("states", 24, [FULL, SLIDING, MAMBA], 16),
    ],
)
def test_a_correct_connector_is_accused_of_nothing(profile: str, seed: int, kinds: list[str], unit: int | None) -> None:
    scenario = scenario_of(profile, seed)
    assert [group.kind for group in scenario.groups] == kinds
    assert scenario.settings.get("prefix_match_unit") == unit
    assert Scenario.from_dict(json.loads(json.dumps(scenario.as_dict()))) == scenario
    played = play(scenario, configuration("OffloadingConnector", HOST), observed=True)
    assert (played.findings, played.observations, played.error) == ([], [], None)
    assert played.loads_read > 3
    assert played.blocks_compared > 5_000
    groups = {len(event.blocks_by_group or ()) for event in played.events if isinstance(event, Schedule)}
    assert groups <= {0, len(kinds)}
    assert {event.groups for event in played.events} == {span.resource["kvtrail.groups"] for span in played.spans}
    judged = ["plan-blocks", "null-block", *(["partial-hit"] if profile == "groups" else [])]
    assert all(played.checks[rule, Verdict.OK] > 5 for rule in judged), played.checks


def test_states_after_all_blocks_are_compared() -> None:
    scenario = scenario_of("block-sizes", 2)
    kinds = [(group.kind, group.block_size, group.cache_mode) for group in scenario.groups]
    assert kinds == [(FULL, 32, None), (MAMBA, 32, ALL)]
    played = play(scenario, configuration("OffloadConnector", {"chunk_size": 64}), observed=True, own_workers=True)
    assert (played.findings, played.observations, played.error) == ([], [], None)
    assert played.loads_read > 3
    assert played.blocks_compared > 1_000


def test_what_is_not_simulated_is_refused() -> None:
    for scenario, why in (
        (Scenario(arrivals=(), groups=(FULL_GROUP, CacheGroup("RSWASpec"))), "no layer that keeps"),
        (Scenario(arrivals=(), groups=(FULL_GROUP, STATE_GROUP), drafts=2), "speculative tokens are not simulated"),
    ):
        with pytest.raises(Unbuildable, match=why):
            play(scenario, configuration("OffloadingConnector", HOST))


@pytest.mark.parametrize("seed", [0, 5])
def test_our_own_connector_names_the_blocks_of_each_group(seed: int) -> None:
    settings = configuration("OffloadConnector", {"chunk_size": 64})
    played = play(scenario_of("groups", seed), settings, observed=True, own_workers=True)
    assert (played.findings, played.observations, played.error) == ([], [], None)
    assert played.loads_read > 3
    named = [event for event in played.events if isinstance(event, StorePlan) and event.blocks_ids]
    assert all(event.group_starts for event in named)
    assert played.checks["plan-blocks", Verdict.OK] >= len(named) > 10

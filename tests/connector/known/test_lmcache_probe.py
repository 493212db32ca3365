"""The probe for LMCache against the state of its versions; the real ones are in tests/e2e/test_lmcache.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvtrail.connector.known.lmcache.probe import LMCacheProbe
from kvtrail.connector.known.probe import Moved, Planned, Probe, probe_for

REQUEST = SimpleNamespace(request_id="r")
BLOCK_SIZE, CHUNK = 32, 256


@dataclass
class LoadSpec:
    """Comparable and not hashable, like LMCache's."""

    vllm_cached_tokens: int
    lmcache_cached_tokens: int
    can_load: bool = True


@dataclass(slots=True)
class Slotted:
    """One that takes no weak reference."""

    lmcache_cached_tokens: int


@dataclass
class SaveSpec:
    skip_leading_tokens: int
    can_save: bool = True


@dataclass
class Meta:
    req_id: str
    token_ids: list[int]
    slot_mapping: torch.Tensor
    save_spec: SaveSpec | None = None
    load_spec: LoadSpec | None = None


@dataclass
class Engine:
    """LMCache's side of a connector."""

    load_specs: dict[str, Any] = field(default_factory=dict)
    lmcache_engine: object | None = field(default_factory=object)
    kv_role: str = "kv_both"
    _block_size: int = BLOCK_SIZE
    _lmcache_chunk_size: int = CHUNK
    _invalid_block_ids: set[int] = field(default_factory=set)


def a_connector(engine: Engine, *requests: Meta) -> Any:
    return SimpleNamespace(_lmcache_engine=engine, _connector_metadata=SimpleNamespace(requests=list(requests)))


def slots(blocks: list[int], tokens: int) -> torch.Tensor:
    return (torch.tensor(blocks)[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten()[:tokens]


def a_request(tokens: int, blocks: list[int] | None = None, **specs: Any) -> Meta:
    return Meta("r", [0] * tokens, slots(blocks or list(range(100, 100 + -(-tokens // BLOCK_SIZE))), tokens), **specs)


def test_what_the_local_cpu_backend_holds_is_counted() -> None:
    chunks = {n: SimpleNamespace(get_physical_size=lambda: 4096) for n in range(3)}
    backends = {"LocalDiskBackend": object(), "LocalCPUBackend": SimpleNamespace(hot_cache=chunks)}
    worker = SimpleNamespace(storage_manager=SimpleNamespace(storage_backends=backends))
    assert LMCacheProbe().held_bytes(a_connector(Engine(lmcache_engine=worker))) == 3 * 4096
    chunks.clear()
    assert LMCacheProbe().held_bytes(a_connector(Engine(lmcache_engine=worker))) == 0
    del backends["LocalCPUBackend"]
    for side in (worker, None, object()):  # another backend, the scheduler's side, another layout
        assert LMCacheProbe().held_bytes(a_connector(Engine(lmcache_engine=side))) is None


def test_both_of_lmcaches_connectors_are_known_each_object_by_a_probe_of_its_own() -> None:
    for name in ("LMCacheConnectorV1", "LMCacheConnectorV1Dynamic"):
        cls = type(name, (), {})
        assert isinstance(probe_for(cls), LMCacheProbe)
        assert probe_for(cls) is not probe_for(cls)


def test_a_specification_that_stays_is_a_remembered_answer_and_a_new_one_is_not() -> None:
    engine, probe = Engine(), LMCacheProbe()
    connector = a_connector(engine)
    assert probe.lookup(connector, REQUEST) == (None, None)
    engine.load_specs["r"] = LoadSpec(384, 256)
    assert probe.lookup(connector, REQUEST) == (256, False)
    assert probe.lookup(connector, REQUEST) == (256, True)
    engine.load_specs["r"] = LoadSpec(384, 256)  # equal, and another
    assert probe.lookup(connector, REQUEST) == (256, False)
    del engine.load_specs["r"]
    assert probe.lookup(connector, REQUEST) == (None, None)
    assert not probe._seen, "what LMCache forgets, the probe forgets"


def test_an_injected_fault_in_front_of_lmcache_reports_its_own_memory() -> None:
    connector = a_connector(Engine(load_specs={"r": LoadSpec(0, 256)}))
    connector.answered_from_memory = True
    assert LMCacheProbe().lookup(connector, REQUEST) == (256, True)


def test_loads_begin_where_vllms_tokens_end() -> None:
    engine, probe = Engine(), LMCacheProbe()
    wanted = a_request(559, load_spec=LoadSpec(384, 512))
    refused = a_request(559, load_spec=LoadSpec(384, 512, can_load=False))
    connector = a_connector(engine, wanted, refused, a_request(10))
    assert probe.loads(connector) == [Moved("r", 384, 128, 4, None)]


@pytest.mark.parametrize(("failed", "loaded"), [({113}, [Moved("r", 384, 32, 1, None)]), ({112}, []), ({7}, None)])
def test_loads_end_before_the_first_block_that_failed(failed: set[int], loaded: list[Moved] | None) -> None:
    connector = a_connector(Engine(_invalid_block_ids=failed), a_request(559, load_spec=LoadSpec(384, 512)))
    assert LMCacheProbe().loads(connector) == (loaded if loaded is not None else [Moved("r", 384, 128, 4, None)])


def test_stores_are_reported_once_they_are_done_although_lmcache_rewrites_its_metadata() -> None:
    probe = LMCacheProbe()
    spec = SaveSpec(300)
    saving = a_request(512, save_spec=spec)
    idle = [a_request(512, save_spec=SaveSpec(512)), a_request(512, save_spec=SaveSpec(0, can_save=False))]
    connector = a_connector(Engine(), saving, *idle)
    assert probe.loads(connector) == []
    spec.skip_leading_tokens = 512
    assert probe.stores(connector) == [Moved("r", 256, 256, 8, None)]
    assert probe.stores(connector) == (), "reported once"


def test_plans_name_the_blocks_in_the_order_of_their_tokens() -> None:
    table = [*range(50, 64), 23, 23]
    connector = a_connector(Engine(lmcache_engine=None), a_request(512, table, save_spec=SaveSpec(300)))
    connector._connector_metadata.requests.append(a_request(512, table, load_spec=LoadSpec(400, 512)))
    seen = LMCacheProbe().stepped(connector, connector._connector_metadata)
    assert seen is not None
    assert seen.loads == [Planned("r", 400, 112, (62, 63, 23, 23))]
    assert seen.stores == [Planned("r", 256, 256, tuple(table[8:]))]


@pytest.mark.parametrize(
    ("blocks", "slots_short"), [(range(100, 111), 32), (range(100, 110), 64), (range(100, 113), -32)]
)
def test_tokens_and_slots_that_differ_in_number_are_planned_as_they_are_and_not_stored(
    blocks: range, slots_short: int
) -> None:
    """A block of the request is missing in the connector's copy of its table, as in LMCache #1732, or there is one too
    many: `plan-blocks` compares the plan with the scheduler's table. LMCache's worker refuses to store it."""
    saving = a_request(384, save_spec=SaveSpec(0))
    saving.slot_mapping = slots(list(blocks), 384 - slots_short)
    connector, probe = a_connector(Engine(), saving), LMCacheProbe()
    seen = probe.stepped(connector, connector._connector_metadata)
    assert seen is not None
    assert seen.stores == [Planned("r", 0, 384, tuple(blocks))]
    probe.loads(connector)
    assert list(probe.stores(connector)) == []


def test_a_load_that_lacks_slots_names_the_blocks_that_there_are() -> None:
    loading = a_request(512, load_spec=LoadSpec(400, 512))
    loading.slot_mapping = loading.slot_mapping[:448]
    connector = a_connector(Engine(), loading)
    seen = LMCacheProbe().stepped(connector, connector._connector_metadata)
    assert seen is not None
    assert seen.loads == [Planned("r", 400, 112, (112, 113))]


def test_a_load_that_would_end_before_it_begins_is_one_of_no_tokens() -> None:
    """The load of LMCache #2158, 256 less 336: a negative count would make the event unreadable."""
    connector = a_connector(Engine(), a_request(600, load_spec=LoadSpec(336, 256)))
    seen = LMCacheProbe().stepped(connector, connector._connector_metadata)
    assert seen is not None
    assert seen.loads == [Planned("r", 336, 0, ())]


def test_a_mark_beyond_the_tokens_leaves_out_no_store() -> None:
    connector = a_connector(Engine(), a_request(300, save_spec=SaveSpec(400)))
    seen = LMCacheProbe().stepped(connector, connector._connector_metadata)
    assert seen is not None
    assert [(plan.start, plan.tokens) for plan in seen.stores] == [(256, 44)]


def test_what_was_read_before_and_cannot_be_read_now_is_not_left_out_in_silence() -> None:
    """Else a rule would take the plan that is left out for one that was never made."""
    connector, probe = a_connector(Engine(), a_request(256, save_spec=SaveSpec(0))), LMCacheProbe()
    assert probe.stepped(connector, connector._connector_metadata) is not None
    connector._connector_metadata.requests[0].slot_mapping = None
    with pytest.raises(TypeError):
        probe.stepped(connector, connector._connector_metadata)


def test_counts_of_other_libraries_are_counts() -> None:
    engine, probe = Engine(), LMCacheProbe()
    engine.load_specs["r"] = LoadSpec(0, torch.tensor(256))  # type: ignore[arg-type]
    assert probe.lookup(a_connector(engine), REQUEST) == (256, False)
    engine.load_specs["r"] = LoadSpec(0, -1)
    assert probe.lookup(a_connector(engine), REQUEST) == (None, None)


def test_a_block_that_stands_twice_counts_once() -> None:
    doubled = [*range(50, 64), 23, 23]
    connector = a_connector(Engine(), a_request(512, doubled, save_spec=SaveSpec(256)))
    probe = LMCacheProbe()
    probe.loads(connector)
    assert probe.stores(connector) == [Moved("r", 256, 256, 7, None)]


@pytest.mark.parametrize("engine", [Engine(lmcache_engine=None), Engine(kv_role="kv_producer")])
def test_a_worker_that_failed_or_that_sends_to_a_peer_stores_nothing(engine: Engine) -> None:
    connector, probe = a_connector(engine, a_request(256, save_spec=SaveSpec(0))), LMCacheProbe()
    probe.loads(connector)
    assert list(probe.stores(connector)) == []


@pytest.mark.parametrize(
    "foreign",
    [
        SimpleNamespace(),
        SimpleNamespace(_lmcache_engine=None, _connector_metadata=None),
        SimpleNamespace(_lmcache_engine=SimpleNamespace(load_specs=None), _connector_metadata=object()),
        a_connector(Engine(load_specs={"r": SimpleNamespace(hits=256)}), SimpleNamespace(load_spec=1)),  # type: ignore[arg-type]
        a_connector(Engine(load_specs={"r": LoadSpec(0, "256")}), a_request(9, load_spec=LoadSpec(None, 3))),  # type: ignore[arg-type]
    ],
)
def test_an_unknown_version_shows_nothing_and_raises_nothing(foreign: Any) -> None:
    probe: Probe = LMCacheProbe()
    assert probe.lookup(foreign, REQUEST) == (None, None)
    assert probe.stepped(foreign, foreign) is None
    assert list(probe.loads(foreign)) == []
    assert list(probe.stores(foreign)) == []


def test_a_specification_that_takes_no_weak_reference_still_shows_what_matched() -> None:
    assert LMCacheProbe().lookup(a_connector(Engine(load_specs={"r": Slotted(256)})), REQUEST) == (256, None)

"""What is reported about the OffloadingConnector's store is what it holds, at every lookup."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector.known.offloading import probe
from kvtrail.connector.known.offloading.contents import Contents
from kvtrail.connector.known.offloading.probe import OffloadingProbe
from kvtrail.connector.known.probe import CLEARED
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.run import play
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events.events import Evict, LoadPlan, Lookup, RequestEnd, RequestStart, Reset, StorePlan
from kvtrail.tracer.events.hash_chains import Chain, Chains

BLOCK = 32
CONNECTOR = {
    "kv_connector": "TracedOffloadingConnector",
    "kv_connector_module_path": "kvtrail.connector",
    "kv_load_failure_policy": "recompute",
}
PROFILES = [
    "chunked-prefill",
    "preemption-storm",
    "abort",
    "async",
    "load-failure",
    "reset",
    "full-store",
    "mixed",
    "multi",
]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The keys that the store held at each lookup."""
    seen: list[set[str]] = []
    plain = SchedulerInstrumentation.on_lookup

    def noting(self: Any, connector: Any, *arguments: Any) -> Any:
        seen.append({key[-12:-4].hex() for key in connector.connector_scheduler.manager._policy.chunks})
        return plain(self, connector, *arguments)

    monkeypatch.setattr(SchedulerInstrumentation, "on_lookup", noting)
    return seen


TWO_A_CHUNK = ("preemption-storm", "load-failure", "full-store", "mixed")
"""Profiles for chunks of two blocks in `make test`, where chunks are placed, evicted and given up."""


@pytest.mark.parametrize(
    ("profile", "per_chunk"),
    [
        *((name, 1) for name in PROFILES),
        *(pytest.param(n, 2, marks=() if n in TWO_A_CHUNK else pytest.mark.long) for n in PROFILES),
    ],
)
def test_the_reported_content_is_what_it_holds_at_every_lookup(
    profile: str, per_chunk: int, held: list[set[str]]
) -> None:
    extra = {"cpu_bytes_to_use": 600_000, "block_size": BLOCK * per_chunk}
    played = play(scenario_of(profile, 1), {**CONNECTOR, "kv_connector_extra_config": extra})
    assert (played.findings, played.unprobed) == ([], None)
    events = played.events
    reported: set[str] = set()
    moments = iter(held)
    chains, of_request = Chains(), dict[str, Chain]()
    evictions = placed = 0
    for event in sorted(events, key=lambda event: event.sequence):
        name = event.request or ""
        if isinstance(event, RequestStart | Lookup | RequestEnd):
            chains.add(of_request.setdefault(name, Chain()), event)
        match event:
            case StorePlan() | LoadPlan():
                assert event.chunk_keys
                reported |= set(event.chunk_keys) if isinstance(event, StorePlan) else set()
                if event.start is not None:
                    placed += 1
                    first = event.start // BLOCK // per_chunk
                    for number, key in enumerate(event.chunk_keys, first + 1):
                        own = of_request[name].of(number * per_chunk - 1)
                        assert own is None or own.hex() == key, "a key is the hash of its chunk's last block"
            case Evict(chunk_key=str(key)):
                assert key in reported
                reported.discard(key)
                evictions += 1
            case Reset():
                reported.clear()
            case Lookup():
                assert event.chunk_size == BLOCK * per_chunk
                assert reported == next(moments)
    assert next(moments, None) is None
    assert any(held)
    assert placed
    assert evictions or profile not in ("preemption-storm", "full-store")


def test_what_cannot_be_noted_of_an_eviction_costs_the_engine_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(key: bytes) -> str:
        raise ValueError(key)

    plain, failing = probe._short, OffloadingProbe._follow

    def follow(self: OffloadingProbe, connector: Any) -> None:
        failing(self, connector)
        monkeypatch.setattr(probe, "_short", lambda key: plain(key) if dice.random() < 0.9 else refuse(key))

    dice = random.Random(0)
    monkeypatch.setattr(OffloadingProbe, "_follow", follow)
    played = play(
        scenario_of("full-store", 1), {**CONNECTOR, "kv_connector_extra_config": {"cpu_bytes_to_use": 600_000}}
    )
    assert (played.error, played.findings, played.unfinished) == (None, [], {})
    assert played.unprobed is not None


def test_a_reset_of_the_store_is_a_change() -> None:
    chunks = {b"a" * 12: SimpleNamespace(is_ready=True)}
    manager = SimpleNamespace(
        prepare_store=lambda keys, context: None, complete_store=lambda keys, context: None, reset_cache=chunks.clear
    )
    contents = Contents(manager, lambda: chunks)
    manager.reset_cache()
    assert [*contents.changed()] == [(CLEARED, None)]
    assert [*contents.held()] == []

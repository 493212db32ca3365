"""What is reported about the OffloadConnector's store is what it holds, at every lookup."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrail.connector.simulate.check.profiles import NOT_FOR_ALL, PROFILES, scenario_of
from kvtrail.connector.simulate.run import play
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events.events import Evict, Lookup, RequestEnd, RequestStart, Reset, StorePlan
from kvtrail.tracer.events.hash_chains import Chain, Chains

CONNECTOR = {
    "kv_connector": "TracedOffloadConnector",
    "kv_connector_module_path": "kvtrail.connector",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"chunk_size": 64, "cpu_bytes_to_use": 400_000},
}
"""With little room, and forgetting what was computed of garbage."""
PLAYED = [name for name in PROFILES if name not in NOT_FOR_ALL]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The keys that the store held at each lookup."""
    seen: list[set[str]] = []
    plain = SchedulerInstrumentation.on_lookup

    def noting(self: Any, connector: Any, *arguments: Any) -> Any:
        seen.append({key[-8:].hex() for key in connector._scheduler.held_keys()})
        return plain(self, connector, *arguments)

    monkeypatch.setattr(SchedulerInstrumentation, "on_lookup", noting)
    return seen


@pytest.mark.parametrize("profile", PLAYED)
def test_the_reported_content_is_what_it_holds_at_every_lookup(profile: str, held: list[set[str]]) -> None:
    events = play(scenario_of(profile, 1), CONNECTOR).events
    reported: set[str] = set()
    moments = iter(held)
    chains, of_request = Chains(), dict[str, Chain]()
    live: set[str] = set()
    for event in sorted(events, key=lambda event: event.sequence):
        name = event.request or ""
        if isinstance(event, RequestStart | Lookup | RequestEnd):
            chains.add(of_request.setdefault(name, Chain()), event)
        match event:
            case RequestStart():
                live.add(name)
            case RequestEnd():
                live.discard(name)
            case StorePlan(chunk_keys=(key,)):
                reported.add(key)
                chain = of_request[name]
                last = (event.start or 0) // (event.block_size or 1) + event.count // (event.block_size or 1) - 1
                assert (chain.of(last) or bytes.fromhex(key)).hex() == key, "a key is the hash of its last block"
            case Evict(chunk_key=str(key)):
                assert key in reported
                reported.discard(key)
                assert event.pushed_by is None or event.pushed_by in live
            case Reset():
                reported.clear()
            case Lookup():
                assert reported == next(moments)
    assert next(moments, None) is None
    assert any(held)
    if profile in ("chunked-prefill", "preemption-storm", "full-store"):
        evictions = [event for event in events if isinstance(event, Evict)]
        assert evictions
        assert all(event.pushed_by for event in evictions)
    assert profile != "load-failure" or any(isinstance(event, Evict) and not event.pushed_by for event in events)

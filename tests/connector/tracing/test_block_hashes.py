"""Block hashes are reported once, and what a tracer makes of them is what vLLM has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from memory import MemoryTransport, a_recorder

from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.simulate.check.profiles import NOT_FOR_ALL, PROFILES, scenario_of
from kvtrail.connector.simulate.redrive.recorded import recorded_requests, use
from kvtrail.connector.simulate.run import play
from kvtrail.connector.tracing import block_hashes
from kvtrail.connector.tracing.block_hashes import NO_HASHES, BlockHashes, SeenBlocks
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events.events import Lookup, RequestEnd, RequestStart
from kvtrail.tracer.events.hash_chains import Chain, Chains, split_hashes
from kvtrail.tracer.events.semconv import HASH_BYTES, Level

OFFLOAD = {"kv_connector": "TracedOffloadConnector", "kv_connector_module_path": "kvtrail.connector"}
OFFLOAD["kv_connector_extra_config"] = {"chunk_size": 64, "cpu_bytes_to_use": 2_000_000}  # type: ignore[assignment]
IN_MAKE_TEST = (
    "preemption-storm", "abort", "async", "load-failure", "reset", "identity", "same-id", "spec-decode", "multi", "mixed",
)  # fmt: skip
"""Profiles in which requests get, lose or share hashes in ways of their own; the others have these ways, too."""
PLAYED = [
    name if name in IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.long)
    for name in PROFILES
    if name not in NOT_FOR_ALL
]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """The hashes that vLLM had of each request when it ended, shortened."""
    of_vllm: dict[str, list[bytes]] = {}
    used: Counter[str] = Counter()
    seen: set[int] = set()
    plain = SchedulerInstrumentation.on_request_finished

    def noting(self: SchedulerInstrumentation, request: Any, answer: Any, blocks: Any) -> None:
        if id(request) not in seen:  # each child of a MultiConnector reports it
            seen.add(id(request))
            keep.append(request)
            of_vllm[use(request.request_id, used)] = [each[-HASH_BYTES:] for each in request.block_hashes]
        plain(self, request, answer, blocks)

    keep: list[Any] = []
    monkeypatch.setattr(SchedulerInstrumentation, "on_request_finished", noting)
    return of_vllm


@pytest.mark.parametrize("profile", PLAYED)
def test_chains_are_vllms_own_and_hashes_are_reported_once(profile: str, ended: dict[str, list[bytes]]) -> None:
    events = play(scenario_of(profile, 1), OFFLOAD).events
    chains = {name: request.chain for name, request in recorded_requests(events).items()}
    assert len(ended) > 5
    assert {name: (chains[name].first, chains[name].hashes) for name in ended} == {
        name: (0, hashes) for name, hashes in ended.items()
    }
    reported = [each for event in with_hashes(events) for each in split_hashes(event.block_hashes)]
    assert Counter(reported).most_common(1)[0][1] <= 2, "a chunk may be filled by two requests at a time"
    assert len(reported) < 1.2 * len({each for hashes in ended.values() for each in hashes})


@pytest.mark.parametrize("profile", ["chunked-prefill", "preemption-storm"])
def test_when_events_are_lost_nothing_is_made_up(profile: str, ended: dict[str, list[bytes]]) -> None:
    events = play(scenario_of(profile, 2), OFFLOAD).events
    unknown = 0
    for seed in range(20):
        dice, chains, reported = random.Random(seed), Chains(), dict[str, Chain]()
        for event in with_hashes(events):
            name = event.request or ""
            if isinstance(event, RequestStart):
                reported[name] = Chain()
            if dice.random() < 0.2:
                continue
            chains.add(reported.setdefault(name, Chain()), event)
            chain = reported[name]
            assert chain.hashes == ended[name][chain.first : chain.end]
            unknown += chain.first > 0
    assert unknown


def with_hashes(events: Any) -> Iterator[RequestStart | Lookup | RequestEnd]:
    yield from (event for event in events if isinstance(event, RequestStart | Lookup | RequestEnd))


def a_request(name: str, *blocks: int) -> Any:
    hashes = [bytes(24) + block.to_bytes(8, "big") for block in blocks]
    return SimpleNamespace(request_id=name, block_hashes=hashes, num_preemptions=0)


def detailed() -> Recorder:
    recorder = a_recorder(MemoryTransport())
    recorder.level.set(Level.DETAILED, None)
    return recorder


def count(hashes: bytes | None) -> int:
    return len(hashes or b"") // HASH_BYTES


def test_a_shared_prefix_is_referred_to() -> None:
    recorder = detailed()
    hashes = BlockHashes(recorder)

    def start(request: Any) -> tuple[bytes | None, int | None, bytes | None]:
        return hashes.at_start(recorder.contexts.of(request), request)[:3]

    first = a_request("a", *range(77))
    assert start(first) == (b"".join(h[-8:] for h in first.block_hashes), None, None)
    second = a_request("b", *range(77), *range(200, 251))
    fresh, begin, after = start(second)
    assert (len(fresh or b""), begin, after) == (408, 77, (76).to_bytes(8, "big"))
    assert start(a_request("c", *range(50))) == (None, 50, (49).to_bytes(8, "big"))
    context = recorder.contexts.of(second)
    assert hashes.since(context, second) == (None, None)
    second.block_hashes.append(bytes(24) + (999).to_bytes(8, "big"))
    assert hashes.since(context, second) == ((999).to_bytes(8, "big"), 128)
    assert hashes.since(context, second) == (None, None)
    assert start(a_request("d", *range(77), *range(200, 251), 999))[0] is None
    recorder.close()


def test_very_many_hashes_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, at the lookup and at the end: what a receiver makes of them is the whole chain."""
    monkeypatch.setattr(block_hashes, "MAX_PER_EVENT", 100)
    recorder = detailed()
    hashes, chain, chains = BlockHashes(recorder), Chain(), Chains()
    request = a_request("long", *range(250))
    context = recorder.contexts.of(request)
    reported, first, after, _ = hashes.at_start(context, request)
    assert (count(reported), first, after) == (100, None, None)
    known: dict[str, Any] = {
        "engine": "e",
        "recorder": "r",
        "sequence": 0,
        "start_ns": 1,
        "end_ns": 1,
        "request": "long",
    }
    chains.add(chain, RequestStart(**known, block_hashes=reported))
    reported, first = hashes.since(context, request)
    assert (count(reported), first) == (100, 100)
    chains.add(chain, Lookup(**known, total=4000, computed=0, block_hashes=reported, block_first=first))
    later = a_request("later", *range(250))
    assert hashes.at_start(recorder.contexts.of(later), later)[1] == 200, "what was sent is not sent again"
    reported, first = hashes.since(context, request)
    chains.add(chain, RequestEnd(**known, block_hashes=reported, block_first=first))
    assert hashes.since(context, request) == (None, None)
    assert chain.is_whole
    assert chain.hashes == [each[-HASH_BYTES:] for each in request.block_hashes]
    recorder.close()


@pytest.mark.parametrize("why", ["many", "lost", "late"])
def test_everything_is_resynced(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """When there is too much to remember, when events were lost, and for a tracer that began later."""
    recorder = detailed()
    hashes, now_ns = BlockHashes(recorder), 1
    monkeypatch.setattr(block_hashes, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(block_hashes, "MAX_REPORTED", 100)

    def reported(name: str, *blocks: int) -> int:
        request = a_request(name, *blocks)
        return count(hashes.at_start(recorder.contexts.of(request), request)[0])

    assert (reported("a", *range(60)), reported("b", *range(60))) == (60, 0)
    if why == "many":
        assert reported("c", *range(1000, 1050)) == 50
    elif why == "lost":
        recorder._lost["lost"] += 1
    else:
        now_ns += block_hashes.RESYNC_NS
    assert (reported("d", *range(60)), reported("e", *range(60))) == (60, 0)
    recorder.close()


def test_nothing_is_reported_at_level_basic_or_about_unrecorded_requests() -> None:
    recorder = detailed()
    hashes, request = BlockHashes(recorder), a_request("a", 1, 2)
    context: RequestContext = recorder.contexts.of(request)
    context.recorded = False
    assert hashes.at_start(context, request) == NO_HASHES
    context.recorded = True
    recorder.level.set(Level.BASIC, None)
    assert hashes.at_start(context, request) == NO_HASHES
    assert hashes.since(context, request) == (None, None)
    recorder.level.set(Level.DETAILED, None)
    assert count(hashes.at_start(context, request)[0]) == 2, "what was not reported is not referred to"
    recorder.close()


def test_what_no_earlier_request_had_is_reported_after_a_resync_too() -> None:
    recorder = detailed()
    hashes = BlockHashes(recorder)

    def seen(request: Any) -> int | None:
        return hashes.at_start(recorder.contexts.of(request), request)[3]

    first = a_request("a", *range(40))
    assert seen(first) == 0
    first.block_hashes.append(bytes(24) + (999).to_bytes(8, "big"))
    hashes.since(recorder.contexts.of(first), first)
    recorder._lost["lost"] += 1  # everything is resynced
    assert seen(a_request("b", *range(40), 999, *range(500, 510))) == 41, "also what the first one has generated"
    assert seen(a_request("c", *range(30), *range(600, 620))) == 30
    assert seen(a_request("d", *range(30), *range(600, 610))) == 40
    recorder.level.set(Level.BASIC, None)
    hashes.at_start(recorder.contexts.of(unknown := a_request("e", 7000)), unknown)
    recorder.level.set(Level.DETAILED, None)
    assert seen(a_request("f", 8000)) is None, "it is unknown what `e` had"
    recorder.close()


def test_the_connectors_of_one_engine_report_each_hash_once() -> None:
    recorder, other = detailed(), detailed()
    assert BlockHashes.of(recorder, enabled=True) is BlockHashes.of(recorder, enabled=True)
    assert BlockHashes.of(recorder, enabled=True) is not BlockHashes.of(other, enabled=True)
    recorder.close()
    other.close()


def test_a_table_of_blocks_errs_to_may_have_been() -> None:
    dice = random.Random(0)
    chain = [dice.randbytes(32) for _ in range(200)]
    blocks = SeenBlocks()
    blocks.enter([dice.randbytes(32) for _ in range(1_000_000)])
    blocks.enter(chain[:70])
    assert blocks.first_of(chain) >= 70
    others = [[dice.randbytes(32) for _ in range(4)] for _ in range(500)]
    assert sum(blocks.first_of(each) == 0 for each in others) > 400, "most of what is new is known to be"

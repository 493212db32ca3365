"""What is reported about vLLM's own prefix cache is what it holds, at every lookup and allocation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from memory import MemoryTransport, a_recorder

from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.simulate.check.profiles import PROFILES, scenario_of
from kvtrail.connector.simulate.run import play
from kvtrail.connector.tracing import cache_events
from kvtrail.connector.tracing.prefix_cache import PrefixCacheEvents, can_be_followed
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events.events import Alloc, Event, Heartbeat, Lookup
from kvtrail.tracer.events.events import PrefixCache as Recorded
from kvtrail.tracer.events.hash_chains import split_hashes
from kvtrail.tracer.events.semconv import HASH_BYTES, Level

GROUP_BYTES = 4
Held = set[tuple[int, bytes]]
"""Blocks: KV cache group and hash."""


def connector(**settings: Any) -> dict[str, Any]:
    extra = {"chunk_size": 64, "cpu_bytes_to_use": 2_000_000, "kvtrail": settings}
    named = {"kv_connector": "TracedOffloadConnector", "kv_connector_module_path": "kvtrail.connector"}
    return {**named, "kv_connector_extra_config": extra}


def held_by(pool: Any) -> Held:
    return {
        (int.from_bytes(key[-GROUP_BYTES:], "big"), key[:-GROUP_BYTES][-HASH_BYTES:])
        for key in pool.cached_block_hash_to_block._cache
    }


def enter(held: Held, reported: Recorded) -> None:
    """What an event reports. A block that is stored was not held, and one that is removed was."""
    if reported.cache_whole:
        held.clear()
    hashes, group = split_hashes(reported.block_hashes), reported.group or 0
    for run in reported.cache_changes:
        some, hashes = {(group, each) for each in hashes[: abs(run)]}, hashes[abs(run) :]
        if run > 0:
            assert not held & some
            held |= some
        elif run < 0:
            assert some <= held
            held -= some
        else:
            held.clear()
    assert not hashes


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Held]:
    """What vLLM's prefix cache held at each lookup and at each allocation."""
    seen: list[Held] = []

    def note(call: str) -> None:
        plain = getattr(SchedulerInstrumentation, call)

        def noting(self: Any, *arguments: Any, **more: Any) -> Any:
            seen.append(held_by(self._pool))
            return plain(self, *arguments, **more)

        monkeypatch.setattr(SchedulerInstrumentation, call, noting)

    note("on_lookup")
    note("on_alloc")
    return seen


IN_MAKE_TEST = (
    "preemption-storm", "retry", "abort", "load-failure", "reset", "identity", "full-store", "spec-decode", "multi", "mixed",
    "groups", "states", "block-sizes", "no-prefix-caching",
)  # fmt: skip
"""Profiles in which vLLM frees, evicts or hashes blocks in ways of their own; the others have these ways, too."""


@pytest.mark.parametrize(
    "profile", [name if name in IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.long) for name in PROFILES]
)
def test_it_is_what_vllm_holds_at_every_lookup_and_allocation(profile: str, watched: list[Held]) -> None:
    settings = connector()
    if profile in ("groups", "states", "block-sizes"):
        settings = {"kv_connector": "TracedOffloadingConnector", "kv_connector_module_path": "kvtrail.connector"}
        settings["kv_connector_extra_config"] = {"cpu_bytes_to_use": 50_000_000}
    events = play(scenario_of(profile, 1), settings).events
    held: Held = set()
    moments = iter(watched)
    for event in in_order(events):
        if isinstance(event, Recorded):
            enter(held, event)
        else:
            assert held == next(moments)
    assert next(moments, None) is None
    assert any(watched) or profile == "no-prefix-caching"
    changes = [run for event in events if isinstance(event, Recorded) for run in event.cache_changes]
    assert any(run < 0 for run in changes) or profile not in ("preemption-storm", "retry", "full-store", "mixed")
    assert 0 in changes or profile != "reset"


def _is_of_store(event: Event) -> bool:
    return isinstance(event, Recorded) and event.pool_tier is not None


def in_order(events: Iterable[Event]) -> list[Event]:
    reported = [event for event in events if isinstance(event, Recorded | Lookup | Alloc) and not _is_of_store(event)]
    return sorted(reported, key=lambda event: event.sequence)


def test_a_setting_turns_it_off(watched: list[Held]) -> None:
    events = play(scenario_of("crowd", 1), connector(block_hashes="off")).events
    assert any(isinstance(event, Lookup) for event in events)
    assert not any(isinstance(event, Recorded) for event in events)
    assert not any(getattr(event, "block_hashes", None) for event in events)


class Map:
    """As vLLM's: blocks by key; there may be copies."""

    def __init__(self) -> None:
        self._cache: dict[bytes, dict[int, Any]] = {}

    def get_one_block(self, key: bytes) -> Any:
        return next(iter(self._cache.get(key, {}).values()), None)

    def insert(self, key: bytes, block: Any) -> None:
        self._cache.setdefault(key, {})[block] = block

    def pop(self, key: bytes, block_id: int) -> Any:
        popped = self._cache.get(key, {}).pop(block_id, None)
        if not self._cache.get(key, True):
            del self._cache[key]
        return popped


class Pool:
    def __init__(self) -> None:
        self.cached_block_hash_to_block = Map()

    def store(self, *blocks: int) -> None:
        for block in blocks:
            self.cached_block_hash_to_block.insert(key(block), block + 1)

    def remove(self, *blocks: int) -> None:
        for block in blocks:
            assert self.cached_block_hash_to_block.pop(key(block), block + 1) == block + 1


def key(block: int) -> bytes:
    return bytes(24) + block.to_bytes(8, "big") + bytes(GROUP_BYTES)


@pytest.fixture
def reported() -> Any:
    """A recorder, a pool, the changes of its cache, and a function that gives what was reported since its last call."""
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    recorder.level.set(Level.DETAILED, None)
    pool = Pool()
    cache = PrefixCacheEvents.of(pool, recorder, has_groups=False)

    def fresh() -> list[tuple[tuple[int, ...], list[int], bool]]:
        recorder.flush()
        events = [event for event in transport.events() if isinstance(event, Recorded)]
        transport.payloads.clear()
        return [
            (e.cache_changes, [int.from_bytes(h) for h in split_hashes(e.block_hashes)], e.cache_whole) for e in events
        ]

    yield recorder, pool, cache, fresh
    recorder.close()


def test_copies_of_a_block_count_once(reported: Any) -> None:
    _, pool, cache, fresh = reported
    cache.flush(b"", 0, 1)
    assert fresh() == [((), [], True)]
    pool.store(1, 2, 3)
    pool.cached_block_hash_to_block.insert(key(2), 99)
    pool.remove(3, 2)
    cache.flush(b"", 0, 2)
    assert fresh() == [((3, -1), [1, 2, 3, 3], False)]
    assert pool.cached_block_hash_to_block.pop(key(2), 99) == 99
    assert pool.cached_block_hash_to_block.pop(key(2), 99) is None
    cache.flush(b"", 0, 3)
    cache.flush(b"", 0, 4)
    assert fresh() == [((-1,), [2], False)]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ("+a0 +a1 +b0 +b1", ["0 +a +b", "1 +a +b"]),
        ("-a1 +b0 -c1 +d0", ["1 -a -c", "0 +b +d"]),
        ("-a1 +b0 -a0 -c0 +b1", ["1 -a", "0 +b", "0 -a -c", "1 +b"]),
        ("+a0 +a1 reset +a1 +a0 +b1", ["0 +a", "1 +a", "None reset", "1 +a +b", "0 +a"]),
    ],
    ids=["stores", "losses of one group", "losses of both", "a reset"],
)
def test_groups_that_change_in_turn_have_one_part_each_but_their_losses_stay_in_order(
    changes: str, parts: list[str]
) -> None:
    """A change is a sign, a block and its group."""
    names: dict[Any, str] = {None: "reset"}
    given: list[Any] = []
    for each in changes.split():
        if each == "reset":
            given.append(None)
            continue
        name = key(ord(each[1]))[:-GROUP_BYTES] + int(each[2]).to_bytes(GROUP_BYTES, "big")
        names[name] = each[1]
        given.append(name if each[0] == "+" else (name,))
    made = [
        " ".join([str(group), *("-" + names[c[0]] if type(c) is tuple else "+" * bool(c) + names[c] for c in some)])
        for group, some in cache_events.by_group(given, slice(-GROUP_BYTES, None))
    ]
    assert made == parts


def test_a_few_changes_wait_at_the_end_of_a_step(reported: Any) -> None:
    _, pool, cache, fresh = reported
    cache.flush(b"", 0, 1)
    fresh()
    pool.store(1)
    cache.flush(b"", 0, 2, can_wait=True)
    assert fresh() == []
    cache.flush(b"", 0, 2 + cache_events.MAX_DELAY_NS, can_wait=True)
    assert fresh() == [((1,), [1], False)]
    pool.store(*range(10, 10 + cache_events.MIN_BATCH))
    cache.flush(b"", 0, 3 + cache_events.MAX_DELAY_NS, can_wait=True)
    assert len(fresh()) == 1


def test_a_reset_is_reported_with_what_was_stored_since(reported: Any) -> None:
    _, pool, cache, fresh = reported
    cache.flush(b"", 0, 1)
    pool.store(1)
    pool.cached_block_hash_to_block = Map()
    pool.store(2, 3)
    cache.flush(b"", 0, 2)
    pool.remove(2)
    cache.flush(b"", 0, 3)
    assert fresh() == [((), [], True), ((1, 0, 2), [1, 2, 3], False), ((-1,), [2], False)]


@pytest.mark.parametrize("why", ["lost", "late", "too much"])
def test_everything_is_resynced(reported: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, pool, cache, fresh = reported
    cache.flush(b"", 0, 1)
    pool.store(1, 2)
    cache.flush(b"", 0, 2)
    fresh()
    at_ns, pending = 3, [((1, -1), [3, 1], False)]
    pool.store(3)
    pool.remove(1)
    if why == "lost":
        recorder._lost["lost"] += 1
    elif why == "late":
        at_ns += cache_events.RESYNC_NS
    else:
        monkeypatch.setattr(cache_events, "MAX_PENDING", 2)
    cache.flush(b"", 0, at_ns, can_wait=True)
    assert fresh() == [*pending, ((2,), [2, 3], True)]
    cache.flush(b"", 0, at_ns)
    assert fresh() == []


def test_large_reports_are_split(reported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pool, cache, fresh = reported
    monkeypatch.setattr(cache_events, "MAX_PER_EVENT", 2)
    pool.store(1, 2, 3)
    cache.flush(b"", 0, 1)
    assert fresh() == [((2,), [1, 2], True), ((1,), [3], False)]


def test_at_level_basic_nothing_is_followed_and_the_recording_says_so(reported: Any) -> None:
    recorder, pool, cache, fresh = reported
    cache.flush(b"", 0, 1)
    recorder.level.set(Level.BASIC, None)
    pool.store(1)
    cache.flush(b"", 0, 2)
    assert "insert" not in vars(pool.cached_block_hash_to_block)
    pool.store(2)
    recorder.level.set(Level.DETAILED, None)
    cache.flush(b"", 0, 3)
    stopped: tuple[tuple[int, ...], list[int], bool] = ((), [], False)
    assert fresh() == [((), [], True), stopped, ((2,), [1, 2], True)]


class Refusing(Pool):
    """A pool that another version may have."""

    def __init__(self, **methods: Any) -> None:
        self.cached_block_hash_to_block = type("Other", (Map,), methods)()


@pytest.mark.parametrize(
    "pool",
    [
        Refusing(insert=lambda self, key, block, group: None),
        Refusing(pop=None),
        Refusing(get_one_block=property()),
        object(),
    ],
    ids=["another argument", "no method", "a property", "no map"],
)
def test_a_pool_of_another_form_is_left_alone(pool: Any) -> None:
    assert not can_be_followed(pool)


def test_what_fails_in_telling_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = MemoryTransport()
    recorder: Recorder = a_recorder(transport)
    recorder.level.set(Level.DETAILED, None)
    instrumentation, pool = SchedulerInstrumentation(recorder), Pool()
    instrumentation.on_pool_bound(pool)
    instrumentation._flush_cache_events(1)
    monkeypatch.setattr(cache_events, "_runs", None)
    pool.store(1)
    instrumentation._flush_cache_events(2)
    assert "insert" not in vars(pool.cached_block_hash_to_block), "it is let go"
    pool.store(2)
    instrumentation._flush_cache_events(3)
    recorder.close()
    first, stopped = (event for event in transport.events() if isinstance(event, Recorded))
    assert [first.cache_whole, stopped.cache_whole] == [True, False]
    assert not stopped.cache_changes
    beats = [event for event in transport.events() if isinstance(event, Heartbeat)]
    assert beats[-1].recorder_unrecorded == ("kv.cache:1",)

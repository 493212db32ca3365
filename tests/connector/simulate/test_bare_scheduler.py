"""The connector on the bare real scheduler: random workloads, with the rules as the oracle.

Preemptions, retries, aborts, resets of the prefix cache, priorities and full hits come in every run; whatever the rules
say of a correct connector is wrong.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_scheduler import scheduler, storm
from history import heartbeats

from kvtrail.connector.demo.workload import shared_prefixes, stale_lookup
from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.groups import Group
from kvtrail.connector.offload.scheduler import OffloadScheduler
from kvtrail.connector.recording import recorder
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.scenario import Workers
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Alloc, Event, Schedule
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.findings import Verdict


@pytest.mark.parametrize("requests", [100, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("extra", [{}, {"chunk_size": 64, "cpu_bytes_to_use": 2_000_000}], ids=["default", "small"])
def test_a_correct_connector_is_never_accused(
    tmp_path: Path, recorded: Callable[[], list[Event]], extra: dict[str, Any], seed: int, requests: int
) -> None:
    policy = "priority" if seed % 2 else "fcfs"
    level = {"kvtrail": {"level": "detailed" if seed % 3 else "basic"}}
    bare = scheduler(tmp_path, "OffloadConnector", {**extra, **level}, seed=seed, scheduling_policy=policy)
    storm(bare, seed=seed, requests=requests)
    events = recorded()
    detector = Detector()
    detector.feed(events)
    detector.settle()
    assert detector.findings == {}
    assert detector.missing == 0
    verdicts = {detector.verdict(account) for account in detector.accounts.values()}
    assert Verdict.DRIFT not in verdicts
    assert Verdict.OK in verdicts
    preempts = [event for event in events if event.kind == "kv.preempt"]
    assert len({(e.request, e.epoch) for e in preempts}) == len(preempts), "a preemption begins an epoch of its own"
    assert all(e.epoch >= 1 for e in preempts)
    kinds = {event.kind for event in events}
    assert {"kv.lookup", "kv.alloc", "kv.schedule", "kv.preempt", "kv.request", "kv.reset"} <= kinds
    if extra:
        assert "kv.evict" in kinds
    assert all(a.ended_ns is not None for a in detector.accounts.values())


@pytest.mark.parametrize("level", ["basic", "detailed"])
def test_what_is_computed_twice_is_counted(tmp_path: Path, recorded: Callable[[], list[Event]], level: str) -> None:
    """By every step of vLLM's scheduler: what it runs of a request again, up to where that was when it was preempted."""
    bare = scheduler(tmp_path, "OffloadConnector", {"chunk_size": 256, "kvtrail": {"level": level}}, seed=3)
    reached: Counter[str] = Counter()
    held: Counter[str] = Counter()
    again: Counter[str] = Counter()

    def note(output: Any, _: Any) -> None:
        cached = output.scheduled_cached_reqs
        at = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        at |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, count in output.num_scheduled_tokens.items():
            if at[name] < reached[name]:
                held[name] = max(held[name], reached[name])
            again[name] += max(0, min(at[name] + count, held[name]) - at[name])
            reached[name] = at[name] + count

    bare.observers.append(note)
    storm(bare, seed=3, requests=120)
    detector = Detector()
    detector.feed(recorded())
    accounts = {account.request: account for account in detector.accounts.values()}
    assert not any(account.recomputed for account in accounts.values() if not account.epoch)
    preempted = {name: account for name, account in accounts.items() if account.epoch and name in reached}
    for name, account in preempted.items():
        if level == "detailed" and account.epoch == 1 and account.outcome != "aborted":
            assert account.recomputed == again[name], name
        elif level == "detailed":  # one that is preempted or aborted once more has not come to the end of it
            assert account.recomputed >= again[name], name
    assert sum(account.recomputed for account in preempted.values()) > again.total() / 2 > 0


@pytest.mark.parametrize("unsampled", ["record", "drop"])
def test_a_sampler_changes_nothing_but_a_mark(
    tmp_path: Path, recorded: Callable[[], list[Event]], monkeypatch: pytest.MonkeyPatch, unsampled: str
) -> None:
    """What is not sampled stores, evicts and holds blocks, too. Only a user who asks for it gets a recording without it, and
    all of its events say so."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    extra = {"chunk_size": 64, "cpu_bytes_to_use": 2_000_000}
    bare = scheduler(
        tmp_path, "OffloadConnector", {**extra, "kvtrail": {"level": "detailed", "unsampled": unsampled}}, seed=1
    )
    storm(bare, seed=1, requests=100)
    events = recorded()
    marks = {event.request: event.sampled for event in events if event.request is not None}
    if unsampled == "drop":
        assert set(marks.values()) == {None}
        assert len(marks) < 80
        assert {event.sampled_only for event in events} == {True}
    else:
        assert set(marks.values()) == {False, None}
        assert len(marks) == 100
        assert {event.sampled_only for event in events} == {None}
        assert judged(events).findings == {}


@pytest.mark.parametrize("seed", range(3))
def test_reported_failed_loads_cause_no_findings(
    tmp_path: Path, recorded: Callable[[], list[Event]], seed: int
) -> None:
    """vLLM recomputes what could not be loaded, for every request that shares the block."""
    extra = {"chunk_size": 64, "kvtrail": {"level": "detailed"}}
    bare = scheduler(tmp_path, "OffloadConnector", extra, seed=seed, workers=Workers(load_failures=0.2, seed=seed))
    storm(bare, seed=seed, requests=120, reset_running=False)
    detector = judged(recorded())
    assert detector.findings == {}
    assert detector.verdicts["failed-load-used", Verdict.OK] > 0


@pytest.mark.parametrize("name", ["OffloadConnector", "TracedOffloadingConnector"])
def test_speculative_tokens_cause_no_findings(tmp_path: Path, recorded: Callable[[], list[Event]], name: str) -> None:
    """Drafts are scheduled, and some of them are rejected; their KV must not be stored before that is known."""
    native = name != "OffloadConnector"
    extra = {"cpu_bytes_to_use": 50_000_000, "kvtrail": {"level": "detailed"}} | ({} if native else {"chunk_size": 64})
    bare = scheduler(tmp_path, name, extra, drafts=3)
    storm(bare, seed=1, requests=120, reset_running=not native)
    detector = judged(recorded())
    assert detector.findings == {}
    assert sum(account.rejected for account in detector.accounts.values()) > 100


@pytest.mark.parametrize("seed", range(3))
def test_blocks_that_are_kept_and_given_back_cause_no_findings(
    tmp_path: Path, recorded: Callable[[], list[Event]], seed: int
) -> None:
    extra = {"chunk_size": 64, "kvtrail": {"level": "detailed"}}
    bare = scheduler(tmp_path, "Traced:delayed_free:DelayedFreeConnector", extra, seed=seed)
    storm(bare, seed=seed, requests=120, reset_running=False)
    for _ in range(10):
        bare.step()
    events = recorded()
    detector = judged(events)
    detector.feed(heartbeats(events, later_s=3600))
    detector.tick()
    assert detector.findings == {}
    assert detector.verdicts["stray-completion", Verdict.OK] > 100


@pytest.mark.parametrize("name", ["OffloadConnector", "TracedOffloadingConnector"])
def test_a_damaged_stream_of_a_correct_connector_causes_no_findings(
    tmp_path: Path, recorded: Callable[[], list[Event]], name: str
) -> None:
    """Dropped, repeated, reordered and truncated, and asked an hour later."""
    native = name != "OffloadConnector"
    extra = {"cpu_bytes_to_use": 4_000_000, "kvtrail": {"level": "detailed"}} | ({} if native else {"chunk_size": 64})
    bare = scheduler(tmp_path, name, extra, seed=5)
    storm(bare, seed=5, requests=60, reset_running=not native)
    events = recorded()
    for seed in range(25):
        rng = random.Random(seed)
        kept = [event for event in events if rng.random() > rng.choice([0.0, 0.001, 0.02, 0.3])]
        kept = kept[: rng.randrange(len(kept) // 2, len(kept) + 1)]
        kept += rng.choices(kept, k=50)
        if seed % 2:
            rng.shuffle(kept)
        detector = Detector()
        detector.feed(kept)
        detector.settle()
        detector.feed(heartbeats(events, later_s=3600))  # their numbers show what is missing at the end
        detector.settle()
        detector.tick()
        found = [(f.rule, f.request) for held in detector.findings.values() for f in held.values()]
        assert not found, (seed, found[:3])


@pytest.mark.parametrize("seed", range(4))
def test_vllms_own_offloading_is_never_accused(tmp_path: Path, recorded: Callable[[], list[Event]], seed: int) -> None:
    """The native OffloadingConnector: asynchronous loads and numbered stores that end late and out of order."""
    extra = {"cpu_bytes_to_use": (2_000_000, 50_000_000)[seed % 2], "kvtrail": {"level": "detailed"}}
    policy = "priority" if seed % 2 else "fcfs"
    bare = scheduler(tmp_path, "TracedOffloadingConnector", extra, seed=seed, scheduling_policy=policy)
    storm(bare, seed=seed, requests=120, reset_running=False)
    detector = judged(recorded())
    assert detector.findings == {}
    for rule in ("block-reuse", "plan-blocks", "stray-completion", "load-store-overlap", "wrong-resume-offset"):
        assert detector.verdicts[rule, Verdict.OK] > 0


def test_the_level_can_be_changed_while_the_engine_runs(
    tmp_path: Path, recorded: Callable[[], list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request keeps the level of its epoch, so its block table is recorded whole or not at all."""
    monkeypatch.setattr(recorder, "HEARTBEAT_S", math.inf)
    file = tmp_path / "level"
    bare = scheduler(tmp_path, "OffloadConnector", {"chunk_size": 64, "kvtrail": {"level_file": str(file)}})
    recorded()  # after the first heartbeat no other reads the file: only this test does
    for number, level in enumerate(["basic", "detailed", "nonsense", "basic"]):
        file.write_text(level)
        for each in recorder.recorders():
            each.level.read()
        bare.add(f"r-{number}", list(range(3 + number, 303 + number)), 40)
        for _ in range(12):
            bare.step()
    bare.run()
    events = recorded()
    in_detail = {event.request: event.blocks_ids is not None for event in events if isinstance(event, Alloc)}
    assert in_detail == {"r-0": False, "r-1": True, "r-2": True, "r-3": False}
    assert {e.request for e in events if isinstance(e, Schedule) and e.blocks_ids is not None} == {"r-1", "r-2"}
    assert judged(events).findings == {}


def judged(events: list[Event]) -> Detector:
    detector = Detector()
    detector.feed(events)
    detector.settle()
    assert detector.missing == 0
    return detector


@pytest.mark.parametrize("outer", ["MultiConnector", "TracedMultiConnector"])
def test_the_children_of_a_multiconnector_are_not_mistaken_for_each_other(
    tmp_path: Path, recorded: Callable[[], list[Event]], outer: str
) -> None:
    """Two traced children with different chunks answer differently; vLLM takes the first answer that is no 0."""
    children = [
        {"kv_connector": "OffloadConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"chunk_size": size}}
        for size in (64, 32)
    ]
    bare = scheduler(tmp_path, outer, {"connectors": children}, disable_hybrid_kv_cache_manager=True)
    rng = random.Random(0)
    head = [rng.randrange(3, 512) for _ in range(300)]
    for number in range(8):
        bare.add(f"r-{number}", head + [rng.randrange(3, 512) for _ in range(50)], 5)
        bare.run()
        bare.scheduler.reset_prefix_cache()
    events = recorded()
    assert len({e.connector_id for e in events if e.kind == "kv.lookup"}) == (2 if outer == "MultiConnector" else 3)
    detector = judged(events)
    assert detector.findings == {}
    assert {detector.verdict(a) for a in detector.accounts.values()} == {Verdict.OK}
    assert len([e for e in events if e.kind == "kv.request"]) == 8
    assert detector.verdicts["alloc-mismatch", Verdict.OK] > 0


def test_an_id_that_is_used_again_is_another_request(tmp_path: Path, recorded: Callable[[], list[Event]]) -> None:
    bare = scheduler(tmp_path, "OffloadConnector", {"chunk_size": 64})
    prompt = list(range(3, 303))
    for _ in range(3):
        bare.add("same", prompt, 4)
        bare.run()
        bare.scheduler.reset_prefix_cache()
    events = recorded()
    detector = judged(events)
    assert detector.findings == {}
    (account,) = detector.accounts.values()
    assert (account.lookups, account.returned, detector.verdict(account)) == (1, 256, Verdict.OK)
    own = [e for e in events if e.request == "same" and e.kind is not Kind.SCHEDULE]  # a row is in its recorder's trace
    assert len({e.trace_id for e in own}) == 3


def test_the_injected_stale_lookup_is_found_on_the_real_scheduler(
    tmp_path: Path, recorded: Callable[[], list[Event]]
) -> None:
    bare = scheduler(tmp_path, "Faulty:stale-lookup:OffloadConnector")
    for job in stale_lookup():
        bare.add(job.id, list(job.prompt), job.max_tokens)
    with pytest.raises(AssertionError, match="Mismatch in tokens to load"):
        bare.run()
    detector = Detector()
    detector.feed(recorded())
    (held,) = detector.findings.values()
    (finding,) = held.values()
    assert finding.rule == "stale-lookup"
    assert finding.numbers["returned"] > finding.numbers["at_most"] == 0
    assert finding.healed == 0


def test_under_heal_the_scheduler_finishes_everything(tmp_path: Path, recorded: Callable[[], list[Event]]) -> None:
    bare = scheduler(tmp_path, "Faulty:stale-lookup:OffloadConnector", {"kvtrail": {"guard": "heal"}})
    for seed in range(5):
        for job in [*stale_lookup(seed=seed), *shared_prefixes(seed=seed)]:
            bare.add(f"{seed}-{job.id}", list(job.prompt), job.max_tokens)
        bare.run()
        bare.scheduler.reset_prefix_cache()
    detector = Detector()
    detector.feed(recorded())
    found = [f for held in detector.findings.values() for f in held.values()]
    assert {f.rule for f in found} == {"stale-lookup"}
    assert all(f.healed == f.count for f in found)
    assert {a.outcome for a in detector.accounts.values()} == {"length_capped"}


def test_the_offload_scheduler_stores_only_what_is_computed(tmp_path: Path) -> None:
    """No plan stores a token at or beyond the end of its step, and every block it names is the request's own."""
    bare = scheduler(tmp_path, "UntracedOffloadConnector", {"chunk_size": 64})
    rng = random.Random(1)
    for number in range(20):
        bare.add(f"r-{number}", [rng.randrange(3, 512) for _ in range(rng.randrange(100, 900))], 40)
    stored = 0
    seen: list[tuple[Any, dict[str, tuple[int, list[int]]]]] = []
    while bare.scheduler.has_unfinished_requests():
        bare.step(lambda out: seen.append((out, tables_of(bare, out))))
        output, tables = seen.pop()
        for copy in output.kv_connector_metadata.stores:
            end_of_step, table = tables[copy.request_id]
            assert copy.start + copy.count <= end_of_step
            assert list(copy.blocks) == table[copy.start // 32 : (copy.start + copy.count) // 32]
            stored += 1
    assert stored > 50


def test_after_a_preemption_what_was_evicted_meanwhile_is_stored_again() -> None:
    """One slot: another request's chunk takes it while the first is preempted."""
    config = OffloadConfig(chunk_size=32, hash_size=32, groups=(Group(32, 1),), slots=1)
    offload = OffloadScheduler(config, drafts=False)
    first, other = (
        SimpleNamespace(request_id=i, block_hashes=[i.encode()], num_tokens=40, num_preemptions=0) for i in "ab"
    )

    def step(request: Any, computed: int) -> list[str]:
        offload.new_tokens(request, 0)
        new = SimpleNamespace(req_id=request.request_id, num_computed_tokens=0, block_ids=([7, 8],))
        output = SimpleNamespace(
            scheduled_new_reqs=[new],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[], new_block_ids=[]),
            num_scheduled_tokens={request.request_id: computed},
        )
        return [copy.request_id for copy in offload.end_step(output).stores]

    assert step(first, 40) == ["a"]
    assert step(other, 40) == ["b"]
    first.num_preemptions = 1
    assert step(first, 40) == ["a"]
    assert step(first, 40) == []


def tables_of(bare: BareScheduler, output: Any) -> dict[str, tuple[int, list[int]]]:
    """For each request of a step: its computed tokens after it, and its block table."""
    manager, requests = bare.scheduler.kv_cache_manager, bare.scheduler.requests
    return {
        request_id: (requests[request_id].num_computed_tokens, manager.get_block_ids(request_id)[0])
        for request_id in output.num_scheduled_tokens
    }

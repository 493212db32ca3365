"""Faults of vLLM 0.32 that docs/findings.md describes, each in the smallest run that shows it. `kvtrail check` avoids them,
since they are no connector's, or would hide what else is wrong: a newer vLLM that has none of them needs no such care."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

import vllm
from bare_scheduler import scheduler, storm
from faulty_pairs import DECODE, PREFILL, Request, Return, paired, play_pair

from kvtrail.connector.known.nixl.stand_in.network import Fails, Schedule
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.pairs import pairs
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import (
    Abort,
    Arrival,
    CachesReset,
    Point,
    Scenario,
    When,
    Workers,
    tokens,
    wait,
)
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup
from kvtrail.tracer.events.events import Event, Free, LoadError, RequestEnd

pytestmark = pytest.mark.skipif(not vllm.__version__.startswith("0.32."), reason="these are faults of vLLM 0.32")
PREFIX = ("prefix", 128)
PULL, PUSH = configuration("NixlPullConnector", {}), configuration("NixlPushConnector", {})
AT_ONCE = Schedule(transfer_ticks=0, message_ticks=0, handshake_ticks=0)
OFFLOAD = configuration("OffloadConnector", {"chunk_size": 64})
SHARED = Scenario(
    arrivals=(
        Arrival("stores", (PREFIX, ("a", 1))),
        Arrival("loads", (PREFIX, ("b", 200)), at_step=20),
        Arrival("shares", (PREFIX, ("c", 200)), at_step=20),
        Arrival("asks-loads", (PREFIX, ("b", 200)), at_step=40),
        Arrival("asks-shares", (PREFIX, ("c", 200)), at_step=40),
    ),
    resets=(CachesReset(15),),
    workers=Workers(load_failures=1.0, latest_steps=0, seed=1),
    settings={"max_num_batched_tokens": 1000},
)
"""One request loads a prefix, and another one shares its blocks in the same step; the load fails, and both come again."""
OFFLOADING = configuration("OffloadingConnector", {"cpu_bytes_to_use": 50_000_000})


@pytest.mark.parametrize("who", ["loads", "shares"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_failed_block_stays_in_vllms_prefix_cache_when_nobody_computes_it_again(
    monkeypatch: pytest.MonkeyPatch, kept: bool, who: str
) -> None:
    """Neither what failed, nor what another request has computed of it; `check` drops both, where the request is aborted."""
    if kept:
        monkeypatch.setattr(BareScheduler, "_forget_failed", lambda self, gone: None)
    scenario = replace(SHARED, aborts=(Abort(who, 20, When.FAILED),))
    if who == "loads":
        scenario = replace(scenario, arrivals=tuple(each for each in SHARED.arrivals if each.id != "shares"))
    played = play(scenario, OFFLOAD, own_workers=True, observed=True, at_rest=False)
    failed = next(event for event in played.events if isinstance(event, LoadError))
    assert len(failed.blocks_ids or ()) == 4, "none of the prefix's 128 tokens could be loaded"
    ended = {event.request: event.outcome for event in played.events if isinstance(event, RequestEnd)}
    assert ended[who] == "aborted"
    asked = {lookup.request: lookup.computed for lookup in played.lookups}
    found = {("loads", True): 320, ("loads", False): 0, ("shares", True): 320, ("shares", False): 128}
    assert asked[f"asks-{who}"] == found[who, kept], "vLLM counts what failed, or was computed of it, as computed"
    assert not played.observations, "which is not the connector's fault"


@pytest.mark.parametrize("waits", [True, False])
def test_who_shares_a_failed_load_runs_on_it_when_the_other_one_is_aborted(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """vLLM leaves it to the first of them to compute the blocks again. In `check` an abort of that one waits."""
    if not waits:
        monkeypatch.setattr(BareScheduler, "others_share_failed", lambda self, request_id: False)
    played = play(replace(SHARED, aborts=(Abort("loads", 20, When.FAILED),)), OFFLOAD, own_workers=True, observed=True)
    ended = {event.request: event.outcome for event in played.events if isinstance(event, RequestEnd)}
    assert ended["loads"] == ("length_capped" if waits else "aborted")
    assert {each.rule for each in played.findings} == (set() if waits else {"failed-load-used"})


@pytest.mark.parametrize("kept", [True, False])
def test_a_request_whose_load_has_failed_waits_for_what_is_reserved_for_it(
    monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Of 15 blocks it needs 10, for which 10 are reserved. `check` drops the reservation."""
    if kept:
        monkeypatch.setattr(BareScheduler, "_reserve_nothing_twice", lambda self: None)
    scenario = Scenario(
        arrivals=(
            Arrival("stores", (("prefix", 289),)),
            Arrival("loads", (("prefix", 289), ("rest", 20)), at_step=20),
        ),
        resets=(CachesReset(15),),
        workers=Workers(latest_steps=0, fails=((wait("loads", 0), 0),)),
        num_blocks=16,
    )
    played = play(scenario, OFFLOADING)
    assert {*played.unfinished} == ({"loads"} if kept else set())
    assert [each.rule for each in played.findings] == (["never-scheduled"] if kept else [])


@pytest.mark.parametrize("first", [True, False])
def test_a_request_whose_load_has_failed_waits_ahead_of_those_that_hold_blocks(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Of 39 blocks the request behind it holds 8, and 20 are reserved for it; it needs 24. `check` lets it wait behind."""
    if first:
        monkeypatch.setattr(BareScheduler, "_queue_who_holds_nothing", lambda self: None)
    scenario = Scenario(
        arrivals=(
            Arrival("stores", (("long", 769),)),
            Arrival("stores more", (("short", 257),), at_step=10),
            Arrival("fails", (("long", 769), ("rest", 20)), at_step=30),
            Arrival("loads", (("short", 257), ("more", 620)), at_step=30),
        ),
        resets=(CachesReset(25),),
        workers=Workers(latest_steps=0, fails=((wait("fails", 0), 0),)),
        num_blocks=40,
    )
    played = play(scenario, OFFLOADING)
    assert {*played.unfinished} == ({"fails", "loads"} if first else set())
    assert {each.rule for each in played.findings} == ({"never-scheduled"} if first else set())


@pytest.mark.parametrize("resets", [1, 2])
def test_the_offloading_connector_dies_of_a_second_reset_while_it_loads(resets: int) -> None:
    scenario = Scenario(
        arrivals=(Arrival("first", (PREFIX,), 2), Arrival("second", (PREFIX, ("a", 50)), 2, at_step=100)),
        resets=(CachesReset(90), *resets * (CachesReset(103, prefix_cache=False, connector=True),)),
        workers=Workers(latest_steps=40, seed=3),
    )
    played = play(scenario, OFFLOADING)
    assert played.lookups[-1].is_async, "the second request loads"
    assert (played.error is not None) is (resets == 2)
    assert "assert not self._current_batch_jobs_to_flush" in played.traceback or resets == 1
    assert 'File "vllm/distributed/' in played.traceback or resets == 1, "no folder of this machine is in a report"


@pytest.mark.parametrize("stored", [True, False])
def test_the_offloading_connector_dies_of_a_load_in_the_first_step_after_a_reset(stored: bool) -> None:
    """A reset preempts a request, and the same step looks it up and loads for it again."""
    scenario = Scenario(
        arrivals=(Arrival("runs", (PREFIX, ("a", 50)), 20),),
        resets=(CachesReset(10, running=True, connector=not stored),),
        workers=Workers(latest_steps=0),
    )
    played = play(scenario, OFFLOADING)
    assert played.lookups[-1].epoch == 1, "the request was preempted, and looked up again"
    assert bool(played.lookups[-1].returned) is stored
    assert (played.error is not None) is stored
    assert "assert self._jobs[any_jid].is_store" in played.traceback or not stored


@pytest.mark.parametrize("name", ["same", "other"])
def test_the_offloading_connector_dies_of_an_id_that_comes_again_while_a_store_is_open(
    tmp_path: Path, name: str
) -> None:
    stage = BareScheduler(tmp_path, {**OFFLOADING, "engine_id": "again"}, workers=Workers(latest_steps=20, seed=1))
    stage.add("same", tokens((PREFIX,)), 1)
    stage.run()
    stage.step()
    stage.add(name, tokens((("a", 128),)), 30)
    if name == "other":
        stage.run()
        return
    with pytest.raises(KeyError):
        stage.run()


@pytest.mark.parametrize("load_async", [True, False])
def test_beside_a_connector_that_loads_between_steps_the_offloading_connector_does_not_wait_for_a_store(
    load_async: bool,
) -> None:
    """The first child loads into the blocks of a request that has just ended, while the second child still stores them."""
    first = configuration("OffloadConnector", {"chunk_size": 64, "load_async": load_async})
    scenario = Scenario(
        arrivals=(
            Arrival("head", (("head", 512), ("a", 1))),
            Arrival("stores", (("b", 600),), at_step=60),
            Arrival("loads", (("head", 512), ("c", 40)), 2, at_step=62),
        ),
        resets=(CachesReset(55),),
        num_blocks=24,
        settings={"max_num_batched_tokens": 800},
        workers=Workers(latest_steps=20, seed=2),
    )
    played = play(scenario, configuration("MultiConnector", {"connectors": [first, OFFLOADING]}))
    assert [finding.rule for finding in played.findings] == ["block-reuse"] * load_async
    for finding in played.findings:
        assert (finding.request, finding.numbers["other"], finding.numbers["transfer"]) == ("stores", "loads", "store")
        assert finding.connector == "OffloadingConnector"


def test_the_offloading_connector_stores_stale_blocks_of_a_window(
    tmp_path: Path, recorded: Callable[[], list[Event]]
) -> None:
    """What is found is what vLLM's own tables say: the request of the plan has none of these blocks any more."""
    groups = (CacheGroup(FULL), CacheGroup(SLIDING, window=100))
    extra = {"cpu_bytes_to_use": 1 << 22, "kvtrail": {"level": "detailed"}}
    bare = scheduler(
        tmp_path, "TracedOffloadingConnector", extra, num_blocks=128, max_num_batched_tokens=200, groups=groups
    )
    connector: Any = bare.scheduler.connector
    manager, build = bare.scheduler.kv_cache_manager, connector.build_connector_meta
    anothers: set[tuple[str, int]] = set()

    def built(output: Any) -> Any:
        plan = build(output)
        for job in plan.store_jobs.values():
            if job.req_id in bare.scheduler.requests:
                held = {block for ids in manager.get_block_ids(job.req_id) for block in ids}
                pool = manager.block_pool.blocks
                stored = set(map(int, job.src_spec.block_ids))
                anothers.update((job.req_id, block) for block in stored - held if pool[block].ref_cnt)
        return plan

    connector.build_connector_meta = built
    storm(bare, seed=4, requests=120, reset_running=False)
    detector = Detector()
    detector.feed(recorded())
    found = [each for held in detector.findings.values() for each in held.values() if each.rule == "plan-blocks"]
    assert found
    assert {(finding.request, finding.numbers["block"]) for finding in found} <= anothers


@pytest.mark.parametrize("tokens_of_prompt", [126, 127, 128])
def test_a_sliding_window_lacks_a_block_after_a_whole_prompt_was_loaded(tokens_of_prompt: int) -> None:
    """vLLM computes the last token again, which sees one token more than the blocks that it kept."""
    groups = (CacheGroup(FULL), CacheGroup(SLIDING, window=64))
    scenario = paired(requests=(Request("r-0", (("own", tokens_of_prompt),)),), groups=groups)
    pair = play_pair(scenario, configuration("NixlConnector", {}))
    assert pair.loads_read == 1
    assert {finding.rule for finding in pair.findings} == ({"null-block"} if tokens_of_prompt == 127 else set())
    if tokens_of_prompt == 127:
        assert "1 of them has wrong KV in layer.1, the first of them token 63 in block 0" in pair.wrong["r-0"]
    else:
        assert not pair.wrong


@pytest.mark.parametrize("seed", range(3))
def test_a_failed_write_is_not_reported(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the post, in flight, or after its bytes have moved: unless these have, the request waits forever, and its heartbeats
    keep the blocks of the engine that prefilled as long."""
    monkeypatch.setattr(pairs, "MOST_TICKS", 400)
    scenario = paired(requests=(Request("r-0", (("own", 200),)),), network=Schedule(seed=seed, failing=1.0))
    pushed, pulled = play_pair(scenario, PUSH), play_pair(scenario, PULL)
    assert not pulled.left
    assert pulled.answered == {"r-0"}
    waits = "stuck-load" in {finding.rule for finding in pushed.findings}
    assert waits is (pushed.network.failed[0][1] is not Fails.AFTER)
    assert pushed.left.keys() == ({PREFILL, DECODE} if waits else set())


def test_a_registration_after_the_lease_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "MOST_TICKS", 400)
    scenario = paired(requests=(Request("r-0", (("own", 200),), kept_ticks=100),), lease_s=6)
    pair = play_pair(scenario, PUSH)
    assert pair.left.keys() == {DECODE}
    assert {finding.rule for finding in pair.findings} == {"stuck-load"}
    assert not pair.remembered, "what the other engine keeps is of a request that still waits"


def test_the_writing_engine_does_not_hear_of_a_request_that_left_the_queue() -> None:
    scenario = paired(requests=(Request("r-0", (("own", 200),), leaves=Point.QUEUED),), decode_every=3)
    pushed, pulled = play_pair(scenario, PUSH), play_pair(scenario, PULL)
    assert pushed.disconnected == pulled.disconnected == {"r-0": Point.QUEUED}
    expired = [[event for event in pair.events if isinstance(event, Free)] for pair in (pushed, pulled)]
    assert [len(each) for each in expired] == [1, 0], "its blocks are kept until the lease ends"
    assert any("_recving_metadata" in place for place in pushed.remembered)
    assert not pulled.remembered


def test_two_clients_with_one_id_get_each_others_kv_where_it_is_written() -> None:
    one, two = Request("same", (("one", 200),), kept_ticks=8), Request("same", (("two", 200),), at_tick=1)
    scenario = paired(requests=(one, two), network=AT_ONCE)
    pushed, pulled = play_pair(scenario, PUSH), play_pair(scenario, PULL)
    assert (dict(pulled.wrong), pulled.findings) == ({}, [])
    assert pushed.wrong
    rules = Counter(finding.rule for finding in pushed.findings)
    assert rules == {"handoff-mismatch": 2, "byte-drift": 2, "ambiguous-handoff": 1}
    crossed = [each.explanation for each in pushed.findings if each.rule == "handoff-mismatch"]
    assert all("it wrote that into the blocks of this request" in each for each in crossed)


def test_who_writes_gives_the_blocks_back_while_it_does() -> None:
    """The lease ends while the write is in flight, and the next prompt overwrites the blocks."""
    beside = tuple(Arrival(f"p-{n}", ((f"p {n}", 300),), 1, at_step=30 + 8 * n) for n in range(30))
    scenario = paired(
        requests=(Request("r-0", (("own", 200),)),),
        arrivals=beside,
        lease_s=6,
        num_blocks=28,
        network=Schedule(transfer_ticks=200, message_ticks=0, heartbeats_lost=1.0),
    )
    pair = play_pair(scenario, PUSH)
    assert pair.wrong.keys() == {"r-0"}
    (stale,) = [finding for finding in pair.findings if finding.numbers.get("where") == "taken"]
    assert pair.names[stale.request or ""] == "r-0"
    assert "its own write of them to the other engine ended" in stale.explanation
    (late,) = [finding for finding in pair.findings if finding.numbers.get("where") == "given"]
    assert pair.names[late.request or ""] == "r-0"
    assert "its own write of them to the other engine ended" in late.explanation


@pytest.mark.parametrize("returns", Return)
def test_an_engine_that_is_started_again_with_its_id_is_read_as_if_it_were_the_first(returns: Return) -> None:
    """With another id, the handshake fails and the prompt is computed."""
    scenario = paired(
        requests=(Request("r-0", (("own", 200),), kept_ticks=20),), prefill_dies_at=8, prefill_returns=returns
    )
    pair = play_pair(scenario, PULL)
    assert pair.answered == {"r-0"}
    if returns is Return.OTHER:
        assert (dict(pair.wrong), pair.findings) == ({}, [])
        return
    assert pair.wrong.keys() == {"r-0"}
    (stale,) = [finding for finding in pair.findings if finding.numbers.get("where") == "taken"]
    assert pair.names[stale.request or ""] == "r-0"
    assert "reported to its new launch" in stale.explanation


def test_a_decoding_engine_that_dies_leaves_nothing_behind() -> None:
    requests = tuple(Request(f"r-{number}", ((f"own {number}", 200),), at_tick=3 * number) for number in range(4))
    pair = play_pair(paired(requests=requests, decode_dies_at=10, lease_s=6), PULL)
    assert pair.errors.keys() == {DECODE}
    assert (pair.findings, dict(pair.unfinished), dict(pair.remembered)) == ([], {}, {})
    assert any(isinstance(event, Free) and event.lease_expired for event in pair.events)

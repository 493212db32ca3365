"""Each rule finds its fault on the real scheduler, and a fault that no rule is for does not exist.

A fault is played once. Its recording is judged by the rules, cut down to what shows the fault, and given away by the pages of
its requests.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bare_scheduler import scheduler, storm
from downloads import Giving
from faults import FAULTS, NATIVE, OF_PAIRS, RULES, VARIANTS
from faults.transfers import StuckStep
from faulty_pairs import DECODE, drawn, play_pair, with_pair
from history import heartbeats, loaded
from minimal import assert_minimal
from recorded_runs import faulty
from recording import recording

from kvtrail.connector.demo.workload import stale_lookup
from kvtrail.connector.known.nixl.stand_in.network import Schedule
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.bare_scheduler import HANDED_ON, BareScheduler
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.cache_groups import FULL, MAMBA, SLIDING, CacheGroup
from kvtrail.tracer.events.capabilities import declaration
from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.events.semconv import Kind, Level
from kvtrail.tracer.history.history import History, in_order, load
from kvtrail.tracer.history.judging import findings_of
from kvtrail.tracer.history.minimize import minimize
from kvtrail.tracer.model.findings import Finding, Verdict
from kvtrail.tracer.rules import pages

LATER_S = 900.0
"""Longer than any rule waits."""


def run_storm(bare: BareScheduler) -> None:
    storm(bare, seed=3, requests=60)


def run_groups(bare: BareScheduler) -> None:
    storm(bare, seed=3, requests=60, reset_running=False)


def run_shared_prefix(bare: BareScheduler) -> None:
    """One prefix after the other, each time from the host; then the same prompt in full."""
    rng = random.Random(0)
    head = [rng.randrange(3, 512) for _ in range(256)]
    for number in range(6):
        tail = [] if number > 3 else [rng.randrange(3, 512) for _ in range(60)]
        bare.add(f"r-{number}", head + tail, 4)
        for _ in range(200):
            bare.step()
            if not bare.scheduler.has_unfinished_requests():
                break
        bare.scheduler.reset_prefix_cache()


def run_longer(bare: BareScheduler) -> None:
    """A prefix is stored; then a prompt that goes on behind it, twice: the step that loads the prefix stores the rest."""
    prompt = [3 + n % 500 for n in range(450)]
    for number, length in enumerate((256, 450, 450)):
        bare.add(f"r-{number}", prompt[:length], 4)
        bare.run()
        bare.scheduler.reset_prefix_cache()


def run_deferred(bare: BareScheduler) -> None:
    """A prefix is stored; then it is asked for in some steps."""
    prompt = list(range(3, 303))
    bare.add("stores", prompt, 2)
    bare.run()
    bare.scheduler.reset_prefix_cache()
    bare.add("asks", prompt, 2)
    for _ in range(12):
        bare.step()


def run_retries(bare: BareScheduler) -> None:
    """A prefix is stored; then requests with it wait some steps for the blocks of two that are about to end."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, 512) for _ in range(count)]

    head = tokens(64)
    for number in range(6):
        bare.add(f"first-{number}", tokens(990), 24 + number)
        second = bare.add(f"second-{number}", tokens(990), 30)
        while not second.num_output_tokens:
            bare.step()
        bare.add(f"r-{number}", head + tokens(600), 3)
        bare.run()
        bare.scheduler.reset_prefix_cache()


def run_many_short(bare: BareScheduler) -> None:
    """Many that grow together until the pool is empty."""
    for number in range(16):
        bare.add(f"r-{number}", [3 + number] * 40, 300)
    for _ in range(400):
        bare.step()


def run_waiting(bare: BareScheduler) -> None:
    """A prefix is stored; then requests with it wait for blocks for a long time."""
    rng = random.Random(0)
    head = [rng.randrange(3, 512) for _ in range(256)]
    for number in range(12):
        bare.add(f"r-{number}", head + [rng.randrange(3, 512) for _ in range(400)], 60)
    for step in range(400):
        bare.step()
        if step % 7 == 0:
            bare.scheduler.reset_prefix_cache()


def run_short_ones(bare: BareScheduler) -> None:
    """Short requests, one after the other, each with a prompt of its own."""
    for number in range(7):
        bare.add(f"r-{number}", [3 + number] * 70, 2)
        for _ in range(12):
            bare.step()


def run_reset(bare: BareScheduler) -> None:
    for number in range(2):
        bare.add(f"r-{number}", list(range(3, 303)), 4)
        bare.run()
        while bare.scheduler.has_requests():  # until its stores have ended
            bare.step()
        bare.scheduler.reset_prefix_cache(reset_connector=True)


def run_salts(bare: BareScheduler) -> None:
    """The same prompt under two salts."""
    for number in range(2):
        bare.add(f"r-{number}", list(range(3, 303)), 4, salt=f"caller-{number}")
        bare.run()


def run_handoff(bare: BareScheduler) -> None:
    bare.add("r-0", list(range(3, 303)), 1, transfer=HANDED_ON)
    bare.run()


def run_handoff_preempted(bare: BareScheduler) -> None:
    """A request is preempted while its last step runs, as asynchronous scheduling may do, and the step's token ends it."""
    from vllm.v1.outputs import ModelRunnerOutput

    request = bare.add("r-0", list(range(3, 303)), 1, transfer=HANDED_ON)
    output = bare.scheduler.schedule()
    bare.scheduler.running.remove(request)
    bare.scheduler._preempt_request(request, 0.0)
    answer = ModelRunnerOutput(req_ids=["r-0"], req_id_to_index={"r-0": 0}, sampled_token_ids=[[3]])
    bare.scheduler.update_from_output(output, answer)


def run_long_prompt(bare: BareScheduler) -> None:
    """One prompt; its output fills further chunks."""
    bare.add("r-0", [3 + n % 500 for n in range(900)], 200)
    bare.run()


def run_stale_lookup(bare: BareScheduler) -> None:
    for job in stale_lookup():
        bare.add(job.id, list(job.prompt), job.max_tokens)
    bare.run()


def run_stuck(bare: BareScheduler) -> None:
    """One request, and a step that is still under way when the recording ends."""
    StuckStep.waits.clear()
    threading.Thread(target=run_shared_prefix, args=(bare,), daemon=True).start()
    StuckStep.waits.wait()


def later(events: Sequence[Event], fault: str) -> list[Event]:
    """Heartbeats for a quarter of an hour after the events; the engine makes no steps, if that is the fault, or many."""
    steps = {"poll-starvation": 0, "stuck-step": 0, "stalled-transfers": 1000}.get(fault)
    return heartbeats(events, later_s=LATER_S, steps=steps, running=1 if fault == "stuck-step" else None)


RUNS: dict[str, Callable[[BareScheduler], None]] = {
    "stale-lookup": run_stale_lookup,
    "endless-deferral": run_deferred,
    "failed-load-hit": run_longer,
    "reset-hit": run_reset,
    "reset-ignored": run_reset,
    "retried-lookup": run_retries,
    "rank-disagreement": run_waiting,
    "evicted-hit": run_retries,
    "plan-blocks": run_storm,
    "idle-preemption": run_many_short,
    "block-reuse": run_storm,
    "phantom-hit": run_storm,
    "store-uncomputed": run_storm,
    "alloc-mismatch": run_storm,
    "under-report": run_storm,
    "key-collision": run_salts,
    "refused-handoff": run_handoff,
    "handoff-preempted": run_handoff_preempted,
    "joint-boundary": run_waiting,
    "self-eviction": run_long_prompt,
    "store-after-end": run_storm,
    "store-under-load": run_storm,
    "handoff-offered-again": run_storm,
    "stalled-transfers": run_short_ones,
    "stuck-step": run_stuck,
    "unloaded-hit": run_storm,
    "null-block": run_groups,
    "stale-block": run_groups,
    "state-boundary": run_groups,
    "async-load-fails": run_groups,
    **dict.fromkeys(
        ("groups-exchanged", "group-shifted", "group-load-fails", "failed-receive", "longest-group-hit"), run_groups
    ),
}


OF_CHILDREN = ("unselected-load", "received-unasked")
"""Faults of a child of a MultiConnector."""
NATIVE_VARIANTS = (
    "handoff-offered-again", "reset-ignored", "groups-exchanged", "group-shifted", "group-load-fails", "longest-group-hit",
    "async-load-fails", "failed-receive",
)  # fmt: skip
"""Variants for vLLM's OffloadingConnector."""
OF_GROUPS = (
    "null-block",
    "stale-block",
    "state-boundary",
    "groups-exchanged",
    "group-shifted",
    "group-load-fails",
    "failed-receive",
    "longest-group-hit",
)
"""Faults of models with several KV cache groups; one of them has a sliding window, or is recurrent."""
WITH_WINDOW = (CacheGroup(FULL), CacheGroup(SLIDING, window=100))
WITH_STATES = (CacheGroup(FULL), CacheGroup(MAMBA))
"""Their groups."""
OF_DRAFTS = ("early-drafts",)
"""Faults of engines with speculative tokens."""
SLOW = {"callers-gave-up"}
"""Faults that show after minutes of recorded time."""
OF_PARTS = (
    "stale-lookup",
    "block-reuse",
    "key-collision",
    "phantom-hit",
    "store-short",
    "evicted-hit",
    "failed-load-resume",
)
"""Faults that the spans of a part show by themselves, and faults for which more of the engine is needed."""
MAX_EVENTS = 100
"""No fault needs more to be shown; the recordings have up to some thousands."""


def build(folder: Path, fault: str, level: Level) -> BareScheduler:
    kvtrail = {"kvtrail": {"level": level}}
    if fault in (*NATIVE, *NATIVE_VARIANTS):
        groups = WITH_STATES if fault == "state-boundary" else WITH_WINDOW
        options = {"groups": groups, "num_blocks": 128, "max_num_batched_tokens": 200} if fault in OF_GROUPS else {}
        extra = {"cpu_bytes_to_use": 2_000_000 if fault == "longest-group-hit" else 50_000_000, **kvtrail}
        return scheduler(folder, f"Faulty:{fault}:OffloadingConnector", extra, **options)
    chunk = {"chunk_size": {"stale-lookup": 256, "failed-load-hit": 32}.get(fault, 64)}  # a step has 48 tokens
    if fault not in OF_CHILDREN:
        drafts = {"drafts": 3} if fault in OF_DRAFTS else {}
        return scheduler(folder, f"Faulty:{fault}:OffloadConnector", {**chunk, **kvtrail}, **drafts)
    role = {"kv_role": "kv_both", "kv_connector_extra_config": {**chunk, **kvtrail}}
    children = [
        {"kv_connector": "OffloadConnector", **role},
        {"kv_connector": f"Faulty:{fault}:OffloadConnector", "kv_connector_module_path": "kvtrail.connector", **role},
    ]
    return scheduler(folder, "MultiConnector", {"connectors": children}, disable_hybrid_kv_cache_manager=True)


def play(fault: str, level: Level, folder: Path) -> History:
    """What is recorded in a load that brings out a fault."""
    if fault in SLOW:
        return loaded(faulty(fault, "OffloadingConnector", "abort", 1, level=level).events)
    if fault == "unread-load":
        network = Schedule(transfer_ticks=6)
        own = configuration(f"Faulty:{fault}:NixlConnector", {"kvtrail": {"level": level}})
        return loaded(play_pair(with_pair(drawn(0, requests=4), network=network), own).recorded[DECODE])
    trace = folder / "trace.jsonl"
    # Many kill the engine, as in real life.
    with recording(trace), contextlib.suppress(AssertionError, KeyError, IndexError, RuntimeError, ValueError):
        RUNS.get(fault, run_shared_prefix)(build(folder, fault, level))
    return load([trace])


@pytest.fixture(scope="module")
def played(fault: str, tmp_path_factory: pytest.TempPathFactory) -> History:
    """The recording of a fault at level `detailed`. The tests of one fault run one after the other (`of_each`)."""
    return play(fault, Level.DETAILED, tmp_path_factory.mktemp("fault"))


of_each = partial(pytest.mark.parametrize, "fault", scope="module")


def found_in(events: Sequence[Event], fault: str) -> list[Finding]:
    """The findings in a recording of a fault, a quarter of an hour later."""
    detector = Detector()
    detector.feed(events)
    detector.settle()
    detector.feed(later(events, fault))
    detector.tick()
    return [finding for held in detector.findings.values() for finding in held.values()]


@of_each(FAULTS)
def test_the_rule_finds_its_fault_on_the_real_scheduler(played: History, fault: str) -> None:
    found = found_in(played.events, fault)
    assert RULES[fault] in {finding.rule for finding in found}, sorted({finding.rule for finding in found})
    assert all(finding.explanation for finding in found)


@of_each(FAULTS)
def test_the_recording_is_cut_down_to_what_shows_the_fault(played: History, fault: str) -> None:
    alive = loaded(later(played.events, fault))
    result = minimize(History(moments=tuple(in_order([*played.moments, *alive.moments]))), rule=RULES[fault])
    assert result.finding.rule == RULES[fault]
    beats = sum(isinstance(event, Heartbeat) for event in result.history.events)
    assert result.events - beats <= MAX_EVENTS
    assert_minimal(result)


@of_each(OF_PARTS)
def test_a_part_of_the_recording_says_no_more_than_its_page(played: History, fault: str, tmp_path: Path) -> None:
    sidecar = Giving(tmp_path)
    sidecar.hear([*played.events, *later(played.events, fault)])
    sidecar.assert_parts_say_no_more_than_pages()
    known = {finding["id"] for finding in sidecar.reader.findings(limit=1000)}
    for page, path in sidecar.pages():
        assert findings_of(load([path]).events).keys() <= known, page["request"]["request"]
    sidecar.pipeline.close()


@of_each(VARIANTS)
def test_a_rule_finds_the_other_faults_of_its_class(played: History, fault: str) -> None:
    found = found_in(played.events, fault)
    assert VARIANTS[fault].rule in {finding.rule for finding in found}, sorted({finding.rule for finding in found})


@of_each(["short-load-fails"])
def test_a_failed_call_names_the_short_load_of_its_step_which_has_no_finding_of_its_own(
    played: History, fault: str
) -> None:
    (finding,) = found_in(played.events, fault)
    assert finding.rule == "failed-call"
    assert [each.kind for each in finding.witness] == [Kind.LOAD, Kind.FAILURE]
    assert finding.numbers["loaded"] == finding.numbers["expected"] - 32


@pytest.mark.parametrize("fault", FAULTS)
def test_at_level_basic_only_the_rules_of_that_level_find_their_faults(tmp_path: Path, fault: str) -> None:
    found = found_in(play(fault, Level.BASIC, tmp_path).events, fault)
    least = Level.DETAILED if fault == "store-short" else pages.page(RULES[fault]).level  # as its page says
    assert (RULES[fault] in {finding.rule for finding in found}) == (least is Level.BASIC), {
        each.rule for each in found
    }
    assert all(finding.explanation for finding in found)


@pytest.mark.parametrize(("size", "would_be"), [(500_000, {"self-eviction"}), (4_000_000, set())])
def test_vllms_own_connector_pushes_a_prompts_own_head_out_of_a_store_that_is_smaller(
    tmp_path: Path, recorded: Callable[[], list[Event]], size: int, would_be: set[str]
) -> None:
    """It needs no fault (docs/findings.md), and is a matter of the store's size: it is no finding, as its capability says."""
    bare = scheduler(tmp_path, "TracedOffloadingConnector", {"cpu_bytes_to_use": size})
    run_long_prompt(bare)
    events = recorded()

    def found() -> set[str]:
        detector = Detector()
        detector.feed(events)
        detector.settle()
        return {finding.rule for held in detector.findings.values() for finding in held.values()}

    assert found() == set()
    for event in events:
        event.capabilities = declaration({})
    assert found() == would_be


@pytest.mark.parametrize("has_states", [False, True])
def test_vllms_own_connector_with_several_groups_is_accused_of_nothing(
    tmp_path: Path, recorded: Callable[[], list[Event]], has_states: bool
) -> None:
    options: dict[str, Any] = {"max_num_batched_tokens": 200} if has_states else {}
    groups = WITH_STATES if has_states else WITH_WINDOW
    extra = {"cpu_bytes_to_use": 50_000_000}
    bare = scheduler(tmp_path, "TracedOffloadingConnector", extra, groups=groups, num_blocks=128, **options)
    run_groups(bare)
    detector = Detector()
    detector.feed(recorded())
    detector.settle()
    found = {finding.rule for held in detector.findings.values() for finding in held.values()}
    assert found <= (set() if has_states else {"plan-blocks"}), "what docs/findings.md says of a window"
    judged = ["null-block", "plan-blocks", "partial-hit", *(["state-boundary"] if has_states else [])]
    assert all(detector.verdicts[rule, Verdict.OK] > 10 for rule in judged)


def test_every_rule_has_a_fault_and_every_fault_a_rule() -> None:
    """That about bytes apart, which finds its faults on real engines."""
    assert {*RULES.values(), *OF_PAIRS.values()} == pages.files().keys() - {"byte-drift"}

"""Soundness is a property: no damage makes a drift of a healthy run, and none hides a fault if all its events arrived.

A slice of `benchmarks/damage.py`, which judges a million events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import is_
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

import loss_injection
from damages import DAMAGES, S, by_recorder, damaged, mixture, sent
from faults import FAULTS, OF_PAIRS
from loss_injection import CORRECT_PAIRS, FAULTY_PAIRS
from naming import naming
from recorded_runs import CONNECTORS, Run
from sidecars import live, read, stored

from kvtrail.connector.simulate.check.profiles import PROFILES
from kvtrail.tracer.events.cache_groups import FULL, MAMBA, SLIDING, groups_of
from kvtrail.tracer.events.events import Event, Heartbeat
from kvtrail.tracer.rules.rule import EngineRule
from kvtrail.tracer.rules.rule_set import all_rules

FAULTY = (
    "alloc-mismatch", "callers-gave-up", "evicted-hit", "failed-load-resume", "key-mismatch", "load-store-overlap",
    "over-report", "rank-disagreement", "retried-lookup", "stale-block", "stats-mismatch", "store-uncomputed",
    "stuck-promotion", "unselected-load",
)  # fmt: skip
"""One injected fault in four, of every kind."""
assert {*FAULTY} <= FAULTS.keys()


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.long)])
def runs(request: pytest.FixtureRequest) -> tuple[Run, ...]:
    """Healthy runs of every profile with a connector, and of some with another one; or with all."""
    if request.param == "all":
        return loss_injection.healthy_runs(1)
    twice = tuple(PROFILES)[::3]
    once = tuple(profile for profile in PROFILES if profile not in twice)
    chosen = [
        *loss_injection.healthy_runs(1, of_each=2, profiles=twice),
        *loss_injection.healthy_runs(1, of_each=1, profiles=once),
    ]
    assert {run.name.split("/")[0] for run in chosen} == {*CONNECTORS}
    return tuple(chosen)


def test_no_damage_makes_a_drift(runs: tuple[Run, ...]) -> None:
    false = []
    for seed in range(max(2 * len(DAMAGES), len(runs))):  # each of them alone, and as many mixtures
        name, history = loss_injection.healthy_history(runs, seed)
        names = [list(DAMAGES)[seed // 2 % len(DAMAGES)]] if seed % 2 else mixture(seed)
        delivery = damaged(sent(history), names, seed)
        false += [(seed, name, names, each) for each in loss_injection.false_findings(name, history, delivery)]
    assert false == []


def test_nothing_is_found_in_what_was_recorded(runs: tuple[Run, ...]) -> None:
    for run in runs:
        loss_injection.known_faults(run.name, live(sent(run.events)).found)


def test_models_with_a_window_and_with_recurrent_states_are_among_the_healthy_runs(runs: tuple[Run, ...]) -> None:
    kinds = {group.kind for run in runs for event in run.events for group in groups_of(event.groups)}
    assert {FULL, SLIDING, MAMBA} <= kinds


def test_a_sampler_that_leaves_requests_out_causes_no_findings(runs: tuple[Run, ...]) -> None:
    """They store, evict and hold blocks all the same, and no number is missing."""
    false = []
    for seed, run in enumerate(runs):
        delivery = damaged(sent(run.events), ["sampled-only"], seed)
        false += [(run.name, each) for each in loss_injection.false_findings(run.name, run.events, delivery)]
    assert false == []


def test_nor_in_a_file_or_through_a_sidecar_that_restarts(runs: tuple[Run, ...], tmp_path: Path) -> None:
    for seed in range(len(runs) // 7):
        name, history = loss_injection.healthy_history(runs, f"file {seed}")
        delivery = damaged(sent(history), [*mixture(seed), "restart"], seed)
        known = loss_injection.known_faults(name, live(sent(history)).found)
        folder = tmp_path / str(seed)
        folder.mkdir()
        for judged in (*read(delivery, folder), stored(delivery, folder)):
            with naming((seed, name, delivery.damages)):
                assert set(judged.found) <= known


@pytest.mark.costly("damages the recording of every fault")
def test_a_fault_with_all_its_events_is_found_after_any_damage() -> None:
    total = loss_injection.Caught()
    shown = set()
    for fault in FAULTY:
        for run, found in loss_injection.faulty_runs(fault, 1):
            shown.add(fault)
            for seed in range(4):
                delivery = damaged(sent(run.events), mixture(f"{fault} {seed}"), seed)
                for caught in loss_injection.caught(run, found, delivery).values():
                    total.add(caught)
    assert shown == set(FAULTY), "a run with each fault shows it"
    assert total.whole > 200
    assert total.whole_found >= 0.9 * total.whole
    assert total.seen_found >= 0.85 * total.seen


@pytest.mark.parametrize("seeds", [range(42), pytest.param(range(42, 120), marks=pytest.mark.long)], ids=str)
def test_no_damage_to_one_side_or_both_makes_a_drift_of_a_pair(tmp_path: Path, seeds: range) -> None:
    false = []
    for seed in seeds:
        kind = seed // 2 % len(CORRECT_PAIRS)
        events = loss_injection.pair(kind % 2, CORRECT_PAIRS[kind])
        delivery = loss_injection.damaged_sides(events, seed)
        ways = [live(delivery)]
        if seed % 40 == 0:
            (tmp_path / str(seed)).mkdir()
            ways += [*read(delivery, tmp_path / str(seed)), stored(delivery, tmp_path / str(seed))]
        false += [(seed, delivery.damages, each) for judged in ways for each in judged.found]
    assert false == []


@pytest.mark.parametrize("seeds", [range(48), pytest.param(range(48, 180), marks=pytest.mark.long)], ids=str)
def test_after_any_damage_a_faulty_pair_has_no_new_findings(seeds: range) -> None:
    found_again: Counter[str] = Counter()
    total: Counter[str] = Counter()
    pairs = [loss_injection.pair(0, kind) for kind in FAULTY_PAIRS]
    whole = [{(rule, request) for rule, request, _ in live(sent(events)).found} for events in pairs]
    for seed in seeds:
        events, named = pairs[seed % len(pairs)], whole[seed % len(pairs)]
        delivery = loss_injection.damaged_sides(events, seed)
        again = {(rule, request) for rule, request, _ in live(delivery).found}
        assert again <= named, (seed, delivery.damages)
        total.update(rule for rule, _ in named)
        found_again.update(rule for rule, _ in again)
    assert {*OF_PAIRS.values()} - {"ambiguous-handoff", "peer-always-failing"} <= {*total}  # which no kind here plants
    assert {*found_again} == {*total}
    assert found_again.total() > 0.3 * total.total(), (found_again, total)


@pytest.mark.parametrize("requests", [700, pytest.param(2_000, marks=pytest.mark.long)])
def test_after_one_lost_event_an_engine_is_known_again(requests: int) -> None:
    """A day of 20,000 requests may have one judgement in a hundred unknown, so the same loss in a tenth of it one in ten."""
    run = loss_injection.a_day(requests)
    wide = {rule.id for rule in all_rules() if isinstance(rule, EngineRule)}
    quarter_ns = run.events[0].end_ns + (run.last_ns - run.events[0].end_ns) // 4
    for kind in ("kv.store.plan", "kv.evict"):
        gone = next(e for e in run.events if e.kind == kind and e.end_ns > quarter_ns and e.recorder == run.scheduler)
        shares = loss_injection.unknown_shares(run.events, lost=partial(is_, gone), from_ns=gone.end_ns)
        judged = {rule: counts for rule, counts in shares.items() if rule in wide}
        assert {"phantom-hit", "evicted-in-use"} <= set(judged)
        for rule, (total, unknown) in judged.items():
            with naming((kind, rule)):
                assert unknown <= 200 / requests * total


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_each_engine_wide_rule_is_known_again_in_a_day(rounds: int) -> None:
    """For each rule at most one judgement of a day in a hundred is unknown, so one in ten of a tenth of it, after one lost
    event or ten minutes after a late start."""
    run = loss_injection.a_written_day(rounds)
    assert not live(sent(run.events)).found
    quarter_ns = run.events[0].end_ns + (run.last_ns - run.events[0].end_ns) // 4
    wide = {rule.id for rule in all_rules() if isinstance(rule, EngineRule)}
    wide -= {"plan-blocks", *OF_PAIRS.values()}  # the day has one group, and one engine

    def starts_late(event: Event) -> bool:
        return event.end_ns < quarter_ns

    damages: dict[str, tuple[Callable[[Event], bool], int]] = {"late": (starts_late, quarter_ns + 600 * S)}
    for kind in ("kv.store.plan", "kv.evict", "kv.recorder", "kv.transfer.end", "kv.load.error"):
        gone = next(e for e in run.events if e.kind == kind and e.end_ns > quarter_ns)
        damages[kind] = partial(is_, gone), gone.end_ns
    for name, (lost, from_ns) in damages.items():
        shares = loss_injection.unknown_shares(run.events, lost=lost, from_ns=from_ns)
        assert wide <= set(shares), name
        for rule, (total, unknown) in shares.items():
            if rule in wide:
                with naming((name, rule)):
                    assert unknown <= 10 / rounds * total


def test_the_harness_sends_what_a_recorder_would(runs: tuple[Run, ...]) -> None:
    """Numbers without gaps, a heartbeat every five seconds with the true number, and a goodbye."""
    for run in runs[:10]:
        for events in by_recorder(sent(run.events)).values():
            beats = [event for event in events if isinstance(event, Heartbeat)]
            with naming(run.name):
                assert [event.sequence for event in events] == list(range(len(events)))
                assert all(beat.recorder_recorded == beat.sequence for beat in beats)
                assert max(b.end_ns - a.end_ns for a, b in pairwise(beats)) <= 5 * S
                assert [beat.recorder_closed for beat in beats] == [False] * (len(beats) - 1) + [True]


def test_no_damage_hides_a_loss(runs: tuple[Run, ...]) -> None:
    """What is lost is missing among the numbers, unless a sampler left it out, and then each event says so."""
    whole = sent(runs[0].events)
    numbers = {name: {event.sequence for event in events} for name, events in by_recorder(whole).items()}
    for name in DAMAGES:
        delivery = damaged(whole, [name], 1)
        for recorder, events in by_recorder(delivery).items():
            with naming(name):
                if name == "sampled-only":
                    assert all(event.sampled_only for event in events)
                elif name not in ("early-goodbye", "last-words"):  # these have numbers that nothing else would have had
                    assert {event.sequence for event in events} <= numbers[recorder]

"""Each rule finds its fault on the real scheduler, and a fault that no rule is for does not exist."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from bare_scheduler import scheduler, storm
from history import heartbeats

from kvtrail.connector.demo.workload import stale_lookup
from kvtrail.connector.faults import FAULTS, NATIVE
from kvtrail.connector.simulate.stages import BareScheduler
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.rules import all_rules
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.semconv import Kind, Level

MUCH_LATER_S = 3600.0


def run_storm(bare: BareScheduler) -> None:
    storm(bare, seed=3, requests=60)


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


def run_reset(bare: BareScheduler) -> None:
    for number in range(2):
        bare.add(f"r-{number}", list(range(3, 303)), 4)
        bare.run()
        bare.scheduler.reset_prefix_cache(reset_connector=True)


def run_salts(bare: BareScheduler) -> None:
    """The same prompt under two salts."""
    for number in range(2):
        bare.add(f"r-{number}", list(range(3, 303)), 4, salt=f"caller-{number}")
        bare.run()


def run_handoff(bare: BareScheduler) -> None:
    bare.add("r-0", list(range(3, 303)), 1, handed_on=True)
    bare.run()


def run_stale_lookup(bare: BareScheduler) -> None:
    for job in stale_lookup():
        bare.add(job.id, list(job.prompt), job.max_tokens)
    bare.run()


def later(events: Sequence[Event], fault: str) -> list[Event]:
    """Signs of life for an hour after the events: an engine that makes no steps, if that is the fault."""
    return heartbeats(events, later_s=MUCH_LATER_S, idle=fault == "poll-starvation")


RUNS: dict[str, Callable[[BareScheduler], None]] = {
    "stale-lookup": run_stale_lookup,
    "reset-hit": run_reset,
    "retried-lookup": run_retries,
    "rank-disagreement": run_waiting,
    "evicted-hit": run_retries,
    "plan-blocks": run_storm,
    "idle-preemption": run_many_short,
    "block-reuse": run_storm,
    "phantom-hit": run_storm,
    "store-uncomputed": run_storm,
    "wasted-prefetch": run_storm,
    "alloc-mismatch": run_storm,
    "under-report": run_storm,
    "key-collision": run_salts,
    "refused-handoff": run_handoff,
    "joint-boundary": run_waiting,
    "store-under-load": run_storm,
}


def build(folder: Path, fault: str, level: Level) -> BareScheduler:
    kvtrail = {"kvtrail": {"level": level}}
    if fault in NATIVE:
        return scheduler(folder, f"Faulty:{fault}:OffloadingConnector", {"cpu_bytes_to_use": 50_000_000, **kvtrail})
    chunk = {"chunk_size": 256} if fault == "stale-lookup" else {"chunk_size": 64}
    if fault != "unselected-load":
        return scheduler(folder, f"Faulty:{fault}:OffloadConnector", {**chunk, **kvtrail})
    role = {"kv_role": "kv_both", "kv_connector_extra_config": {**chunk, **kvtrail}}
    children = [
        {"kv_connector": "OffloadConnector", **role},
        {"kv_connector": f"Faulty:{fault}:OffloadConnector", "kv_connector_module_path": "kvtrail.connector", **role},
    ]
    return scheduler(folder, "MultiConnector", {"connectors": children}, disable_hybrid_kv_cache_manager=True)


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_rule_finds_its_fault_on_the_real_scheduler_at_its_level(
    tmp_path: Path, recorded: Callable[[], list[Event]], fault: str, level: Level
) -> None:
    bare = build(tmp_path, fault, level)
    with contextlib.suppress(AssertionError, KeyError, IndexError, ValueError):  # many kill the engine, as in real life
        RUNS.get(fault, run_shared_prefix)(bare)
    events = recorded()
    detector = Detector()
    detector.feed(events)
    detector.settle()
    detector.feed(later(events, fault))
    detector.tick()
    found: list[Any] = [finding for held in detector.findings.values() for finding in held.values()]
    (least,) = [rule.level for rule in all_rules() if rule.id == fault]
    expected = level in (least, Level.DETAILED)
    assert (fault in {finding.rule for finding in found}) == expected, sorted({finding.rule for finding in found})
    assert all(finding.explanation for finding in found)


def test_every_rule_has_a_fault_and_every_fault_a_rule() -> None:
    """Those about bytes apart, which find theirs on real engines."""
    assert set(FAULTS) == {rule.id for rule in all_rules() if Kind.BLOCK_CHECK not in rule.kinds}

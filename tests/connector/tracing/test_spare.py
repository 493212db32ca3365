"""When vLLM's real scheduler has the means to run one more request, as its recorder sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from bare_scheduler import scheduler

from kvtrail.connector.recording import recorder
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.tracing.spare import LONGEST_NS, SpareCapacity, spare_capacity

S = 10**9


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareScheduler]:
    with in_memory.exporters():
        made = scheduler(tmp_path, "OffloadConnector", max_num_seqs=2, max_num_batched_tokens=256)
        yield made
        made.close()


def spare_of(bare: BareScheduler) -> SpareCapacity:
    (mine,) = recorder.recorders()
    assert isinstance(mine.spare, SpareCapacity)
    return mine.spare


def test_the_scheduler_is_found_and_has_spare_capacity_until_its_slots_are_taken(bare: BareScheduler) -> None:
    spare = spare_of(bare)
    for number in range(3):
        bare.add(f"r-{number}", [3 + number] * 40, 20)
    bare.step()
    assert len(bare.scheduler.running) == 2
    assert not spare.has_spare
    bare.scheduler.finish_requests("r-2", bare.scheduler.requests["r-2"].status.FINISHED_ABORTED)
    bare.scheduler.finish_requests("r-1", bare.scheduler.requests["r-1"].status.FINISHED_ABORTED)
    bare.step()
    assert spare.has_spare
    bare.run()
    bare.step()
    assert spare.has_spare, "nothing is left to do"


def test_a_step_without_tokens_left_has_no_room(bare: BareScheduler) -> None:
    bare.add("long", [5] * 900, 2)
    bare.step()
    assert len(bare.scheduler.running) == 1
    assert not spare_of(bare).has_spare


def test_blocks_for_what_waits_are_part_of_the_means(bare: BareScheduler) -> None:
    bare.add("first", [7] * 900, 60)
    for _ in range(8):
        bare.step()
    spare = spare_of(bare)
    assert spare.has_spare, "it decodes, and no request waits"
    pool = bare.scheduler.kv_cache_manager.block_pool
    pool.get_new_blocks(pool.get_num_free_blocks() - 4)
    bare.add("second", [9] * 900, 2)
    bare.step()
    assert len(bare.scheduler.running) == 1, "the second does not fit"
    assert not spare.has_spare


def test_a_paused_scheduler_has_none(bare: BareScheduler) -> None:
    from vllm.v1.core.sched.interface import PauseState

    spare = spare_of(bare)
    bare.step()
    assert (spare.has_spare, spare.is_paused) == (True, False)
    bare.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    bare.step()
    assert (spare.has_spare, spare.is_paused) == (False, True)


def test_time_counts_from_one_step_to_the_next_and_no_longer(bare: BareScheduler) -> None:
    spare = SpareCapacity(bare.scheduler)

    def output() -> SimpleNamespace:
        return SimpleNamespace(preempted_req_ids=set(), total_num_scheduled_tokens=0)

    spare.step(output(), 10 * S)
    assert spare.total_ns == 0
    spare.step(output(), 11 * S)
    same = output()
    spare.step(same, 12 * S)
    spare.step(same, 12 * S)  # by another child of a MultiConnector
    assert spare.total_ns == 2 * S
    spare.step(output(), 1000 * S)
    assert spare.total_ns == 2 * S + LONGEST_NS


def test_it_says_how_many_requests_run(bare: BareScheduler) -> None:
    spare = spare_of(bare)
    assert spare.running == 0
    bare.add("r-0", list(range(3, 103)), 4)
    bare.step()
    assert spare.running == 1
    bare.run()
    assert spare.running == 0


def test_who_is_no_scheduler_binds_nothing() -> None:
    assert spare_capacity(object()) is None

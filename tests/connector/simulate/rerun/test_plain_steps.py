"""What a recording leaves out can be put back: the real scheduler's own outputs are the oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bare_scheduler import scheduler, storm

from kvtrail.connector.simulate.rerun.plain_steps import STEP_EVENTS, is_plain, leaves_out, with_plain_steps
from kvtrail.tracer.events.events import Event, Preempt, PrefixCache, RequestEnd, Schedule
from kvtrail.tracer.ledger.account import Account

Runs = dict[str, tuple[int, int]]
"""Of each request: where a step begins, and the tokens that it runs."""
CASES: dict[str, dict[str, Any]] = {
    "blocks of 32": {},
    "a small budget": {"max_num_batched_tokens": 16, "max_num_seqs": 8},
    "priorities": {"scheduling_policy": "priority"},
    "drafts": {"drafts": 3},
}


def observed(bare: Any) -> list[Runs]:
    """What each step that is scheduled from now on runs, and the block table of each of its requests, as `_tables`."""
    steps: list[Runs] = []
    plain = bare.scheduler.schedule

    def schedule() -> Any:
        output = plain()
        cached = output.scheduled_cached_reqs
        begins = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        begins |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        steps.append({name: (begins[name], count) for name, count in output.num_scheduled_tokens.items()})
        return output

    bare.scheduler.schedule = schedule
    return steps


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_put_back(tmp_path: Path, recorded: Callable[[], list[Event]], case: str, seed: int) -> None:
    bare = scheduler(tmp_path, "OffloadConnector", {"kvtrail": {"level": "detailed"}}, seed=seed, **CASES[case])
    truth = observed(bare)
    storm(bare, seed=seed, requests=80)
    events = [event for event in recorded() if event.role == "scheduler"]
    assert leaves_out(events)
    rows = [event for event in events if isinstance(event, Schedule)]
    whole = with_plain_steps(events)
    calls = [event for event in events if not isinstance(event, PrefixCache)]
    assert [event for event in whole if not is_plain(event)] == calls
    steps: list[Runs] = []
    at_ns = -1
    for event in whole:
        if not isinstance(event, STEP_EVENTS):
            at_ns = -1
        elif event.start_ns != at_ns:
            at_ns = event.start_ns
            steps.append({})
        if isinstance(event, Schedule):
            steps[-1][event.request or ""] = (event.computed, event.scheduled)
    assert [step for step in steps if step] == [step for step in truth if step]
    if case != "drafts":
        assert len(rows) < sum(map(len, truth)) / 2, "most of them say nothing new"


def test_a_row_for_each_new_block_keeps_the_tables(tmp_path: Path, recorded: Callable[[], list[Event]]) -> None:
    bare = scheduler(tmp_path, "OffloadConnector", {"kvtrail": {"level": "detailed"}}, seed=1)
    ends: dict[str, list[int]] = {}
    connector: Any = bare.scheduler.connector
    manager, finish = bare.scheduler.kv_cache_manager, connector.request_finished

    def finished(request: Any, block_ids: list[int]) -> Any:
        ends[request.request_id] = list(manager.get_block_ids(request.request_id)[0])
        return finish(request, block_ids)

    connector.request_finished = finished
    storm(bare, seed=1, requests=80)
    accounts: dict[str, Account] = {}
    told = 0
    for event in recorded():
        if event.request is None or event.role != "scheduler":
            continue
        account = accounts.setdefault(event.request, Account(event.engine, event.request))
        if isinstance(event, RequestEnd) and account.status == "running":
            assert account.evidence.blocks == ends[event.request], event.request
            told += 1
        account.apply(event)
    assert told > 40
    assert any(isinstance(event, Preempt) for event in recorded())

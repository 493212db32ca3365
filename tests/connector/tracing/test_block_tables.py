"""A step is recorded where it says something new. Whoever reads these steps knows each request's block table all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bare_scheduler import scheduler, storm

from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup
from kvtrail.tracer.events.events import Event, Preempt, RequestEnd, Schedule
from kvtrail.tracer.ledger.account import Account


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
    compared = 0
    for event in recorded():
        if event.request is None or event.role != "scheduler":
            continue
        account = accounts.setdefault(event.request, Account(event.engine, event.request))
        if isinstance(event, RequestEnd) and account.status == "running":
            table = account.evidence.blocks
            assert table is not None, event.request
            assert table.groups == [ends[event.request]], event.request
            compared += 1
        account.apply(event)
    assert compared > 40
    assert any(isinstance(event, Preempt) for event in recorded())


@pytest.mark.parametrize("window", [32, 100, 256])
def test_the_tables_of_several_groups_are_known(
    tmp_path: Path, recorded: Callable[[], list[Event]], window: int
) -> None:
    """What vLLM has is what was recorded; where it has given a block of the window back, that block is not certain."""
    bare = scheduler(
        tmp_path,
        "TracedOffloadingConnector",
        {"cpu_bytes_to_use": 1 << 22, "kvtrail": {"level": "detailed"}},
        groups=(CacheGroup(FULL), CacheGroup(SLIDING, window=window)),
    )
    tables: list[dict[str, list[list[int]]]] = []
    connector: Any = bare.scheduler.connector
    manager, build = bare.scheduler.kv_cache_manager, connector.build_connector_meta

    def built(output: Any) -> Any:
        running = [request.request_id for request in bare.scheduler.running]
        tables.append({each: [list(ids) for ids in manager.get_block_ids(each)] for each in running})
        return build(output)

    connector.build_connector_meta = built
    storm(bare, seed=1, requests=40, reset_running=False)
    known: dict[str, Account] = {}
    compared = given_back = 0
    for event in recorded():
        if event.request is None or event.role != "scheduler":
            continue
        account = known.setdefault(event.request, Account(event.engine, event.request))
        account.apply(event)
        if not isinstance(event, Schedule) or event.scheduler_step is None:
            continue
        table, real = account.evidence.blocks, tables[event.scheduler_step][event.request]
        assert table is not None, event
        assert list(map(len, table.groups)) == list(map(len, real))
        for number, (ids, own) in enumerate(zip(real, table.groups, strict=True)):
            certain = table.certain_from(number)
            assert own[certain:] == ids[certain:], event
            assert all(theirs in (mine, 0) for mine, theirs in zip(own, ids, strict=True)), event
            given_back += own != ids
        compared += 1
    assert compared > 250
    assert given_back > 50

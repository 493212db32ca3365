"""A step is recorded where it says something new. Whoever reads these steps knows each request's block table all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bare_scheduler import scheduler, storm

from kvtrail.tracer.events.events import Event, Preempt, RequestEnd
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
            assert account.evidence.blocks == ends[event.request], event.request
            compared += 1
        account.apply(event)
    assert compared > 40
    assert any(isinstance(event, Preempt) for event in recorded())

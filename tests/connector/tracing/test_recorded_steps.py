"""Which steps are recorded, on the real scheduler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bare_scheduler import scheduler

from kvtrail.connector.recording import contexts, recorder
from kvtrail.connector.simulate.scenario import Workers
from kvtrail.tracer.events.events import Event, LoadError, Schedule

PROMPT = list(range(3, 259))


def recorded_and_run(
    folder: Path, recorded: Callable[[], list[Event]], workers: Workers
) -> tuple[list[Event], dict[str, list[int]]]:
    """What is recorded while a prompt is stored, forgotten by the engine, and loaded; and in which steps each request ran."""
    extra = {"chunk_size": 64, "kvtrail": {"level": "detailed"}}
    bare = scheduler(folder, "OffloadConnector", extra, workers=workers)
    ran: dict[str, list[int]] = {}

    def observe(output: Any) -> None:
        for request_id in output.num_scheduled_tokens:
            ran.setdefault(request_id, []).append(bare.steps)

    for name in ("stored", "loaded"):
        bare.add(name, [*PROMPT, 400], 70)
        while bare.scheduler.has_unfinished_requests():
            bare.step(observe)
        bare.scheduler.reset_prefix_cache()
    (connector,) = bare.connectors
    assert connector._kvtrail_scheduler._steps._watched == set(), "a request that has ended is watched no more"
    return recorded(), ran


def test_a_decoding_request_is_reported_when_it_gets_a_block(
    tmp_path: Path, recorded: Callable[[], list[Event]]
) -> None:
    events, ran = recorded_and_run(tmp_path, recorded, Workers())
    reported = [e for e in events if isinstance(e, Schedule) and e.request == "loaded"]
    first, second, *later = reported
    assert second.scheduler_step == (first.scheduler_step or 0) + 1, "its place then shows the outcome of its prompt"
    assert later
    assert all(e.blocks_ids for e in later)
    assert len(reported) < len(ran["loaded"]) / 5


def test_a_request_with_a_failed_load_is_reported_in_every_step(
    tmp_path: Path, recorded: Callable[[], list[Event]]
) -> None:
    """What it computes again, and from where, decides whether it ever reads what the failed load has left."""
    events, ran = recorded_and_run(tmp_path, recorded, Workers(load_failures=1.0))
    (error,) = [e for e in events if isinstance(e, LoadError)]
    assert error.request == "loaded"
    reported = [e.scheduler_step for e in events if isinstance(e, Schedule) and e.request == "loaded"]
    assert reported == ran["loaded"]
    assert len([e for e in events if isinstance(e, Schedule) and e.request == "stored"]) < len(ran["stored"]) / 3


def test_requests_that_were_forgotten_cost_the_others_nothing(
    tmp_path: Path, recorded: Callable[[], list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More requests run at once than the recorder remembers."""
    monkeypatch.setattr(contexts, "MAX_REQUESTS", 2)
    bare = scheduler(tmp_path, "OffloadConnector", {"chunk_size": 64})
    for number in range(3):
        bare.add(f"r-{number}", PROMPT[number : number + 60], 70)
        for _ in range(5):
            bare.step()
    bare.run()
    events = recorded()
    assert {e.request for e in events if isinstance(e, Schedule) and not e.blocks_whole} >= {"r-1", "r-2"}
    assert [each._not_recorded for each in recorder.recorders()] == [{}]

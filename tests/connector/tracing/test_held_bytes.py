"""How much host memory the connectors of a process hold: reported with its heartbeats."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bare_scheduler import scheduler
from memory import MemoryTransport, a_recorder
from processes import SLOW_S, until

from kvtrail.connector.known.probe import Probe
from kvtrail.connector.recording import recorder
from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events.events import Event, Heartbeat

CHUNK, SLOTS = 64, 20


@pytest.fixture(autouse=True)
def signs_of_life_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "HEARTBEAT_S", 0.02)


def test_what_a_connector_holds_is_reported(tmp_path: Path, recorded: Callable[[], list[Event]]) -> None:
    """Chunks come to it until the store is full; a reset empties it."""
    (group,) = tiny_model.kv_cache(1, tiny_model.BLOCK_SIZE).kv_cache_groups
    chunk_bytes = CHUNK // tiny_model.BLOCK_SIZE * group.kv_cache_spec.page_size_bytes * len(group.layer_names)
    extra = {"chunk_size": CHUNK, "cpu_bytes_to_use": SLOTS * chunk_bytes + 1}
    bare = scheduler(tmp_path, "OffloadConnector", extra)
    rng = random.Random(0)

    def run(name: str, chunks: int) -> None:
        bare.add(name, [rng.randrange(3, 512) for _ in range(chunks * CHUNK + 1)], 1)
        while bare.scheduler.has_unfinished_requests():
            bare.step()

    def await_chunks(chunks: int) -> None:
        def reported() -> int | None:
            return [event for event in recorded() if isinstance(event, Heartbeat)][-1].held_bytes

        until(lambda: reported() == chunks * chunk_bytes, why=reported)

    run("first", 5)
    await_chunks(5)
    run("second", 3)
    await_chunks(8)
    for name in ("third", "fourth"):
        run(name, 10)
    await_chunks(SLOTS)
    bare.scheduler.reset_prefix_cache(reset_connector=True)
    await_chunks(0)


class Holding(Probe):
    """It sees how much its connector holds, if that is known."""

    def held_bytes(self, connector: Any) -> int | None:
        return connector.held  # type: ignore[no-any-return]  # a connector of this test


class Connector:
    def __init__(self, held: int | None) -> None:
        self.held = held


def test_the_connectors_of_a_process_are_summed_up_until_they_are_gone() -> None:
    transport = MemoryTransport()
    recording = a_recorder(transport)

    def followed(held: int | None) -> tuple[Connector, SchedulerInstrumentation]:
        connector, instrumentation = Connector(held), SchedulerInstrumentation(recording, name="Some", probe=Holding())
        instrumentation.on_init(connector)
        return connector, instrumentation

    def await_held(held: int | None) -> None:
        before = len(beats(transport))
        until(lambda: any(beat.held_bytes == held for beat in beats(transport)[before + 1 :]))

    there, shut_down, gone, _unknown = followed(1000), followed(200), followed(30), followed(None)
    await_held(1230)
    shut_down[1].on_shutdown()
    await_held(1030)
    del gone
    gc.collect()
    await_held(1000)
    there[0].held = None
    await_held(None)
    recording.close(SLOW_S)
    assert last_not_recorded(transport) is None


def test_a_probe_that_fails_costs_the_number_only() -> None:
    transport = MemoryTransport()
    recording, connector = a_recorder(transport), object.__new__(Connector)  # it has no `held`
    SchedulerInstrumentation(recording, name="Some", probe=Holding()).on_init(connector)
    until(lambda: last_not_recorded(transport))
    recording.close(SLOW_S)
    (not_recorded,) = last_not_recorded(transport) or ()
    assert not_recorded.startswith("probe.held_bytes:")
    assert {beat.held_bytes for beat in beats(transport)} == {None}
    assert [beat.sequence for beat in beats(transport)] == list(range(len(beats(transport)))), "no event is missing"


def beats(transport: MemoryTransport) -> list[Heartbeat]:
    return [event for event in transport.events() if isinstance(event, Heartbeat)]


def last_not_recorded(transport: MemoryTransport) -> tuple[str, ...] | None:
    return beats(transport)[-1].recorder_unrecorded if beats(transport) else None

"""Fakes of workers and servers speak as the real ones do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from kvtrail.connector.known.fake import Chunks, Fake, Job, fake_for
from kvtrail.connector.simulate.calls import Load
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario, Workers
from kvtrail.tracer.events.events import Alloc, Lookup, Received

HEAD = ("head", 256)
TWICE = Scenario(
    arrivals=(Arrival("first", (HEAD, ("a", 40))), Arrival("second", (HEAD, ("b", 40)), at_step=20)),
    resets=(CachesReset(19),),
)


def test_chunks_are_found_up_to_the_first_hole() -> None:
    chunks, tokens = Chunks(4), list(range(20))
    chunks.store(tokens, 0, 9)
    assert chunks.prefix(tokens) == 8, "whole chunks only"
    chunks.store(tokens, 12, 16)
    assert chunks.prefix(tokens) == 8
    assert chunks.prefix(tokens, 12) == 16
    assert chunks.prefix([*tokens[:5], 99, 99, 99]) == 4
    assert chunks.prefix(tokens, salt="other") == 0
    chunks.clear()
    assert chunks.prefix(tokens) == 0


@pytest.mark.parametrize(
    ("name", "loaded"), [("OffloadingConnector", 256), ("SimpleCPUOffloadConnector", 256), ("ExampleConnector", 0)]
)
def test_what_was_stored_is_loaded(name: str, loaded: int) -> None:
    """The ExampleConnector knows whole prompts only."""
    extra = {"cpu_bytes_to_use": 50_000_000}
    played = play(
        TWICE,
        {"kv_connector": name, "kv_connector_module_path": "kvtrail.connector", "kv_connector_extra_config": extra},
    )
    assert (played.error, played.unfinished) == (None, {})
    assert next(e.allocated for e in played.events if isinstance(e, Alloc) and e.request == "second") == loaded


def test_a_whole_prompt_is_found_by_the_example() -> None:
    again = Scenario(
        arrivals=(TWICE.arrivals[0], Arrival("again", TWICE.arrivals[0].prompt, at_step=20)), resets=(CachesReset(19),)
    )
    played = play(again, {"kv_connector": "ExampleConnector", "kv_connector_module_path": "kvtrail.connector"})
    assert [e.answer for e in played.events if isinstance(e, Lookup)] == [0, 288]


def test_a_load_is_reported_once_and_only_when_it_was_planned() -> None:
    played = play(TWICE, {"kv_connector": "SimpleCPUOffloadConnector", "kv_connector_module_path": "kvtrail.connector"})
    assert [e.request for e in played.events if isinstance(e, Received)] == ["second"]


def test_streams_end_in_their_order() -> None:
    """vLLM's worker reports the latest event of a stream that has ended, so an earlier one has ended as well."""
    ended: list[Any] = []

    class Noting(Fake):
        def jobs(self, connector: Any, plan: Any) -> Any:
            return [Job(key, stream="one") for key in plan]

        def worker_metadata(self, over: Any) -> None:
            ended.extend(job.key for job in over)

    from kvtrail.connector.simulate.workers.worker import FakeWorker

    scheduler: Any = SimpleNamespace(connector=None)
    worker = FakeWorker(scheduler, Workers(latest_steps=9, seed=3), Noting({}), SimpleNamespace(on_load=[], loads={}))  # type: ignore[arg-type]
    for step in range(60):
        worker._step += 1
        plan = [step] if step < 40 else []
        worker._end_jobs(SimpleNamespace(kv_connector_metadata=plan, num_scheduled_tokens={}), SimpleNamespace())
    assert ended == list(range(40))


def test_a_load_within_the_step_is_over_with_it_and_not_reported_as_received() -> None:
    """vLLM 0.33's OffloadingConnector loads a little within the step, by the same jobs that it uses between steps."""
    ended: list[Any] = []

    class Jobs(Fake):
        def jobs(self, connector: Any, plan: Any) -> Any:
            return [Job(name, loads=(name,)) for name in plan]

        def worker_metadata(self, over: Any) -> None:
            ended.extend(job.key for job in over)

    from kvtrail.connector.simulate.workers.worker import FakeWorker

    loads = {"now": Load(0, 64, (1, 2), False), "later": Load(0, 64, (3, 4), True)}
    calls: Any = SimpleNamespace(on_load=[], loads=loads)
    worker = FakeWorker(SimpleNamespace(connector=None), Workers(latest_steps=0), Jobs({}), calls)
    report = SimpleNamespace(finished_recving=None)
    worker._step += 1
    worker._end_jobs(SimpleNamespace(kv_connector_metadata=["now", "later"], num_scheduled_tokens={"now": 8}), report)
    assert ended == ["now", "later"]
    assert report.finished_recving == {"later"}


def test_a_fake_adds_to_the_configuration_and_takes_nothing_away(tmp_path: Path) -> None:
    said = {"kv_connector": "ExampleConnector", "kv_connector_extra_config": {"shared_storage_path": "/mine"}}
    multi = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "ExampleConnector"}]},
    }
    assert fake_for(said).configured(said, tmp_path) == said
    children = fake_for(multi).configured(multi, tmp_path)["kv_connector_extra_config"]["connectors"]
    assert children[0]["kv_connector_extra_config"] == {"shared_storage_path": str(tmp_path / "stored")}

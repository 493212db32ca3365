"""The version of a request's adapter: what is recorded of its weights, and that a hit across a replaced adapter is found."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from bare_scheduler import scheduler
from history import judge

from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.tracing import identity
from kvtrail.connector.tracing.identity import Adapters
from kvtrail.tracer.events.events import Event, RequestStart

SIZE = 200_000
PROMPT = list(range(3, 303))


def weights(folder: Path, seed: int) -> Path:
    """An adapter in a folder, with random weights."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(random.Random(seed).randbytes(SIZE))
    os.utime(folder / "adapter_model.safetensors", ns=(seed, seed))
    return folder


def asking(path: Path | str, *, number: int = 1, in_place: bool = False) -> Any:
    """A request with an adapter."""
    adapter = SimpleNamespace(lora_name="a", lora_int_id=number, lora_path=str(path), load_inplace=in_place)
    return SimpleNamespace(lora_request=adapter)


def test_the_version_is_that_of_the_weights_wherever_they_lie(tmp_path: Path) -> None:
    adapters = Adapters()
    first = adapters.version_of(asking(weights(tmp_path / "a", 1)))
    copied = adapters.version_of(asking(weights(tmp_path / "b", 1), number=2))
    other = adapters.version_of(asking(weights(tmp_path / "c", 2), number=3))
    assert first == copied
    assert first != other


def test_one_changed_part_of_a_sixteenth_is_another_version(tmp_path: Path) -> None:
    """What lies between the samples is not read: the places and their size are chosen so that training shows."""
    folder = weights(tmp_path / "a", 1)
    before = Adapters().version_of(asking(folder))
    file = folder / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    part = SIZE // identity.SAMPLES
    data[3 * part : 4 * part] = bytes(part)
    file.write_bytes(data)
    assert Adapters().version_of(asking(folder)) != before


def test_a_file_is_read_again_only_where_vllm_loads_it_again(tmp_path: Path) -> None:
    adapters = Adapters()
    first = adapters.version_of(asking(weights(tmp_path / "a", 1)))
    weights(tmp_path / "a", 2)
    assert adapters.version_of(asking(tmp_path / "a")) == first, "the workers still have the weights of before"
    second = adapters.version_of(asking(tmp_path / "a", in_place=True))
    assert second not in (None, first)
    assert adapters.version_of(asking(tmp_path / "a")) == second
    assert adapters.version_of(asking(tmp_path / "a", number=2)) == second, "unloaded and loaded again: another number"


def test_where_there_is_no_file_the_path_is_the_version() -> None:
    adapters = Adapters()
    first, second = (adapters.version_of(asking(f"org/{name}", number=n)) for n, name in enumerate("xy", 1))
    assert first == adapters.version_of(asking("org/x"))
    assert first != second
    assert adapters.version_of(SimpleNamespace(lora_request=None)) is None


def test_adapters_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MAX_ADAPTERS", 3)
    adapters = Adapters()
    for number in range(1, 12):
        adapters.version_of(asking(f"org/{number}", number=number))
        assert len(adapters._versions) <= 3


@pytest.fixture
def bare(tmp_path: Path, recorded: Callable[[], list[Event]]) -> Iterator[BareScheduler]:
    stage = scheduler(tmp_path, "OffloadConnector", {"chunk_size": 64})
    yield stage
    stage.close()


def ask(bare: BareScheduler, name: str, folder: Path, *, in_place: bool = False) -> None:
    """Run the prompt twice with the adapter of this folder, when vLLM's own cache is empty."""
    from vllm.lora.request import LoRARequest

    for number in range(2):
        bare.scheduler.reset_prefix_cache()
        adapter = LoRARequest("a", 1, str(folder), load_inplace=in_place)
        bare.add(f"{name}-{number}", PROMPT, 4, adapter=adapter)
        bare.run()


def found(events: list[Event]) -> dict[str, Any]:
    return {finding.rule: finding.numbers for held in judge(events).findings.values() for finding in held.values()}


def test_a_hit_across_an_adapter_that_was_loaded_again_in_place_is_found(
    tmp_path: Path, bare: BareScheduler, recorded: Callable[[], list[Event]]
) -> None:
    """vLLM's hashes have the adapter's name and path: the weights of before are found under them."""
    ask(bare, "first", weights(tmp_path / "a", 1))
    ask(bare, "second", weights(tmp_path / "a", 2), in_place=True)
    events = recorded()
    first, _, second, _ = (event.adapter_version for event in events if isinstance(event, RequestStart))
    numbers = found(events)["key-collision"]
    assert (numbers["other_version"], numbers["version"]) == (first, second)


def test_an_adapter_loaded_again_with_the_same_weights_or_after_a_reset_is_none(
    tmp_path: Path, bare: BareScheduler, recorded: Callable[[], list[Event]]
) -> None:
    ask(bare, "first", weights(tmp_path / "a", 1))
    ask(bare, "again", tmp_path / "a", in_place=True)
    ask(bare, "copy", weights(tmp_path / "b", 1))
    bare.scheduler.reset_prefix_cache(reset_connector=True)
    ask(bare, "replaced", weights(tmp_path / "a", 2), in_place=True)
    assert found(recorded()) == {}


def test_an_adapter_that_cannot_be_read_costs_its_version_alone(
    tmp_path: Path, bare: BareScheduler, recorded: Callable[[], list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, size: int) -> bytes:
        raise PermissionError(path)

    monkeypatch.setattr(identity, "_sample", refuse)
    ask(bare, "first", weights(tmp_path / "a", 1))
    start, _ = (event for event in recorded() if isinstance(event, RequestStart))
    assert (start.adapter_version, start.identity is None) == (None, False)

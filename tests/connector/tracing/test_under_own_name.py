"""KVTRAIL_TRACE: connectors are traced under their own names, without a word changed in the configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_scheduler import scheduler
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from kvtrail.connector import registration
from kvtrail.connector.tracing.traced import Tracing, traced
from kvtrail.tracer.events.events import Event

CHILDREN: list[dict[str, Any]] = [
    {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": size},
    }
    for size in (10_000_000, 50_000_000)
]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Registers with KVTRAIL_TRACE set to a value; afterwards vLLM's factory is as it was."""
    asked = "get_connector_class"
    monkeypatch.setattr(KVConnectorFactory, asked, KVConnectorFactory.__dict__[asked])

    def register(value: str) -> None:
        monkeypatch.setenv(registration.TRACE, value)
        registration.register()
        registration.register()  # vLLM calls it several times in a process

    return register


def asked_for(name: str, module: str | None = None) -> Any:
    config: Any = SimpleNamespace(kv_connector=name, kv_connector_module_path=module)
    return KVConnectorFactory.get_connector_class(config)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("1", {"OffloadingConnector", "ExampleConnector"}),
        ("Offload*", {"OffloadingConnector"}),
        ("Nixl*, ExampleConnector", {"ExampleConnector"}),
        ("0", set()),
        ("", set()),
        (" off ", set()),
    ],
)
def test_what_the_variable_names_is_traced(environment: Callable[[str], None], value: str, names: set[str]) -> None:
    environment(value)
    for name in ("OffloadingConnector", "ExampleConnector"):
        cls = asked_for(name)
        assert (cls.__name__, issubclass(cls, Tracing)) == (name, name in names)
        assert asked_for(name) is cls


def test_names_with_traced_go_on_to_work(environment: Callable[[str], None]) -> None:
    environment("1")
    assert asked_for("TracedExampleConnector").__name__ == "TracedExampleConnector"
    assert asked_for("OffloadConnector").__name__ == "OffloadConnector"


def test_so_is_a_class_that_vllm_finds_by_its_module(environment: Callable[[str], None]) -> None:
    environment("1")
    cls = asked_for("ExampleConnector", "vllm.distributed.kv_transfer.kv_connector.v1.example_connector")
    assert issubclass(cls, Tracing)


def test_what_cannot_be_traced_runs_as_it_is(
    environment: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment("1")
    monkeypatch.setitem(KVConnectorFactory._registry, "NoConnector", lambda: int)
    monkeypatch.setattr(registration.logger, "propagate", True)
    assert asked_for("NoConnector") is int
    assert "NoConnector cannot be traced" in caplog.text


@pytest.mark.parametrize("name", ["OffloadingConnector", "MultiConnector"])
def test_it_records_what_the_traced_name_records(
    tmp_path: Path, recorded: Callable[[], list[Event]], environment: Callable[[str], None], name: str
) -> None:
    """The children of a MultiConnector included, which are named as they were, too."""

    def reported(traced_name: str, children: str) -> list[tuple[Any, ...]]:
        before = len(recorded())
        extra: dict[str, Any] = {"cpu_bytes_to_use": 50_000_000}
        more: dict[str, Any] = {}
        if name == "MultiConnector":
            more["disable_hybrid_kv_cache_manager"] = True
            extra = {"connectors": [{**each, "kv_connector": children + each["kv_connector"]} for each in CHILDREN]}
        bare = scheduler(tmp_path / (traced_name + children), traced_name, extra, **more)
        for number in range(24):
            bare.add(f"r-{number}", list(range(3, 260 + 7 * (number % 3))), 12)
            bare.step()
        bare.run()
        bare.close()
        new = [event for event in recorded()[before:] if event.request]
        return [(event.kind, event.request, event.connector, event.numbers()) for event in new]

    by_name = reported(f"Traced{name}", "Traced" if name == "MultiConnector" else "")
    environment("*")
    assert by_name
    assert reported(name, "") == by_name


class OfTwo(KVConnectorBase_V1):
    """A connector written for an older vLLM."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        self.given = (vllm_config, role)


class OfAny(KVConnectorBase_V1):
    def __init__(self, *args: Any) -> None:
        self.given = args


@pytest.mark.parametrize(("cls", "count"), [(OfTwo, 2), (OfAny, 3)])
@pytest.mark.parametrize("called_with", [2, 3])
def test_a_constructor_gets_what_it_takes(cls: Any, count: int, called_with: int) -> None:
    made: Any = traced(type(cls.__name__, (cls,), {"__abstractmethods__": frozenset()}))
    config: Any = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=None))
    made.__abstractmethods__ = frozenset()
    connector = made(*(config, SimpleNamespace(name="SCHEDULER"), None)[:called_with])
    assert len(connector.given) == count

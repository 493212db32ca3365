"""Other vLLMs than the one that is installed: too old ones, and such as show less. `tests/versions` runs real ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm
from bare_scheduler import scheduler
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata

from kvtrail import connector
from kvtrail.connector import registration, vllm_version
from kvtrail.connector.known.offloading.probe import OffloadingProbe
from kvtrail.connector.known.probe import Probe, probe_for
from kvtrail.connector.tracing.traced import Tracing, traced
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.unsupported import Lack


def forget() -> None:
    for cached in (vllm_version.too_old, vllm_version._say, registration.resolve, registration._say_untraced):
        cached.cache_clear()


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], None]]:
    """Makes vLLM give itself this version."""
    logger = registration.logger
    logger.addHandler(caplog.handler)  # vLLM's loggers pass nothing on to pytest's
    monkeypatch.setattr(logger, "propagate", False)
    caplog.set_level(logging.INFO, logger=logger.name)

    def set_version(number: str) -> None:
        monkeypatch.setattr(vllm, "__version__", number)
        forget()

    yield set_version
    logger.removeHandler(caplog.handler)
    forget()


OLD = ("0.19.1", "0.10.2.post2", "0.8.5", "0.19.2.dev3+cpu")
NEW = ("0.20.0", "0.33.0", "1.0.0rc1", "0.1.dev1+g0123456", "dev")


@pytest.mark.parametrize("number", [*OLD, *NEW])
def test_a_vllm_is_too_old_by_its_number(version: Callable[[str], None], number: str) -> None:
    version(number)
    assert (vllm_version.too_old() is not None) == (number in OLD)


def test_a_vllm_that_is_too_old_runs_untraced_and_says_so_once(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version("0.19.1")
    monkeypatch.setenv(registration.TRACE, "1")
    factory = dict(vars(KVConnectorFactory))
    registration.register()
    registration.register()
    assert vars(KVConnectorFactory) == factory
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "this is vLLM 0.19.1, and kvtrail traces connectors from 0.20 on" in caplog.text
    plain = KVConnectorFactory.get_connector_class_by_name("ExampleConnector")
    assert not issubclass(plain, Tracing)
    for name in ("TracedExampleConnector", "ExampleConnector", f"Traced:{plain.__module__}:{plain.__name__}"):
        assert getattr(connector, name) is plain
    for name in ("OffloadConnector", "UntracedOffloadConnector", "Faulty:stale-lookup:ExampleConnector"):
        with pytest.raises(AttributeError, match=r"cannot run: this is vLLM 0\.19\.1"):
            getattr(connector, name)


def test_a_vllm_without_the_classes_that_are_traced_runs_on(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version("0.40.0")
    for module in ("factory", "v1.base"):
        monkeypatch.setitem(__import__("sys").modules, f"vllm.distributed.kv_transfer.kv_connector.{module}", None)
    registration.register()
    assert "nothing is traced: vLLM 0.40.0 has no KV connectors that kvtrail knows" in caplog.text


def test_what_is_not_shown_is_looked_for(version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    version(vllm.__version__)
    assert vllm_version.lacks(OffloadingProbe()) == frozenset()
    monkeypatch.delattr(KVConnectorBase_V1, "on_new_request")
    monkeypatch.delattr(KVConnectorBase_V1, "bind_kv_cache_manager")
    assert vllm_version.lacks(Probe()) == {Lack.REQUEST_STARTS, Lack.BLOCK_TABLES}
    monkeypatch.delitem(OffloadingConnectorMetadata.__dataclass_fields__, "load_jobs")
    assert vllm_version.lacks(OffloadingProbe()) - vllm_version.lacks(Probe()) == {Lack.PLANS}


def test_it_is_said_once_and_in_the_resource(
    tmp_path: Path,
    recorded: Callable[[], list[Event]],
    version: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version(vllm.__version__)
    said: list[str] = []
    monkeypatch.setattr(vllm_version.logger, "info", lambda text, *values: said.append(text % values))
    monkeypatch.delattr(KVConnectorBase_V1, "get_external_cache_hit_sources")
    extra: dict[str, Any] = {"cpu_bytes_to_use": 50_000_000}
    for number in range(2):
        bare = scheduler(tmp_path / str(number), "TracedOffloadingConnector", extra)
        bare.add(f"r-{number}", list(range(3, 200)), 4)
        bare.run()
        bare.close()
    events = recorded()
    assert {event.lacks for event in events} == {"hit_sources"}
    assert [each for each in said if "this vLLM does not show hit_sources" in each] == said[:1]


class ForANewerVllm(KVConnectorBase_V1):
    def on_new_request(self, request: Any) -> None:
        """Never called."""

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Never called."""


def test_what_vllm_calls_is_not_what_a_connector_has(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector that knows a newer vLLM than this one: requests begin at their first lookup, and the pool comes as vLLM
    hands it over."""
    version(vllm.__version__)
    for call in ("on_new_request", "bind_kv_cache_manager"):
        monkeypatch.delattr(KVConnectorBase_V1, call)
    assert "bind_gpu_block_pool" in vars(traced(ForANewerVllm))
    assert "bind_kv_cache_manager" not in vars(traced(ForANewerVllm))
    assert Lack.REQUEST_STARTS in vllm_version.lacks(probe_for(ForANewerVllm))

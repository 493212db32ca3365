"""What stands in for what a connector needs and the bare scheduler has not: one file for each family of connectors.

A stand replaces a server, a lookup client, the workers' copy: what is not the connector's scheduler side. It never replaces
its accounting. Each says what it replaces.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_BY_CLASS = {
    "ExampleConnector": "kvtrail.connector.known.example.backend",
    "LMCacheConnectorV1": "kvtrail.connector.known.lmcache.backend",
    "LMCacheMPConnector": "kvtrail.connector.known.lmcache_mp.backend",
    "LMCacheMPConnectorUpstream": "kvtrail.connector.known.lmcache_mp.backend",
    "OffloadingConnector": "kvtrail.connector.known.offloading.backend",
    "SimpleCPUOffloadConnector": "kvtrail.connector.known.simple_cpu.backend",
}
"""The stand's module, by the name of a class among the connector's bases."""
SETTINGS = "kvtrail.stand"
"""Where a connector's extra configuration says something to its stand; connectors do not know the name."""


class Job(NamedTuple):
    """A transfer that the scheduler's side has planned and that ends later.

    Attributes:
        key: names it among the jobs of its connector.
        loads: the requests that wait for it, if it is a load.
        holds: the requests whose blocks it reads: their end is reported only after it.
        fills: the blocks that are reported, all of them, when the load fails; without, some of those that vLLM allocated.
        stream: jobs of one stream end in their order.
        then: what a stand wants to know of it when it ends.
    """

    key: Hashable
    loads: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    fills: tuple[int, ...] = ()
    stream: str | None = None
    then: Any = None


class Stand:
    """For connectors that need nothing: whatever waits is served by workers that know nothing of them. Subclasses are made
    once for each connector object, with its extra configuration.

    Attributes:
        tells_loads: whether a request that waits is served only by a job that loads it.
    """

    tells_loads = False

    def __init__(self, extra: Mapping[str, Any]) -> None:
        self.settings: Mapping[str, Any] = extra.get(SETTINGS, {})

    def extra(self, folder: Path) -> dict[str, Any]:
        """Extra configuration without which there is no connector; `folder` lives as long as the scheduler."""
        return {}

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Be there while the connector is made."""
        yield

    def jobs(self, connector: Any, plan: Any) -> Iterable[Job]:
        """The jobs of a step, from the metadata that the workers get."""
        return ()

    def flushed(self, plan: Any, under_way: Collection[Hashable]) -> Collection[Hashable]:
        """The keys of jobs that must have ended before this step runs."""
        return ()

    def told(self, ended: Sequence[Job]) -> Any:
        """The workers' metadata about jobs that ended in a step, or None."""
        return None


def stands_for(transfer: Mapping[str, Any]) -> list[Stand]:
    """The stands of a `kv_transfer_config`: one, or one for each child of a MultiConnector.

    Raises:
        ValueError, ImportError, AttributeError: there is no such connector.
    """
    extra = transfer.get("kv_connector_extra_config") or {}
    if children := extra.get("connectors"):
        return [stand for child in children for stand in stands_for(child)]
    for base in _class(transfer).__mro__:
        if module := _BY_CLASS.get(base.__name__):
            stand: Stand = importlib.import_module(module).STAND(extra)
            return [stand]
    return [Stand(extra)]


def furnished(transfer: Mapping[str, Any], stands: Sequence[Stand], folder: Path) -> dict[str, Any]:
    """The configuration with what the stands add to it; what it says itself stays."""
    extra = dict(transfer.get("kv_connector_extra_config") or {})
    if children := extra.get("connectors"):
        extra["connectors"] = [furnished(child, [stand], folder) for child, stand in zip(children, stands, strict=True)]
    else:
        extra = stands[0].extra(folder) | extra
    return {**transfer, "kv_connector_extra_config": extra}


def _class(transfer: Mapping[str, Any]) -> type:
    name = transfer["kv_connector"]
    if module := transfer.get("kv_connector_module_path"):
        cls: type = getattr(importlib.import_module(module), name)
        return cls
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    return KVConnectorFactory.get_connector_class_by_name(name)

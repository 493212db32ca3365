"""Fakes for the bare scheduler: replacements for the server, the lookup client and the workers' copies of a connector.

A fake never replaces the connector's own accounting. Each fake documents what it replaces.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kvtrail.connector.known import overrides, part_of

SETTINGS = "kvtrail.fake"
"""The key of a connector's extra configuration that its fake reads. Connectors do not know it."""


class Copies(NamedTuple):
    """The copies of a job: KV blocks, and the place of each in the connector's store. `loads`: it copies to the blocks."""

    blocks: tuple[int, ...]
    places: tuple[Hashable, ...]
    loads: bool


class Job(NamedTuple):
    """A transfer that the scheduler's side has planned and that ends later.

    Attributes:
        key: names it among the jobs of its connector.
        loads: the requests that wait for it, if it is a load.
        holds: the requests whose blocks it reads. Their end is reported only after the job's.
        fills: the blocks that are reported when the load fails. If empty, some of the blocks that vLLM allocated are
            reported.
        stream: jobs of one stream end in their order.
        then: data that its fake needs when the job ends.
        child: its connector's index among the children of a MultiConnector.
        copies: its copies, if the plan lists them block by block.
    """

    key: Hashable
    loads: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    fills: tuple[int, ...] = ()
    stream: str | None = None
    then: Any = None
    child: int = 0
    copies: Copies | None = None


class Fake:
    """A fake for connectors that need no replacement: the load of a waiting request ends after some steps. Each connector
    object has its own fake.

    Attributes:
        plans_loads: whether the wait of a request ends only with a job that loads it.
        plans_copies: whether the `copies` of jobs contain all copies.
    """

    plans_loads = False
    plans_copies = False

    def __init__(self, extra: Mapping[str, Any]) -> None:
        """`extra` is the connector's extra configuration."""
        self.settings: Mapping[str, Any] = extra.get(SETTINGS, {})

    def extra(self, folder: Path) -> dict[str, Any]:
        """Extra configuration that the connector requires; `folder` exists as long as the scheduler."""
        return {}

    def configured(self, transfer: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """The `kv_transfer_config` with this extra configuration; existing settings are kept."""
        extra = self.extra(folder) | (transfer.get("kv_connector_extra_config") or {})
        return {**transfer, "kv_connector_extra_config": extra}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the resources that the connector's constructor uses."""
        yield

    def connectors(self, connector: Any) -> Sequence[Any]:
        """The connector and its children."""
        return [connector]

    def jobs(self, connector: Any, plan: Any) -> Iterable[Job]:
        """The jobs of a step, from the metadata that the workers get."""
        return ()

    def flushes(self, plan: Any, job: Job) -> bool:
        """Whether a job must have ended before this step runs."""
        return False

    def worker_metadata(self, ended: Sequence[Job]) -> Any:
        """The workers' report about the jobs that ended in a step, or None."""
        return None


def reports_transfers(plain: type) -> bool:
    """Whether the workers of an untraced connector class ever report completed transfers; vLLM's base class never does."""
    return overrides(plain, "get_finished") or overrides(plain, "get_transfer_results")


class Chunks:
    """A store of chunks of `size` tokens. It knows which prefixes it holds, but has no KV. Nothing is ever evicted. Chunks
    with another salt are different chunks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: set[bytes] = set()

    def store(self, tokens: Sequence[int], start: int, end: int, salt: str = "") -> None:
        """Hold the whole chunks of `tokens` in [start, end)."""
        self._held.update(self._key(tokens, each, salt) for each in range(start + self.size, end + 1, self.size))

    def hold(self, tokens: Sequence[int], end: int) -> None:
        """Hold the chunks of `tokens` up to `end`, and none that goes beyond it."""
        self.store(tokens, 0, end)
        self._held.difference_update(
            self._key(tokens, each) for each in range(self.size, len(tokens) + 1, self.size) if each > end
        )

    def prefix(self, tokens: Sequence[int], start: int = 0, salt: str = "") -> int:
        """End of the chunks that are held without a gap from `start` on, in tokens."""
        end = start
        while end + self.size <= len(tokens) and self._key(tokens, end + self.size, salt) in self._held:
            end += self.size
        return end

    def clear(self) -> None:
        self._held.clear()

    @staticmethod
    def _key(tokens: Sequence[int], end: int, salt: str = "") -> bytes:
        return array("i", tokens[:end]).tobytes() + salt.encode()


def fake_for(transfer: Mapping[str, Any]) -> Fake:
    """The fake for the connector of a `kv_transfer_config`.

    Raises:
        ValueError, ImportError, AttributeError: there is no such connector.
    """
    cls = part_of(_class(transfer), "fake") or Fake
    fake: Fake = cls(transfer.get("kv_connector_extra_config") or {})
    return fake


def _class(transfer: Mapping[str, Any]) -> type:
    name = transfer["kv_connector"]
    if module := transfer.get("kv_connector_module_path"):
        cls: type = getattr(importlib.import_module(module), name)
        return cls
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    return KVConnectorFactory.get_connector_class_by_name(name)

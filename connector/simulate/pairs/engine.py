"""One of two bare engines with a hand-off between them. It may die without the other one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any
from unittest import mock

from kvtrail.connector import registration
from kvtrail.connector.known import by_class
from kvtrail.connector.known.nixl.stand_in import can_be_installed
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.in_memory import InMemoryExporter
from kvtrail.connector.simulate.judges import leftovers
from kvtrail.connector.simulate.run import of_its_own, where
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.connector.simulate.workers.contents import Shared
from kvtrail.connector.simulate.workers.own_worker import OwnWorker

PREFILL, DECODE = "prefill", "decode"
PREFILL_PORT, DECODE_PORT = "5600", "5601"
"""Ports that tell the engines apart; nothing listens there."""


class Engine:
    """An engine with the connector's own workers.

    Attributes:
        name: its role: it prefills or decodes.
        id: its engine id.
        stage, worker: the bare scheduler, and its workers.
        exporter: the exporter of its recorder.
        error, trace: the error that ended it, and its traceback; None and empty as long as it lives.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        scenario: Scenario,
        connector: Mapping[str, Any],
        shared: Shared,
        exporters: Sequence[InMemoryExporter],
        engine_id: str | None = None,
    ) -> None:
        """Without an `engine_id`, it gets a unique one. Its exporter is the last one of `exporters`."""
        pair = scenario.pair
        assert pair is not None
        self.name, decodes = name, name == DECODE
        own = of_its_own(connector)
        own["engine_id"] = self.id = engine_id or f"{name.partition(' ')[0]}-{own['engine_id']}"
        own["kv_role"] = "kv_consumer" if decodes else "kv_producer"
        own["kv_load_failure_policy"] = "recompute" if scenario.recompute else "fail"
        for each in (own, *own["kv_connector_extra_config"].get("connectors", ())):
            if hands_over(each["kv_connector"]):
                each["kv_buffer_device"] = "cpu"
                each["kv_connector_extra_config"]["kv_lease_duration"] = pair.lease_s
        port = DECODE_PORT if decodes else PREFILL_PORT
        with mock.patch.dict(os.environ, VLLM_NIXL_SIDE_CHANNEL_PORT=port):
            self.stage = BareScheduler(
                folder,
                own,
                own_workers=True,
                num_blocks=pair.decode_blocks if decodes else scenario.num_blocks,
                seed=scenario.seed,
                groups=scenario.groups,
                workers=scenario.workers,
                shared=shared,
                tensor_parallel_size=pair.decode_ranks if decodes else pair.prefill_ranks,
            )
        assert isinstance(self.stage.worker, OwnWorker)
        self.worker = self.stage.worker
        self.exporter = exporters[-1]
        self.error: str | None = None
        self.trace = ""
        self._every = pair.decode_every if decodes else pair.prefill_every
        beside = {PREFILL: scenario.arrivals, DECODE: pair.decodes}.get(name, ())
        self._beside = sorted(beside, key=lambda each: each.at_step)[::-1]

    def tick(self, tick: int) -> None:
        """Let one tick pass."""
        while self._beside and self._beside[-1].at_step <= tick:
            self._guarded(self.stage.arrive, self._beside.pop())
        if tick % self._every == 0:
            self._guarded(self.stage.step)

    def ask(self, request_id: str, prompt: list[int], max_tokens: int, transfer: Mapping[str, Any] | None) -> None:
        self._guarded(lambda: self.stage.add(request_id, prompt, max_tokens, transfer=transfer))

    def abort(self, request_id: str) -> None:
        self._guarded(self.stage.abort, request_id)

    @property
    def is_idle(self) -> bool:
        """Whether it has no requests and holds no blocks, or is dead."""
        return self.error is not None or not (self._beside or self.stage.scheduler.requests)

    @property
    def state(self) -> object:
        """A value that changes whenever a request makes progress."""
        requests = self.stage.scheduler.requests.values()
        return self.error, [(each.request_id, each.status, each.num_computed_tokens) for each in requests]

    def remembered(self, ended: Set[str]) -> dict[str, set[str]]:
        """The ended requests, of either engine, that the two sides of its connector still hold, by place."""
        if self.error is not None:
            return {}
        sides = {"scheduler": self.stage.connectors[0], "worker": self.worker.connectors[0]}
        return {
            f"{self.name} {side}: {place}": ids
            for side, connector in sides.items()
            for place, ids in leftovers.held(connector, ended, frozenset()).items()
        }

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> None:
        if self.error is not None:
            return
        try:
            call(*arguments)
        except Exception as died:  # an engine may die of anything
            self.error, self.trace = f"{type(died).__name__}: {died}", where(died)


def hands_over(name: str) -> bool:
    """Whether engines with the connector of this name can hand over to each other in one process."""
    cls = registration.untraced(name)
    known = None if cls is None else by_class(cls)
    return known is not None and known.hands_over and can_be_installed()


def can_be_paired(connector: str, config: Mapping[str, Any] | None) -> bool:
    """Whether engines with this connector can hand over to each other, by itself or by one of its children; `config` is its
    `kv_connector_extra_config`."""
    children = (config or {}).get("connectors", ())
    return any(map(hands_over, (connector, *(child.get("kv_connector", "") for child in children))))

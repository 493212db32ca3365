"""vLLM's MultiConnector: combines the fakes of its children, and their metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kvtrail.connector.known.fake import Fake, Job, fake_for


class MultiFake(Fake):
    """Combines the fakes of its children."""

    def __init__(self, extra: Mapping[str, Any]) -> None:
        super().__init__(extra)
        self._children = extra.get("connectors") or []
        self._fakes = [fake_for(child) for child in self._children]
        self.plans_loads = any(fake.plans_loads for fake in self._fakes)
        self.plans_copies = all(fake.plans_copies for fake in self._fakes)

    def configured(self, transfer: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        children = [fake.configured(child, folder) for fake, child in zip(self._fakes, self._children, strict=True)]
        extra = {**(transfer.get("kv_connector_extra_config") or {}), "connectors": children}
        return {**transfer, "kv_connector_extra_config": extra}

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for fake in self._fakes:
                stack.enter_context(fake.installed())
            yield

    def connectors(self, connector: Any) -> Sequence[Any]:
        return [connector, *connector._connectors]

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        children = zip(self._fakes, connector._connectors, plan.metadata, strict=True)
        for number, (fake, child, each) in enumerate(children):
            yield from (job._replace(child=number) for job in fake.jobs(child, each))

    def flushes(self, plan: Any, job: Job) -> bool:
        return self._fakes[job.child].flushes(plan.metadata[job.child], job)

    def worker_metadata(self, ended: Sequence[Job]) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorWorkerMetadata

        of_children = tuple(
            fake.worker_metadata([job for job in ended if job.child == number])
            for number, fake in enumerate(self._fakes)
        )
        return MultiKVConnectorWorkerMetadata(of_children) if any(of_children) else None


FAKE = MultiFake

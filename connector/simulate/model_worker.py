"""Workers with a made-up model: what they load, store and fail is bytes. Those that copy by the plan stand in for workers of
which kvtrail has a fake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Any

from kvtrail.connector.known.fake import Fake, Job
from kvtrail.connector.simulate.calls import Calls
from kvtrail.connector.simulate.model import Model
from kvtrail.connector.simulate.scenario import Workers
from kvtrail.connector.simulate.worker import FakeWorker


class ModelWorker(FakeWorker):
    """A load that fails is scribbled over.

    Attributes:
        model: whose KV caches they copy from and into.
    """

    def __init__(self, scheduler: Any, workers: Workers, fake: Fake, calls: Calls, model: Model) -> None:
        super().__init__(scheduler, workers, fake, calls, ranks=model.ranks)
        self.model = model

    def _fail(self, output: Any, report: Any) -> None:
        """Fail some of the loads between steps that are reported now."""
        for request_id in sorted(report.finished_recving or ()):
            report.invalid_block_ids |= self._failing(request_id)

    def _fail_synchronous(self, output: Any, report: Any) -> None:
        for request_id in output.num_scheduled_tokens:
            load = self._loads.get(request_id)
            if load is not None and not load.is_async:
                report.invalid_block_ids |= self._failing(request_id)

    def _failing(self, request_id: str) -> set[int]:
        """The blocks of a load that fails, as the seed says: those from some block on, or all."""
        whole, load = self._whole.pop(request_id, ()), self._loads.pop(request_id, None)
        if load is None or not load.blocks or self._rng.random() >= self._workers.load_failures:
            return set()
        failed = set(whole or load.blocks[self._rng.randrange(len(load.blocks)) :])
        self._calls.failed.add(request_id)
        self.model.fail(failed.intersection(load.blocks), request_id)
        return failed


class CopyingWorker(ModelWorker):
    """Copies what the connector's plan names, at the last moment: when a job's end is reported, or must be waited for."""

    def __init__(self, scheduler: Any, workers: Workers, fake: Fake, calls: Calls, model: Model) -> None:
        super().__init__(scheduler, workers, fake, calls, model)
        self._stores: dict[int, dict[Hashable, list[Any]]] = defaultdict(dict)
        """By child of a MultiConnector: what each place of its store holds, layer by layer."""

    def _end(self, names: Iterable[tuple[int, Hashable]]) -> list[Job]:
        ended = super()._end(names)
        for each in ended:
            self._copy(each)
        return ended

    def _forward(self, output: Any, report: Any) -> None:
        """What must be waited for has been; loads within the step come before it."""
        self.model.expect()
        for name, (step, each) in self._jobs.items():
            if step <= self._step and each.copies is not None and each.copies.loads and not each.loads:
                self._copy(each)
                self._jobs[name] = (step, each._replace(copies=None))
        self._fail_synchronous(output, report)
        self.model.begin(output, report.invalid_block_ids)
        for layer in self.model.caches:
            self.model.run(layer)
        self.model.end()

    def _end_waits(self, report: Any) -> None:
        super()._end_waits(report)
        self.model.received(sorted(report.finished_recving or ()), self.model.caches)

    def _copy(self, job: Job) -> None:
        if job.copies is None:
            return
        store = self._stores[job.child]
        for block, place in zip(job.copies.blocks, job.copies.places, strict=True):
            if job.copies.loads:
                for cache, rows in zip(self.model.caches.values(), store.get(place, ()), strict=False):
                    cache.tensor[block] = rows
                self.model.copied = True
            else:
                store[place] = [cache.tensor[block].clone() for cache in self.model.caches.values()]

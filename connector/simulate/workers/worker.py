"""The fake worker of a bare scheduler: its transfers end early, late, out of order, or with errors.

The protocol is real: each load that a request waits for ends once, jobs that a connector's fake reads from its plans end at
the latest when they must be flushed, blocks that a connector holds after a request's end are released, and the scheduler gets
the report in vLLM's own form. Bytes are copied only where there is a made-up model.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from kvtrail.connector.known.fake import Fake, Job, reports_transfers
from kvtrail.connector.simulate.calls import Calls, Load
from kvtrail.connector.simulate.scenario import Workers, job, wait
from kvtrail.connector.simulate.workers.model import Model


class FakeWorker:
    """A worker: call it with each `SchedulerOutput`, and it returns its report of that step.

    Attributes:
        model: the made-up model with the KV caches that it copies from and to; None if nothing is copied.
    """

    def __init__(
        self,
        scheduler: Any,
        workers: Workers,
        fake: Fake,
        calls: Calls,
        *,
        model: Model | None = None,
        ranks: int = 1,
    ) -> None:
        """`fake` belongs to the connector, and `calls` are the scheduler's calls of the connector. With a `model`, the copies
        that the connector plans happen at the last moment, when a job's end is reported or must be awaited; and the blocks
        of a failed load are overwritten."""
        self.model = model
        self.loads_may_fail = True
        self._stores: dict[int, dict[Hashable, list[Any]]] = defaultdict(dict)
        """By child of a MultiConnector and place in its store: the stored rows, layer by layer."""
        self._ranks = ranks
        self._scheduler = scheduler
        self._calls = calls
        self._workers = workers
        self._fake = fake
        self._rng = random.Random(workers.seed)
        self._jobs: dict[tuple[int, Hashable], tuple[int, Job]] = {}
        """The step in which each job ends, and the job, by child of a MultiConnector and key."""
        self._streams: dict[tuple[int, str], int] = {}
        """The step in which the latest job of each stream ends."""
        self._waits: dict[str, tuple[int, bool]] = {}
        """For each waiting request: the step in which its wait ends, and whether it waits for a load or for its blocks."""
        self._waited: Counter[str] = Counter()
        self._ends = dict(workers.ends)
        self._fails = dict(workers.fails)
        self._begun: Counter[str] = Counter()
        """The number of each request's loads that have begun."""
        self._loads: dict[str, Load] = {}
        """The load of each request that may still fail."""
        self._whole: dict[str, Sequence[int]] = {}
        """The blocks of each such load that fails as a whole; empty for others."""
        self._step = 0
        self._sampled: Mapping[str, Sequence[int]] = {}
        """The tokens that this step generates, by request."""
        self._sends = reports_transfers(getattr(scheduler.connector, "_kvtrail_plain", type(scheduler.connector)))
        calls.on_load.append(self._begin_load)

    def __call__(self, output: Any, sampled: Mapping[str, Sequence[int]]) -> Any:
        """The report after a step, in which each request was given these tokens: a `KVConnectorOutput`."""
        from vllm.v1.outputs import KVConnectorOutput

        self._step += 1
        self._sampled = sampled
        report = KVConnectorOutput()
        self._end_jobs(output, report)
        self._end_waits(report)
        self._fail(output, report)
        for each in self._fake.connectors(self._scheduler.connector):
            if alter := getattr(each, "alter_report", None):  # an injected fault
                alter(report)
        return report

    def _begin_load(self, request: Any, load: Load) -> None:
        self._loads[request.request_id] = load
        self._begun[request.request_id] += 1

    def _end_jobs(self, output: Any, report: Any) -> None:
        """Begin the jobs that a step plans, and report those that end in it. A load within the step ends at once and is not
        reported as received."""
        plan = output.kv_connector_metadata
        flushed = self._end([name for name, (_, each) in self._jobs.items() if self._fake.flushes(plan, each)])
        for each in self._fake.jobs(self._scheduler.connector, plan):
            ends = self._end_of(self._named(each))
            self._whole |= dict.fromkeys(each.loads, each.fills)
            if any(self._runs_now(request_id, output) for request_id in each.loads):
                ends, each = self._step, each._replace(loads=())
            if each.stream is not None:
                stream = (each.child, each.stream)
                ends = self._streams[stream] = max(ends, self._streams.get(stream, 0))
            self._jobs[each.child, each.key] = (ends, each)
        self._forward(output, report)
        ended = flushed + self._end([name for name, (step, _) in self._jobs.items() if step <= self._step])
        if loaded := {request_id for each in ended for request_id in each.loads}:
            report.finished_recving = loaded
        report.kv_connector_worker_meta = self._fake.worker_metadata(ended)
        for _ in range(1, self._ranks):
            if (more := self._fake.worker_metadata(ended)) is not None:
                report.kv_connector_worker_meta = report.kv_connector_worker_meta.aggregate(more)

    def _end(self, names: Iterable[tuple[int, Hashable]]) -> list[Job]:
        ended = [self._jobs.pop(name)[1] for name in names]
        for each in ended:
            self._copy(each)
        return ended

    def _copy(self, job: Job) -> None:
        if self.model is None or job.copies is None:
            return
        store = self._stores[job.child]
        for block, place in zip(job.copies.blocks, job.copies.places, strict=True):
            if job.copies.loads:
                for cache, rows in zip(self.model.caches.values(), store.get(place, ()), strict=False):
                    cache.tensor[block] = rows
                self.model.copied = True
            else:
                store[place] = [cache.tensor[block].clone() for cache in self.model.caches.values()]

    def _forward(self, output: Any, report: Any) -> None:
        """Run the forward pass of a step, after awaited jobs have been copied, and after loads within the step."""
        if self.model is None:
            return
        self.model.copy(output)
        self.model.expect()
        for name, (step, each) in self._jobs.items():
            if step <= self._step and each.copies is not None and each.copies.loads and not each.loads:
                self._copy(each)
                self._jobs[name] = (step, each._replace(copies=None))
        self._fail_within(output, report)
        self.model.begin(output, report.invalid_block_ids, self._sampled)
        for layer in self.model.caches:
            self.model.run(layer)
        self.model.end()

    def _runs_now(self, request_id: str, output: Any) -> bool:
        """Whether a request runs in this step on a load that its lookup declared to be synchronous."""
        load = self._calls.loads.get(request_id)
        return load is not None and not load.is_async and request_id in output.num_scheduled_tokens

    def _end_waits(self, report: Any) -> None:
        """End the waits of requests: for loads between steps, and for blocks that are held after a request's end."""
        from vllm.v1.request import RequestStatus

        busy = {request_id for _, each in self._jobs.values() for request_id in (*each.loads, *each.holds)}
        busy |= self._scheduler.finished_recving_kv_req_ids | (report.finished_recving or set())
        for request_id, request in self._scheduler.requests.items():
            loads = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
            if not (request.is_finished() or (loads and not self._fake.plans_loads)):
                continue
            if request_id not in self._waits and request_id not in busy:
                self._waits[request_id] = (self._end_of(wait(request_id, self._waited[request_id])), loads)
                self._waited[request_id] += 1
        for request_id in [request_id for request_id, (step, _) in self._waits.items() if step <= self._step]:
            _, loads = self._waits.pop(request_id)
            if request_id not in self._scheduler.requests:
                continue
            if loads:
                report.finished_recving = (report.finished_recving or set()) | {request_id}
            elif self._sends:
                report.finished_sending = (report.finished_sending or set()) | {request_id}

        if self.model is not None:
            self.model.received(sorted(report.finished_recving or ()), self.model.caches)

    def _fail(self, output: Any, report: Any) -> None:
        """Fail some loads between steps that end in this one, and without a model those of this step."""
        received = sorted(report.finished_recving or ())  # a set's order differs from process to process
        if self.model is not None:
            for request_id in received:
                report.invalid_block_ids |= self._failing(request_id)
        elif self._workers.load_failures or self._fails:
            for request_id in (*(new.req_id for new in output.scheduled_new_reqs), *received):
                report.invalid_block_ids |= self._failing(request_id)

    def _fail_within(self, output: Any, report: Any) -> None:
        """Fail some loads within the step, before the model reads them."""
        for request_id in output.num_scheduled_tokens:
            load = self._loads.get(request_id)
            if load is not None and not load.is_async:
                report.invalid_block_ids |= self._failing(request_id)

    def _failing(self, request_id: str) -> set[int]:
        """The blocks of a load that fail, from some block on or all of them: as recorded, or else drawn from the seed."""
        whole, load = self._whole.pop(request_id, ()), self._loads.pop(request_id, None)
        if load is None or not load.blocks or not self.loads_may_fail:
            return set()
        first = self._fails.get(wait(request_id, self._begun[request_id] - 1))
        if first is None and self._rng.random() < self._workers.load_failures:
            first = 0 if whole else self._rng.randrange(len(load.blocks))
        if first is None:
            return set()
        failed = set(whole or load.blocks[first:])
        self._calls.failed[request_id] = failed
        if self.model is not None:
            self.model.fail(failed.intersection(load.blocks), request_id)
        return failed

    def _named(self, each: Job) -> str:
        """The name of a job in `Workers.ends`: its number if it has one, or else its request's load, as in a history."""
        if isinstance(each.key, int) or not each.loads:
            return job(each.key)
        request_id = each.loads[0]
        self._waited[request_id] += 1
        return wait(request_id, self._waited[request_id] - 1)

    def _end_of(self, transfer: str) -> int:
        """The step in which a transfer ends: as given in `Workers.ends`, or drawn."""
        drawn = self._step + self._rng.randrange(self._workers.latest_steps + 1)
        return self._ends.get(transfer, drawn)

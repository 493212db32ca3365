"""The connector's own worker side on the KV caches of a made-up model, in memory. So a wrong block, a wrong slot or a copy
that is not done yet is seen in what a request reads.

A load that is to fail is scribbled over and reported; reports of ends are held back for some steps, as those of a slower rank
would be.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kvtrail.connector.known.fake import Fake
from kvtrail.connector.simulate.calls import Calls
from kvtrail.connector.simulate.model import Model
from kvtrail.connector.simulate.model_worker import ModelWorker
from kvtrail.connector.simulate.scenario import Workers, wait


class OwnWorker(ModelWorker):
    """In place of a `FakeWorker`, for connectors whose worker side runs on a CPU."""

    def __init__(
        self, scheduler: Any, workers: Workers, fake: Fake, calls: Calls, model: Model, config: Any, kv_cache: Any
    ) -> None:
        """
        Raises:
            Exception: whatever the connector's worker side raises where it cannot run here.
        """
        super().__init__(scheduler, workers, fake, calls, model)
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        caches = {name: cache.tensor for name, cache in self.model.caches.items()}
        self._connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv_cache)
        self._connector.register_kv_caches(caches)
        of_layers = {name: SimpleNamespace(kv_cache=cache) for name, cache in caches.items()}
        self._context: Any = SimpleNamespace(no_compile_layers=of_layers, attn_metadata=None, virtual_engine=0)
        self._held_back: dict[tuple[bool, str], int] = {}
        """The step in which an end is reported: of a load or of a send, and the request."""

    def _end_jobs(self, output: Any, report: Any) -> None:
        """Run the step as vLLM's model runner does, and take over what the connector's workers report."""
        worker = self._connector
        worker.bind_connector_metadata(output.kv_connector_metadata)
        worker.handle_preemptions(output.kv_connector_metadata)
        loads_first = getattr(output, "has_sync_kv_loads", True)  # an older vLLM always loads first
        if loads_first:
            self._ask(worker.start_load_kv, self._context)
        self._fail_synchronous(output, report)
        self._forward(output, report)
        if not loads_first:
            self._ask(worker.start_load_kv, self._context)
        self._ask(worker.wait_for_save)
        results = self._ask(_transfer_results, worker, output.finished_req_ids)
        report.invalid_block_ids |= worker.get_block_ids_with_load_errors()
        report.failed_recving = results.failed_recving
        report.kv_connector_worker_meta = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        self.model.received(sorted(results.finished_recving or ()))
        for loads, ended in ((True, results.finished_recving), (False, results.finished_sending)):
            for request_id in sorted(ended or ()):  # a set's order differs from process to process
                end = self._end_of(wait(request_id, self._waited[request_id]))
                self._held_back[loads, request_id] = max(end, self._held_back.get((loads, request_id), 0))
                self._waited[request_id] += 1

    def _ask(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call the worker; from its first load on, until it has written to a KV cache, look whether it does."""
        if self.model.copied or not self._calls.loads:
            return call(*args)
        before = self.model.checksum()
        answer = call(*args)
        self.model.copied |= before != self.model.checksum()
        return answer

    def _forward(self, output: Any, report: Any) -> None:
        """Each layer waits for its loads."""
        self.model.begin(output, report.invalid_block_ids)
        for layer, cache in self.model.caches.items():
            self._connector.wait_for_layer_load(layer)
            self.model.run(layer)
            self._connector.save_kv_layer(layer, cache.tensor, self._context.attn_metadata)
        self.model.end()

    def _end_waits(self, report: Any) -> None:
        """Report what has ended by now."""
        over = [name for name, step in self._held_back.items() if step <= self._step]
        for loads, request_id in over:
            del self._held_back[loads, request_id]
            if loads:
                report.finished_recving = (report.finished_recving or set()) | {request_id}
            else:
                report.finished_sending = (report.finished_sending or set()) | {request_id}


def _transfer_results(worker: Any, ended: set[str]) -> Any:
    """What a worker says of its transfers, as vLLM asks it in this version; `ended` are the requests that have ended."""
    if hasattr(worker, "get_transfer_results"):
        return worker.get_transfer_results(ended)
    sending, recving = worker.get_finished(ended)
    return SimpleNamespace(finished_sending=sending, finished_recving=recving, failed_recving=set())

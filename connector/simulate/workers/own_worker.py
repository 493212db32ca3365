"""Runs the connector's own worker side on the KV caches of a made-up model, in memory. So a wrong block, a wrong slot or a
late copy shows in what a request reads.

The blocks of a load that should fail are overwritten and reported. Reports of completed transfers are delayed by some steps,
as those of a slower rank are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from kvtrail.connector.known.fake import Fake
from kvtrail.connector.simulate.calls import Calls
from kvtrail.connector.simulate.scenario import Workers, wait
from kvtrail.connector.simulate.workers.contents import LayerCache
from kvtrail.connector.simulate.workers.model import Model
from kvtrail.connector.simulate.workers.worker import FakeWorker

LAYOUT = "LBHNC"
"""The order of dimensions of all KV caches here, as vLLM names it: layer, block, head, token, and what a head keeps of it."""


class _Rank(NamedTuple):
    """A rank's connector, its layers by their names in the model, and its forward context."""

    connector: Any
    layers: Mapping[str, LayerCache]
    context: Any


class OwnWorker(FakeWorker):
    """The worker of connectors whose worker side runs on a CPU, with one connector object for each tensor-parallel rank."""

    model: Model

    def __init__(
        self, scheduler: Any, workers: Workers, fake: Fake, calls: Calls, model: Model, config: Any, kv_cache: Any
    ) -> None:
        """
        Raises:
            Exception: whatever the connector's worker side raises where it cannot run here.
        """
        super().__init__(scheduler, workers, fake, calls, model=model, ranks=model.ranks)
        if getattr(config.cache_config, "kv_cache_layout", LAYOUT) is None:
            config.cache_config.kv_cache_layout = LAYOUT  # as vLLM's engine core sets what its workers agree on
        self._of_ranks = [_rank(number, model, config, kv_cache) for number in range(model.ranks)]
        _announce(scheduler.connector, [rank.connector for rank in self._of_ranks])
        self._reports: list[Any] = []
        """The reports of this step, by rank."""
        self._held_back: dict[tuple[int, bool, str], int] = {}
        """The step in which a completed transfer is reported, by rank, whether it is a load, and request."""
        self._failed: list[set[str]] = [set() for _ in range(model.ranks)]
        """By rank, the failed loads that are not reported yet."""
        if model.ranks > 1:
            from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

            self._aggregator = KVOutputAggregator.from_connector(scheduler.connector, model.ranks)

    @property
    def connectors(self) -> list[Any]:
        """The connector's own worker side, on each rank."""
        return [rank.connector for rank in self._of_ranks]

    def _end_jobs(self, output: Any, report: Any) -> None:
        """Run the step as vLLM's model runners do, and collect the reports of the connector's workers."""
        from vllm.v1.outputs import KVConnectorOutput

        loads_first = getattr(output, "has_sync_kv_loads", True)  # an older vLLM always loads first
        for number, rank in enumerate(self._of_ranks):
            # vLLM's worker processes each unpickle a plan of their own, which they may change.
            plan = copy.deepcopy(output.kv_connector_metadata) if number else output.kv_connector_metadata
            rank.connector.bind_connector_metadata(plan)
            rank.connector.handle_preemptions(plan)
        self.model.copy(output)
        self.model.expect()
        if loads_first:
            for rank in self._of_ranks:
                rank.connector.start_load_kv(rank.context)
        self._fail_within(output, report)
        self._forward(output, report)
        self._reports = []
        for number, rank in enumerate(self._of_ranks):
            if not loads_first:
                rank.connector.start_load_kv(rank.context)
            rank.connector.wait_for_save()
            results = _transfer_results(rank.connector, output.finished_req_ids)
            own = KVConnectorOutput(invalid_block_ids=set(rank.connector.get_block_ids_with_load_errors()))
            own.kv_connector_worker_meta = rank.connector.build_connector_worker_meta()
            rank.connector.clear_connector_metadata()
            self._reports.append(own)
            self._hold_back(number, results, own.invalid_block_ids)

    def _hold_back(self, number: int, results: Any, invalid: set[int]) -> None:
        """Delay a rank's report of completed transfers by some steps, and so beyond other ranks. The `invalid` blocks were
        not loaded."""
        failed, ended = results.failed_recving or set(), results.finished_recving or set()
        for request_id in sorted(failed & self._calls.loads.keys()):
            self.model.fail(self._calls.loads[request_id].all_blocks, request_id)
        self._failed[number] |= failed
        received = ended - failed
        if invalid:
            for request_id in sorted(received & self._calls.loads.keys()):
                if of_it := invalid.intersection(self._calls.loads[request_id].all_blocks):
                    self.model.fail(of_it, request_id)
        self.model.received(sorted(received), self._of_ranks[number].layers)
        for loads, ended in ((True, results.finished_recving), (False, results.finished_sending)):
            for request_id in sorted(ended or ()):  # a set's order differs from process to process
                end, held = self._end_of(wait(request_id, self._waited[request_id])), (number, loads, request_id)
                self._held_back[held] = max(end, self._held_back.get(held, 0))
                self._waited[request_id] += 1

    def _forward(self, output: Any, report: Any) -> None:
        """Run the forward pass; each layer waits for its loads."""
        self.model.begin(output, report.invalid_block_ids, self._sampled)
        for rank in self._of_ranks:
            for layer, cache in rank.layers.items():
                if cache.is_state:  # vLLM asks for attention layers only
                    self.model.run(layer)
                    continue
                rank.connector.wait_for_layer_load(cache.layer)
                self.model.run(layer)
                rank.connector.save_kv_layer(cache.layer, cache.tensor, rank.context.attn_metadata)
        self.model.end()

    def _end_waits(self, report: Any) -> None:
        """Report the transfers that have ended by now; with several ranks, those that all of them have reported."""
        over = [name for name, step in self._held_back.items() if step <= self._step]
        for number, loads, request_id in over:
            del self._held_back[number, loads, request_id]
            own, which = self._reports[number], "finished_recving" if loads else "finished_sending"
            setattr(own, which, (getattr(own, which) or set()) | {request_id})
            if loads and request_id in self._failed[number]:  # vLLM reports that with the end
                self._failed[number].remove(request_id)
                own.failed_recving = (own.failed_recving or set()) | {request_id}
        whole = self._reports[0]
        if len(self._reports) > 1:
            outputs = [SimpleNamespace(kv_connector_output=own) for own in self._reports]
            whole = self._aggregator.aggregate(outputs).kv_connector_output
        for name in ("finished_sending", "finished_recving", "failed_recving", "kv_connector_worker_meta"):
            setattr(report, name, getattr(whole, name, None))  # older versions of vLLM lack some
        report.invalid_block_ids |= whole.invalid_block_ids


def _rank(number: int, model: Model, config: Any, kv_cache: Any) -> _Rank:
    from vllm.config import set_current_vllm_config
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    layers = {name: cache for name, cache in model.caches.items() if cache.rank == number}
    caches: dict[str, Any] = {
        cache.layer: [cache.tensor] if cache.is_state else cache.tensor for cache in layers.values()
    }
    if number:
        config = copy.copy(config)
        config.parallel_config = copy.copy(config.parallel_config)
        config.parallel_config.rank = number
    with set_current_vllm_config(config):
        connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv_cache)
    connector.register_kv_caches(caches)
    of_layers = {name: SimpleNamespace(kv_cache=cache) for name, cache in caches.items()}
    return _Rank(connector, layers, SimpleNamespace(no_compile_layers=of_layers, attn_metadata=None, virtual_engine=0))


def _announce(connector: Any, workers: list[Any]) -> None:
    """Pass the workers' handshake metadata to the scheduler's side, as vLLM's engine does."""
    said = {(0, rank): worker.get_handshake_metadata() for rank, worker in enumerate(workers)}
    if any(said.values()):
        connector.set_xfer_handshake_metadata_pp_aware(said)


def _transfer_results(worker: Any, ended: set[str]) -> Any:
    """A worker's transfer results, as this version of vLLM asks for them; `ended` are the requests that have ended."""
    if hasattr(worker, "get_transfer_results"):
        return worker.get_transfer_results(ended)
    sending, recving = worker.get_finished(ended)
    return SimpleNamespace(finished_sending=sending, finished_recving=recving, failed_recving=set())

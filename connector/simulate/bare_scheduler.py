"""Runs scenarios on an engine without a model: vLLM's bare scheduler.

The scheduler, its prefix cache, its preemptions and the connector's scheduler side are real. The model and the workers are
fakes, so that it runs thousands of steps per second.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from kvtrail.connector.known.fake import fake_for
from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.simulate.calls import Calls
from kvtrail.connector.simulate.scenario import Arrival, When, Workers, tokens
from kvtrail.connector.simulate.workers.contents import Shared
from kvtrail.connector.simulate.workers.model import Model
from kvtrail.connector.simulate.workers.own_worker import OwnWorker
from kvtrail.connector.simulate.workers.worker import FakeWorker
from kvtrail.tracer.events.cache_groups import CacheGroup

HANDED_ON = {"do_remote_decode": True}
"""The `kv_transfer_params` for a request that is prefilled here and decoded by another engine."""


class BareScheduler:
    """vLLM's scheduler and KV cache manager without a model. Tokens are drawn from the request's seed, so a run repeats
    exactly.

    Attributes:
        scheduler: vLLM's scheduler.
        steps: number of scheduling steps so far.
        latest_steps: number of steps within which every transfer ends.
        block_sizes: tokens per block of each KV cache group.
        hash_block_size: tokens per hash in a request's `block_hashes`.
        calls: the calls between the scheduler and the connector; none without a connector.
        worker: the connector's workers, real or fake; None without a connector.
        connectors: the connector and its children.
        shared: the prefixes and the seed that engines of the same model share.
        observers: called after each step with vLLM's output and the workers' report.
        on_outputs: called after each step with what the clients get, vLLM's `EngineCoreOutput` of each request.
    """

    def __init__(
        self,
        folder: Path,
        connector: Mapping[str, Any] | None = None,
        *,
        own_workers: bool = False,
        copies: bool = False,
        num_blocks: int = 64,
        block_size: int = tiny_model.BLOCK_SIZE,
        seed: int = 0,
        drafts: int = 0,
        groups: Sequence[CacheGroup] = (),
        workers: Workers = Workers(),  # noqa: B008 - frozen
        shared: Shared | None = None,
        **overrides: Any,
    ) -> None:
        """
        Args:
            folder: for the model's configuration and what a fake backend stores.
            connector: a `kv_transfer_config`; None runs without a connector.
            own_workers: run the connector's own worker side, on KV caches in memory, instead of a fake.
            copies: let the fake workers copy KV caches in memory, where the connector's plans list the copies.
            drafts: speculative tokens per step; a random part of them is rejected.
            groups: KV cache groups of the model, a layer each; none for one group of all layers.
            workers: how the fake workers behave.
            shared: the prefixes and the seed that engines of the same model share; None if there are no others.
            overrides: vLLM engine arguments.

        Raises:
            ValueError, ImportError: vLLM refuses a setting or the connector.
        """
        tiny_model.prepare_environment()
        from vllm.plugins import load_general_plugins
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager

        load_general_plugins()
        fake = None
        if connector is not None:
            fake = fake_for(connector)
            connector = fake.configured(connector, folder)
        size = {"num_gpu_blocks_override": num_blocks, "block_size": block_size}
        if len(groups) > 1:
            overrides = {"disable_hybrid_kv_cache_manager": False, **overrides}
        config = tiny_model.engine_config(folder, connector, drafts=drafts, seed=seed, **size, **overrides)
        config.cache_config.num_gpu_blocks = num_blocks
        self.config = config
        self.steps, self.latest_steps = 0, workers.latest_steps
        ranks = config.parallel_config.tensor_parallel_size
        kv_cache = tiny_model.kv_cache(num_blocks, block_size, ranks=ranks, groups=groups)
        _hold_states(config, kv_cache, drafts)
        scheduler_block_size, hash_block_size = _block_sizes(kv_cache, config)
        with nullcontext() if fake is None else fake.installed():
            self.scheduler = Scheduler(
                config,
                kv_cache,
                StructuredOutputManager(config),
                block_size=scheduler_block_size,
                hash_block_size=hash_block_size,
                log_stats=True,
            )
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(hash_block_size, hash_function)
        self.hash_block_size = hash_block_size
        self._seed = seed
        self._drafts = drafts
        self.block_sizes = [group.kv_cache_spec.block_size for group in kv_cache.kv_cache_groups]
        self.observers: list[Callable[[Any, Any], None]] = []
        self.on_outputs: list[Callable[[Sequence[Any]], None]] = []
        self.connectors: Sequence[Any] = ()
        self.shared = shared or Shared()
        self.calls = Calls(self.scheduler.connector, self.block_sizes)
        self.worker: FakeWorker | None = None
        if fake is not None:
            self.connectors = fake.connectors(self.scheduler.connector)
            parts = self.scheduler, workers, fake, self.calls
            if own_workers:
                self.worker = OwnWorker(*parts, self._model(kv_cache), config, kv_cache)
            else:
                model = self._model(kv_cache) if copies and fake.plans_copies else None
                self.worker = FakeWorker(*parts, model=model, ranks=ranks)
        self._outputs: dict[str, Sequence[int]] = {}

    def _model(self, kv_cache: Any) -> Model:
        return Model(self.scheduler, self.calls, kv_cache, self.config, self.shared)

    def arrive(self, arrival: Arrival) -> None:
        """Add a request of a scenario."""
        self.add(
            arrival.id,
            tokens(arrival.prompt),
            arrival.max_tokens,
            priority=arrival.priority,
            output=tokens(arrival.output),
            salt=arrival.salt,
            adapter=arrival.adapter,
            transfer={**HANDED_ON, "transfer_id": arrival.id} if arrival.handed_on else None,
        )

    def add(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        *,
        priority: int = 0,
        output: Sequence[int] = (),
        salt: str | None = None,
        adapter: Any = "",
        transfer: Mapping[str, Any] | None = None,
    ) -> Any:
        """Add a request, which is answered with `output`, then with tokens drawn from the seed; returns vLLM's object. The
        adapter is the name of a LoRA adapter, which exists by its name only, or vLLM's `LoRARequest`; `transfer` are its
        `kv_transfer_params`."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.v1.request import Request

        if adapter and isinstance(adapter, str):
            adapter = LoRARequest(adapter, 1 + zlib.crc32(adapter.encode()), f"/{adapter}")
        request = Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(
                temperature=0,
                max_tokens=max_tokens,
                ignore_eos=True,
                extra_args=None if transfer is None else {"kv_transfer_params": dict(transfer)},
            ),
            pooling_params=None,
            block_hasher=self._hasher,
            priority=priority,
            cache_salt=salt or None,
            lora_request=adapter or None,
        )
        self._outputs[request_id] = output
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        """Abort a request, as when its client disconnects."""
        from vllm.v1.request import RequestStatus

        self._forget_failed((request_id,))
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def is_in(self, request_id: str, when: When) -> bool:
        """Whether a request that has not ended is in a state."""
        from vllm.v1.request import RequestStatus

        request = self.scheduler.requests.get(request_id)
        if request is None or request.is_finished():
            return False
        waits = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        match when:
            case When.MATCHED:
                return waits and bool(self.calls.answers.get(request_id, (0, False))[0])
            case When.DEFERRED:
                return waits and self.calls.answers.get(request_id, (0, False))[0] is None
            case When.LOADING:
                return bool(request.status is RequestStatus.WAITING_FOR_REMOTE_KVS)
            case When.PREEMPTED:
                return bool(request.status is RequestStatus.PREEMPTED)
            case When.FAILED:
                return request_id in self.calls.failed

    def step(self, observe: Callable[[Any], None] = lambda output: None) -> int:
        """Run one scheduling step with a fake answer of the model; returns how many tokens it ran.

        `observe` sees vLLM's output before the answer is applied, while the requests still hold the blocks of the step.
        """
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        self._reserve_nothing_twice()
        self._queue_who_holds_nothing()
        output = self.scheduler.schedule()
        self._forget_failed(output.preempted_req_ids or ())
        observe(output)
        ids = list(output.num_scheduled_tokens)
        drafts = output.scheduled_spec_decode_tokens
        sampled = {request_id: self._sample(request_id, len(drafts.get(request_id, ()))) for request_id in ids}
        answer = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: n for n, request_id in enumerate(ids)},
            sampled_token_ids=list(sampled.values()),
            kv_connector_output=None if self.worker is None else self.worker(output, sampled),
        )
        received = answer.kv_connector_output
        if received is not None and (invalid := received.invalid_block_ids):
            self.calls.failed |= {each: held for each in ids if invalid & (held := self._blocks(each))}
        of_clients = self.scheduler.update_from_output(output, answer)
        for on_outputs in self.on_outputs:
            on_outputs([each for client in of_clients.values() for each in client.outputs])
        for observer in self.observers:
            observer(output, answer.kv_connector_output)
        if self._drafts:
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, [[3] * self._drafts for _ in ids]))
        self.steps += 1
        return int(output.total_num_scheduled_tokens)

    def _forget_failed(self, gone: Collection[str]) -> None:
        """Drop the blocks of these requests from vLLM's prefix cache, if one of their loads has failed. vLLM keeps the failed
        blocks and those computed from them, and would give them to other requests, and to a preempted request itself, as
        computed. This is a fault of vLLM (docs/findings.md), not of a connector."""
        for request_id in gone:
            if request_id in self.calls.failed:
                self.scheduler.kv_cache_manager.evict_blocks(self.calls.failed[request_id])

    def _reserve_nothing_twice(self) -> None:
        """Drop vLLM's reservation for each request that holds no blocks, for example after its load between steps failed at
        the first block. vLLM reserves the blocks that such a request needs, and then allocates only blocks outside the
        reservation: a fault of vLLM (docs/findings.md)."""
        reserved: set[Any] = getattr(self.scheduler, "_inflight_prefills", set())  # other versions reserve nothing
        reserved -= {request for request in reserved if not self._blocks(request.request_id)}

    def _queue_who_holds_nothing(self) -> None:
        """Move each request without blocks from vLLM's queue of requests with blocks to the other one: its load between steps
        failed at the first block. At the head of the first queue, it waits forever for blocks that are reserved for the
        requests behind it: a fault of vLLM (docs/findings.md)."""
        holding: Any = getattr(self.scheduler, "kv_holding_waiting", ())  # other versions have one queue
        for request in [each for each in holding if not self._blocks(each.request_id)]:
            holding.remove_request(request)
            self.scheduler.waiting.prepend_request(request)

    def others_share_failed(self, request_id: str) -> bool:
        """Whether other requests hold blocks of a failed load of this one. vLLM lets only this request compute them again. If
        it is aborted before that, the others run on the failed blocks: another fault of vLLM."""
        if request_id not in self.calls.failed or request_id not in self.calls.loads:
            return False
        loaded, others = self.calls.loads[request_id].all_blocks, self.scheduler.requests.keys() - {request_id}
        return any(loaded & self._blocks(each) for each in others)

    def _blocks(self, request_id: str) -> set[int]:
        """The blocks of a request, in all KV cache groups."""
        return set().union(*self.scheduler.kv_cache_manager.get_block_ids(request_id))

    def close(self) -> None:
        """Shut the scheduler down, and with it the connector."""
        self.scheduler.shutdown()

    def run(self) -> None:
        """Step until all requests have ended."""
        while self.scheduler.has_unfinished_requests():
            self.step()

    def _sample(self, request_id: str, drafted: int) -> list[int]:
        """The tokens that a step generates for a request: one, and one for each accepted draft; none during its prefill."""
        request = self.scheduler.requests[request_id]
        if request.num_computed_tokens < request.num_tokens:
            return []
        rng = random.Random(f"{self._seed}/{request_id}/{request.num_tokens}")
        sampled = [
            rng.randrange(3, tiny_model.VOCABULARY) for _ in range(1 + (rng.randrange(drafted + 1) if drafted else 0))
        ]
        given = self._outputs[request_id][request.num_output_tokens :][: len(sampled)]
        return [*given, *sampled[len(given) :]]


def _hold_states(config: Any, kv_cache: Any, drafts: int) -> None:
    """Configure vLLM for recurrent layers, if there are any, as vLLM itself does when prefix caching is on.

    Raises:
        ValueError: recurrent states with speculative tokens are not simulated.
    """
    for group in kv_cache.kv_cache_groups:
        if hasattr(group.kv_cache_spec, "mamba_cache_mode"):
            if drafts:
                raise ValueError("speculative tokens are not simulated with recurrent states")
            config.cache_config.mamba_cache_mode = group.kv_cache_spec.mamba_cache_mode


def _block_sizes(kv_cache: Any, config: Any) -> tuple[int, int]:
    """Tokens of a block in vLLM's scheduler, and tokens of a block hash."""
    try:
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
    except ImportError:  # an older vLLM, in which all groups have one size
        return config.cache_config.block_size, config.cache_config.block_size
    sizes: tuple[int, int] = resolve_kv_cache_block_sizes(kv_cache, config)
    return sizes

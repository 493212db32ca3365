"""`Traced<X>`: a subclass of any connector class X that records the calls between vLLM's scheduler and X.

It is a subclass and not a wrapper, because vLLM asks classes, not objects (`issubclass(cls, SupportsHMA)`,
`get_required_kvcache_layout`, `build_prom_metrics`, ...), and a subclass answers every such question as X does. Of a worker's
methods only those that copy are overridden, and only if a probe sees what they copy.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache, wraps
from itertools import count
from time import monotonic_ns
from typing import Any

from kvtrail.connector.known import UNTRACED, by_class, capabilities_declared, plain_name
from kvtrail.connector.known.probe import Probe, probe_for
from kvtrail.connector.recording.encoder import attribute
from kvtrail.connector.recording.recorder import of_process
from kvtrail.connector.settings import Settings, Unsampled
from kvtrail.connector.tracing.instrumentation import Instrumentation
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")

_instances = count()


class Tracing:
    """Mixed in before a connector class. Every method calls the connector's own and returns its answer unchanged; only a
    guard that the user asked for replaces a lookup's answer.
    """

    _kvtrail_plain: Any
    """The connector class. Its methods are called directly, since `super()` takes three times as long."""
    _kvtrail: Instrumentation
    _kvtrail_look_up: Callable[..., tuple[int | None, bool]]
    _kvtrail_build: Callable[..., Any]
    _kvtrail_update: Callable[..., Any]
    _kvtrail_finishing = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Sets what the methods of every step need, before the constructor: that may call methods, and the destructor runs
        even if it fails. These are attributes of the object and of no class, which CPython finds soonest."""
        self: Any = super().__new__(cls)
        plain = cls._kvtrail_plain
        self._kvtrail = Instrumentation()
        self._kvtrail_look_up = plain.get_num_new_matched_tokens
        self._kvtrail_build = plain.build_connector_meta
        self._kvtrail_update = plain.update_connector_output
        return self

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        transfer = vllm_config.kv_transfer_config
        settings = Settings.read((transfer.kv_connector_extra_config or {}).get("kvtrail"))
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]  # the connector class is next
        name, known = plain_name(self._kvtrail_plain), by_class(self._kvtrail_plain)
        if transfer.kv_connector == f"Traced{name}" and known is not None and known.compared_by_name:
            logger.warning(
                "kvtrail: vLLM decides some things by the name %s, which %s hides from it; better say kv_connector %r"
                " with kv_connector_module_path 'kvtrail.connector'",
                *(name, transfer.kv_connector, name),
            )
        source = {
            semconv.CONNECTOR.key: name,
            semconv.CONNECTOR_ID.key: str(next(_instances)),
            semconv.ROLE.key: role.name.lower(),
            semconv.RANK.key: vllm_config.parallel_config.rank if role.name == "WORKER" else 0,
        }
        probe = probe_for(self._kvtrail_plain)
        if (chunk_size := _chunk_size(probe, self)) is not None:
            source[semconv.CHUNK_SIZE.key] = chunk_size
        resource = _resource(self._kvtrail_plain, vllm_config, kv_cache_config)
        if settings.unsampled is Unsampled.DROP:
            resource[semconv.SAMPLED_ONLY.key] = True
        recorder = of_process(str(transfer.engine_id), resource)
        if recorder is not None:
            recorder.level.set(settings.level, settings.level_file)
        self._kvtrail = Instrumentation(
            recorder,
            name=name,
            source=b"".join(attribute(key, value) for key, value in source.items()),
            probe=probe,
            guard=settings.guard,
        )

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> Any:
        result = self._kvtrail_plain.bind_kv_cache_manager(self, kv_cache_manager)
        self._kvtrail.pool_bound(kv_cache_manager)
        return result

    def on_new_request(self, request: Any) -> Any:
        result = self._kvtrail_plain.on_new_request(self, request)
        self._kvtrail.request_started(request)
        return result

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        start_ns, look_up = monotonic_ns(), self._kvtrail_look_up
        try:
            answer = look_up(self, request, num_computed_tokens)
        except BaseException as error:
            values = (request.num_tokens, num_computed_tokens, None, None, None, None, None, None)
            self._kvtrail.failed(Kind.LOOKUP, request, start_ns, values, error)
            raise
        return self._kvtrail.looked_up(self, request, num_computed_tokens, start_ns, answer)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        start_ns = monotonic_ns()
        try:
            result = self._kvtrail_plain.update_state_after_alloc(self, request, blocks, num_external_tokens)
        except BaseException as error:
            self._kvtrail.allocated(self, request, blocks, num_external_tokens, start_ns, error)
            raise
        self._kvtrail.allocated(self, request, blocks, num_external_tokens, start_ns)
        return result

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        build = self._kvtrail_build
        metadata = build(self, scheduler_output)
        self._kvtrail.step_built(self, scheduler_output, metadata)
        return metadata

    def update_connector_output(self, connector_output: Any) -> Any:
        instrumentation, update, out = self._kvtrail, self._kvtrail_update, connector_output
        ended = instrumentation.transfers_ended(self, out) if instrumentation.sees_ends else ()
        result = update(self, out)
        try:
            reported = ended or out.finished_recving or out.finished_sending or out.invalid_block_ids
        except AttributeError:
            reported = True  # another vLLM's report: recorded as far as it is understood
        if reported:
            instrumentation.workers_reported(self, out, ended)
        return result

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Any]:
        return self._kvtrail_finish(request, self._kvtrail_plain.request_finished, block_ids)

    def reset_cache(self) -> bool | None:
        succeeded: bool | None = self._kvtrail_plain.reset_cache(self)
        self._kvtrail.cache_reset(succeeded)
        return succeeded

    def shutdown(self) -> Any:
        try:
            return self._kvtrail_plain.shutdown(self)
        finally:
            self._kvtrail.flush()

    def _kvtrail_finish(self, request: Any, plain: Callable[..., tuple[bool, Any]], block_ids: Any) -> tuple[bool, Any]:
        if self._kvtrail_finishing:  # a connector may call one of its methods from the other
            return plain(self, request, block_ids)
        self._kvtrail_finishing = True
        try:
            delayed, params = plain(self, request, block_ids)
        finally:
            self._kvtrail_finishing = False
        self._kvtrail.request_ended(request, delayed)
        return delayed, params


class TracingHMA(Tracing):
    """For connectors that support vLLM's hybrid memory allocator, which end a request through another method."""

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        return self._kvtrail_finish(request, self._kvtrail_plain.request_finished_all_groups, block_ids)


@cache
def traced(cls: type) -> type:
    """The traced subclass of a connector class, always the same for the same class.

    Raises:
        TypeError: `cls` is not a `KVConnectorBase_V1`.
    """
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, supports_hma

    if not (isinstance(cls, type) and issubclass(cls, KVConnectorBase_V1)):
        raise TypeError(f"kvtrail: {cls!r} is no KVConnectorBase_V1 class and cannot be traced")
    if issubclass(cls, Tracing):
        return cls
    mixin = TracingHMA if supports_hma(cls) else Tracing
    name = plain_name(cls) if cls.__name__.startswith(UNTRACED) else f"Traced{cls.__name__}"
    own: dict[str, Any] = {
        "__module__": "kvtrail.connector",
        "__qualname__": name,
        "__doc__": cls.__doc__,
        "_kvtrail_plain": cls,
    }
    probe = probe_for(cls)
    for call, record in ((probe.load_call, Instrumentation.loaded), (probe.store_call, Instrumentation.stored)):
        if call is not None:
            own[call] = _moving(getattr(cls, call), record)
    return type(name, (mixin, cls), own)


def _moving(plain: Callable[..., Any], record: Callable[[Instrumentation, Any, int], None]) -> Callable[..., Any]:
    """A worker's method that copies, and records what it has copied."""

    @wraps(plain)
    def moving(self: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns = monotonic_ns()
        result = plain(self, *args, **kwargs)
        record(self._kvtrail, self, start_ns)
        return result

    return moving


def _chunk_size(probe: Probe, connector: Any) -> int | None:
    try:
        return probe.chunk_size(connector)
    except Exception:
        logger.exception("kvtrail: the chunk size of %s cannot be read and is left out", type(connector).__name__)
        return None


def _resource(cls: type, vllm_config: Any, kv_cache_config: Any) -> dict[str, Any]:
    """What a replay needs to know of the engine; what another vLLM calls differently is left out."""
    import vllm

    parallel, scheduler = vllm_config.parallel_config, getattr(vllm_config, "scheduler_config", None)
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config or {}
    plain = {key: value for key, value in extra.items() if isinstance(value, bool | int | float)}
    speculation = getattr(vllm_config, "speculative_config", None)
    spread = getattr(parallel, "decode_context_parallel_size", 1) * getattr(
        parallel, "prefill_context_parallel_size", 1
    )
    known = {
        semconv.BLOCK_SIZE.key: int(vllm_config.cache_config.block_size) * int(spread),  # as the scheduler counts
        semconv.MODEL.key: str(getattr(vllm_config.model_config, "model", "")),
        semconv.SERVED_MODEL.key: getattr(vllm_config.model_config, "served_model_name", None),
        semconv.ENGINE_VERSION.key: vllm.__version__,
        semconv.POOL_BLOCKS.key: getattr(kv_cache_config, "num_blocks", None),
        semconv.MAX_BATCHED.key: getattr(scheduler, "max_num_batched_tokens", None),
        semconv.MAX_SEQUENCES.key: getattr(scheduler, "max_num_seqs", None),
        semconv.MAX_LENGTH.key: getattr(vllm_config.model_config, "max_model_len", None),
        semconv.POLICY.key: getattr(scheduler, "policy", None),
        semconv.RESERVES.key: getattr(scheduler, "scheduler_reserve_full_isl", None),
        semconv.ASYNC_SCHEDULING.key: getattr(scheduler, "async_scheduling", None),
        semconv.PREFIX_CACHING.key: getattr(vllm_config.cache_config, "enable_prefix_caching", None),
        semconv.DRAFTS.key: getattr(speculation, "num_speculative_tokens", None) or 0,
        semconv.CONNECTOR_SETTINGS.key: json.dumps(plain, sort_keys=True),
        semconv.CAPABILITIES.key: capabilities_declared(cls),
        semconv.LAUNCH.key: getattr(vllm_config, "instance_id", None) or None,
    }
    return {key: value for key, value in known.items() if value is not None}

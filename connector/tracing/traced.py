"""`Traced<X>`: a subclass of any connector class X that records the calls between vLLM's scheduler and X.

It is a subclass and not a wrapper, because vLLM asks classes, not objects (`issubclass(cls, SupportsHMA)`,
`get_required_kvcache_layout`, `build_prom_metrics`, ...), and a subclass answers every such question as X does. On a worker,
it overrides methods that vLLM calls at most once per step, for their exceptions, and methods that copy, if a probe observes
the copies. Methods that vLLM calls for every layer are not overridden.
"""

from __future__ import annotations

import inspect
import json
import logging
import sys
import weakref
from collections.abc import Callable
from functools import cache, wraps
from itertools import count
from operator import index
from time import monotonic_ns
from typing import Any

from kvtrail.connector.cache_groups import groups_in
from kvtrail.connector.fingerprints.comparability import identity_of
from kvtrail.connector.known import (
    UNTRACED,
    KnownConnector,
    by_class,
    capabilities_declared,
    importable_as,
    patience_declared,
    plain_name,
)
from kvtrail.connector.known.probe import Probe, probe_for
from kvtrail.connector.recording.encoder import attribute
from kvtrail.connector.recording.recorder import of_process
from kvtrail.connector.settings import Fingerprints, Heartbeats, Settings, Switch, Unsampled
from kvtrail.connector.tracing import block_checks
from kvtrail.connector.tracing.block_checks import BlockChecks
from kvtrail.connector.tracing.instrumentation import Instrumentation
from kvtrail.connector.tracing.nesting import Nesting
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.connector.tracing.worker_side import WorkerInstrumentation
from kvtrail.connector.vllm_version import unsupported
from kvtrail.tracer.events import cache_groups, semconv
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.unsupported import Lack, declaration

logger = logging.getLogger("vllm.kvtrail")

_instances = count()
WATCHED = (
    "register_finished_partial_tail", "register_kv_caches", "handle_preemptions", "bind_connector_metadata", "start_load_kv",
    "finish_forward", "wait_for_save", "get_finished", "get_transfer_results", "get_block_ids_with_load_errors",
    "build_connector_worker_meta", "clear_connector_metadata",
)  # fmt: skip
"""Methods for which only exceptions are recorded, if a connector has them."""
Record = Callable[..., None]
BINDING = ("bind_kv_cache_manager", "bind_gpu_block_pool")
"""The method by which vLLM passes its block pool: since 0.30 within its KV cache manager, before 0.30 directly, and in
0.20 only to a connector that has this method."""


class Tracing:
    """Mixed in before a connector class. Every method calls the connector's own and returns its answer unchanged; only a
    guard that the user asked for replaces a lookup's answer.
    """

    _kvtrail_plain: Any
    """The connector class. Its methods are called directly: `super()` takes three times as long."""
    _kvtrail_takes_cache: bool
    """Whether the connector's constructor accepts vLLM's KV cache configuration; constructors for an older vLLM do not."""
    _kvtrail: Instrumentation
    """The instrumentation of this object's side, the scheduler's or the worker's."""
    _kvtrail_scheduler: SchedulerInstrumentation
    _kvtrail_worker: WorkerInstrumentation
    """The instrumentation of the other side, which records nothing."""
    _kvtrail_finishing = False
    _kvtrail_checks: BlockChecks | None = None
    """The checks of block bytes, if enabled."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Sets the attributes that the methods of every step need, before the constructor: that may call methods, and the
        destructor runs even if it fails. They are instance attributes, which CPython finds fastest."""
        self: Any = super().__new__(cls)
        self._kvtrail = self._kvtrail_scheduler = SchedulerInstrumentation()
        self._kvtrail_worker = WorkerInstrumentation()
        return self

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        transfer = vllm_config.kv_transfer_config
        settings = Settings.read((transfer.kv_connector_extra_config or {}).get("kvtrail"))
        given = (vllm_config, role, kv_cache_config) if self._kvtrail_takes_cache else (vllm_config, role)
        super().__init__(*given)  # type: ignore[call-arg]  # the connector class is next
        try:
            instrumentation = _instrumentation(self, settings, vllm_config, role, kv_cache_config)
            if isinstance(instrumentation, SchedulerInstrumentation):
                self._kvtrail_scheduler = instrumentation
            else:
                self._kvtrail_worker = instrumentation
            self._kvtrail = instrumentation
            instrumentation.on_init(self)
        except Exception:
            logger.exception("kvtrail: nothing of %s can be recorded", self._kvtrail_plain.__name__)
            self._kvtrail = self._kvtrail_scheduler = SchedulerInstrumentation(guard=settings.guard)
        try:
            self._kvtrail_checks = block_checks.attach(self, settings, vllm_config, role, kv_cache_config)
        except Exception:
            logger.exception("kvtrail: the bytes of %s cannot be checked", self._kvtrail_plain.__name__)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        start_ns = monotonic_ns()
        try:
            answer = self._kvtrail_plain.get_num_new_matched_tokens(self, request, num_computed_tokens)
        except Exception as error:
            self._kvtrail_scheduler.on_lookup_error(request, num_computed_tokens, start_ns, error)
            raise
        return self._kvtrail_scheduler.on_lookup(self, request, num_computed_tokens, start_ns, answer)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        start_ns = monotonic_ns()
        try:
            result = self._kvtrail_plain.update_state_after_alloc(self, request, blocks, num_external_tokens)
        except Exception as error:
            self._kvtrail_scheduler.on_alloc(self, request, blocks, num_external_tokens, start_ns, error)
            raise
        self._kvtrail_scheduler.on_alloc(self, request, blocks, num_external_tokens, start_ns)
        return result

    def update_connector_output(self, connector_output: Any) -> Any:
        instrumentation, out = self._kvtrail_scheduler, connector_output
        ended = instrumentation.ended_transfers(self, out) if instrumentation.sees_ends else ()
        try:
            result = self._kvtrail_plain.update_connector_output(self, out)
        except Exception as error:
            instrumentation.on_call_error("update_connector_output", monotonic_ns(), error)
            raise
        try:
            reported = ended or out.finished_recving or out.finished_sending or out.invalid_block_ids
        except Exception:
            reported = True  # a report of another vLLM: recorded as far as possible
        if reported:
            instrumentation.on_worker_output(self, out, ended)
        return result

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Any]:
        return self._kvtrail_finish(request, "request_finished", block_ids)

    def shutdown(self) -> Any:
        start_ns, dies_of = monotonic_ns(), sys.exc_info()[1]
        self._kvtrail.before_shutdown(self)
        try:
            return self._kvtrail_plain.shutdown(self)
        except Exception as error:
            self._kvtrail.on_call_error("shutdown", start_ns, error)
            raise
        finally:
            self._kvtrail.on_shutdown(dies_of)

    def _kvtrail_finish(self, request: Any, call: str, block_ids: Any) -> tuple[bool, Any]:
        plain: Callable[..., tuple[bool, Any]] = getattr(self._kvtrail_plain, call)
        if self._kvtrail_finishing:  # a connector may call one of its methods from the other
            return plain(self, request, block_ids)
        start_ns, self._kvtrail_finishing = monotonic_ns(), True
        try:
            answer = plain(self, request, block_ids)
        except Exception as error:
            self._kvtrail.on_call_error(call, start_ns, error, request)
            raise
        finally:
            self._kvtrail_finishing = False
        self._kvtrail_scheduler.on_request_finished(request, answer, block_ids)
        return answer


class TracingHMA(Tracing):
    """For connectors that support vLLM's hybrid memory allocator, which end a request through another method."""

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        return self._kvtrail_finish(request, "request_finished_all_groups", block_ids)


@cache
def traced(cls: type, *, name: str | None = None) -> type:
    """The traced subclass of a connector class, the same for the same class and name; its default name is `Traced<X>`.

    Raises:
        TypeError: `cls` is not a `KVConnectorBase_V1`.
    """
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, supports_hma

    if not (isinstance(cls, type) and issubclass(cls, KVConnectorBase_V1)):
        raise TypeError(f"kvtrail: {cls!r} is no KVConnectorBase_V1 class and cannot be traced")
    if issubclass(cls, Tracing):
        return cls
    mixins: tuple[type, ...] = (TracingHMA if supports_hma(cls) else Tracing,)
    if name is None:
        name = plain_name(cls) if cls.__name__.startswith(UNTRACED) else f"Traced{cls.__name__}"
    own: dict[str, Any] = {
        "__module__": "kvtrail.connector",
        "__qualname__": name,
        "__doc__": cls.__doc__,
        "_kvtrail_plain": cls,
        "_kvtrail_takes_cache": _takes_cache(cls),
    }
    if (known := by_class(cls)) is not None and known.children is not None:
        mixins = (Nesting, *mixins)
        own["_kvtrail_children"] = known.children
    probe = probe_for(cls)
    binding = next((call for call in BINDING if hasattr(KVConnectorBase_V1, call)), BINDING[-1])
    recorded: dict[str | None, Record | None] = {
        **dict.fromkeys(WATCHED),
        "on_new_request": lambda self, start_ns, result, request: self._kvtrail_scheduler.on_request_start(request),
        probe.load_call: lambda self, start_ns, *_: self._kvtrail_worker.on_copy(Kind.LOAD, self, start_ns),
        probe.store_call: lambda self, start_ns, *_: self._kvtrail_worker.on_copy(Kind.STORE, self, start_ns),
        **dict.fromkeys(probe.report_calls, lambda self, _, report, *__: self._kvtrail_worker.on_report(self, report)),
        "build_connector_meta": lambda self, _, plan, output: self._kvtrail_scheduler.on_step(self, output, plan),
        "reset_cache": lambda self, start_ns, succeeded: self._kvtrail_scheduler.on_reset(succeeded),
        binding: lambda self, start_ns, result, bound: self._kvtrail_scheduler.on_pool_bound(bound),
    }
    for call, record in recorded.items():
        plain = getattr(cls, call or "", _nothing if call == binding else None)
        if call is not None and plain is not None:
            own[call] = _recorded(call, plain, record)
    return type(name, (*mixins, cls), own)


def _instrumentation(
    connector: Any, settings: Settings, vllm_config: Any, role: Any, kv_cache_config: Any
) -> SchedulerInstrumentation | WorkerInstrumentation:
    """The instrumentation of a new connector."""
    plain, transfer = connector._kvtrail_plain, vllm_config.kv_transfer_config
    name, known = plain_name(plain), by_class(plain)
    if transfer.kv_connector == f"Traced{name}" and known is not None and known.compared_by_name:
        logger.warning(
            "kvtrail: vLLM decides some things by the name %s, which %s hides from it; use kv_connector %r"
            " with kv_connector_module_path 'kvtrail.connector' instead",
            *(name, transfer.kv_connector, name),
        )
    source = {
        semconv.CONNECTOR.key: name,
        semconv.CONNECTOR_ID.key: str(next(_instances)),
        semconv.ROLE.key: role.name.lower(),
        semconv.RANK.key: vllm_config.parallel_config.rank if role.name == "WORKER" else 0,
    }
    probe = probe_for(plain)
    if chunk_size := _read("the chunk size", lambda: (size := probe.chunk_size(connector)) and index(size)):
        source[semconv.CHUNK_SIZE.key] = chunk_size
    resource, missing = _resource(plain, vllm_config, kv_cache_config), unsupported(probe)
    if missing:
        resource[semconv.LACKS.key] = declaration(missing)
    if settings.unsampled is Unsampled.DROP:
        resource[semconv.SAMPLED_ONLY.key] = True
    if kv_cache_config is not None:
        resource[semconv.CACHE_IDENTITY.key] = identity_of(vllm_config, kv_cache_config)
        if settings.checked_bytes is not Fingerprints.OFF:
            resource[semconv.FINGERPRINTS.key] = settings.checked_bytes.value
    if settings.heartbeats is not Heartbeats.AUTO:
        resource[semconv.HEARTBEATS.key] = settings.heartbeats.value
    recorder = of_process(str(transfer.engine_id), resource, queue_mib=settings.queue_mib)
    if recorder is not None:
        recorder.level.set(settings.level, settings.level_file)
        if role.name == "SCHEDULER":
            recorder.steps = recorder.steps or 0
        # vLLM creates its `llm_request` after the request has ended, in another process, from the request's headers.
        observability = getattr(vllm_config, "observability_config", None)
        recorder.contexts.invites = getattr(observability, "otlp_traces_endpoint", None) is not None
        logger.info(
            "kvtrail traces %s (%s): %s, level %s, guard %s, to %s",
            *(name, role.name.lower(), _described(probe), recorder.level.level, settings.guard, recorder.endpoint),
        )
    encoded = b"".join(attribute(key, value) for key, value in source.items())
    if role.name != "SCHEDULER":
        return WorkerInstrumentation(recorder, name=name, source=encoded, probe=probe)
    unannounced = Lack.REQUEST_STARTS in missing
    return SchedulerInstrumentation(
        recorder,
        name=name,
        source=encoded,
        probe=probe,
        lease=_lease(known, connector),
        guard=settings.guard,
        unannounced=unannounced,
        has_groups=len(getattr(kv_cache_config, "kv_cache_groups", (0, 0))) > 1,
        records_hashes=settings.block_hashes is Switch.ON,
    )


def _lease(known: KnownConnector | None, connector: Any) -> Callable[[str], float | None] | None:
    """A function that returns for how many seconds this connector keeps the blocks of an ended request, by the request's id;
    None if it is unknown."""
    if known is None or (lease := known.lease) is None:
        return None
    there = weakref.proxy(connector)
    return lambda request_id: lease(there, request_id)


def _described(probe: Probe) -> str:
    return "no probe" if type(probe) is Probe else f"probe {type(probe).__module__}:{type(probe).__qualname__}"


def _takes_cache(cls: type) -> bool:
    """Whether a connector's constructor takes three arguments."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return (
        any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)
        or sum(each.kind in positional for each in parameters) > 2
    )


def _recorded(call: str, plain: Callable[..., Any], record: Record | None) -> Callable[..., Any]:
    """A method with its exceptions recorded. After the connector's method, `record` is called with the connector, the start
    time, the result, and the arguments."""

    @wraps(plain)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns = monotonic_ns()
        try:
            result = plain(self, *args, **kwargs)
        except Exception as error:
            self._kvtrail.on_call_error(call, start_ns, error, *args, *kwargs.values())
            raise
        if record is not None:
            record(self, start_ns, result, *args, *kwargs.values())
        return result

    return recorded


def _nothing(connector: Any, gpu_block_pool: Any) -> None:
    """A method that vLLM calls if it exists, and that the connector class lacks."""


def _read(what: str, read: Callable[[], Any]) -> Any:
    """A value that another vLLM or connector may name differently; None if it cannot be read."""
    try:
        return read()
    except Exception:
        logger.exception("kvtrail: %s cannot be read and is not recorded", what)
        return None


def _resource(cls: type, vllm_config: Any, kv_cache_config: Any) -> dict[str, Any]:
    """The engine's properties that a replay needs; values that another vLLM names differently are omitted."""
    import vllm

    parallel, scheduler = vllm_config.parallel_config, getattr(vllm_config, "scheduler_config", None)
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config or {}
    plain = {key: value for key, value in extra.items() if isinstance(value, bool | int | float)}
    speculation = getattr(vllm_config, "speculative_config", None)
    spread = getattr(parallel, "decode_context_parallel_size", 1) * getattr(
        parallel, "prefill_context_parallel_size", 1
    )
    block_size = getattr(vllm_config.cache_config, "block_size", None)
    known = {
        semconv.BLOCK_SIZE.key: block_size and int(block_size) * int(spread),  # as the scheduler counts
        semconv.MODEL.key: str(getattr(vllm_config.model_config, "model", "")),
        semconv.SERVED_MODEL.key: getattr(vllm_config.model_config, "served_model_name", None),
        semconv.ENGINE_VERSION.key: vllm.__version__,
        semconv.POOL_BLOCKS.key: getattr(kv_cache_config, "num_blocks", None),
        semconv.GROUPS.key: _read(
            "the KV cache groups", lambda: cache_groups.declaration(groups_in(kv_cache_config, int(spread)))
        ),
        semconv.MAX_BATCHED.key: getattr(scheduler, "max_num_batched_tokens", None),
        semconv.MAX_SEQUENCES.key: getattr(scheduler, "max_num_seqs", None),
        semconv.MAX_LENGTH.key: getattr(vllm_config.model_config, "max_model_len", None),
        semconv.POLICY.key: getattr(scheduler, "policy", None),
        semconv.RESERVES.key: getattr(scheduler, "scheduler_reserve_full_isl", None),
        semconv.ASYNC_SCHEDULING.key: getattr(scheduler, "async_scheduling", None),
        semconv.PREFIX_CACHING.key: getattr(vllm_config.cache_config, "enable_prefix_caching", None),
        semconv.LOAD_FAILURES.key: getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", None),
        semconv.DRAFTS.key: getattr(speculation, "num_speculative_tokens", None) or 0,
        semconv.CONNECTOR_SETTINGS.key: json.dumps(plain, sort_keys=True),
        semconv.CONNECTOR_CLASS.key: importable_as(cls),
        semconv.CAPABILITIES.key: capabilities_declared(cls),
        semconv.PATIENCE.key: patience_declared(cls, extra),
        semconv.LAUNCH.key: getattr(vllm_config, "instance_id", None) or None,
    }
    return {key: value for key, value in known.items() if value is not None}

"""Checks of the bytes of KV blocks, around the calls of the outermost connector of an engine.

No overhead when disabled: only an object with bytes to check has wrappers around its methods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from kvtrail.connector.cache_groups import group_of, inner_spec
from kvtrail.connector.fingerprints import checksums
from kvtrail.connector.fingerprints.checksums import BlockChecksums, HandedOver
from kvtrail.connector.fingerprints.comparability import identity_of as identity_of_caches
from kvtrail.connector.fingerprints.comparability import is_own
from kvtrail.connector.fingerprints.plan import Group
from kvtrail.connector.fingerprints.scheduler import CheckScheduler
from kvtrail.connector.known import by_name, unrecoverable
from kvtrail.connector.kv_layout import hash_size
from kvtrail.connector.settings import Fingerprints, FingerprintStore, Guard, Settings
from kvtrail.connector.tracing.handoffs import digest_of
from kvtrail.connector.tracing.identity import identity_of
from kvtrail.connector.tracing.reading import hit_sources
from kvtrail.tracer.events.cache_groups import ALIGN, ALL, MAMBA
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.semconv import Kind

if TYPE_CHECKING:
    from kvtrail.connector.fingerprints.result import CheckResult, Holds

logger = logging.getLogger("vllm.kvtrail")

CHECK_PLAN = "_kvtrail_check_plan"
"""Attribute of a connector's metadata in which the scheduler's side sends its workers the checks of a step."""
HELD = {Fingerprints.SOME: 0.01, Fingerprints.ALL: 0.25}
"""The share of running requests for which a block is checked in each step."""
PEER = "p2p:"
"""vLLM's name for another engine as the source of a hit."""
MAX_MISMATCHES = 64
"""Maximum number of mismatches in one event."""


class BlockChecks:
    """Wraps methods of one connector object.

    A failure here ends the checks, with one line in the log, but never the engine.

    Attributes:
        wrapped: the names of the methods that are wrapped.
    """

    def __init__(
        self, connector: Any, instrumentation: Any, settings: Settings, vllm_config: Any, kv_cache_config: Any
    ) -> None:
        """`instrumentation` is the connector's, of the same side."""
        self._connector, self._instrumentation, self._settings = connector, instrumentation, settings
        self._vllm_config, self._kv_cache_config = vllm_config, kv_cache_config
        self._groups = groups_of(vllm_config, kv_cache_config)
        self._receives = _receives(vllm_config.kv_transfer_config)
        self._engine_id = str(vllm_config.kv_transfer_config.engine_id)
        self._step = 0
        self.wrapped: set[str] = set()

    def stop(self) -> None:
        """Restore all of the connector's methods."""
        for call in (*self.wrapped,):
            self._unwrap(call)

    def _before(self, call: str, do: Callable[..., None]) -> Callable[..., Any]:
        """Wrap a method: `do` is called before each call, with its arguments."""
        plain = getattr(self._connector, call)

        @wraps(plain)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                do(*args, **kwargs)
            except Exception:
                self._failed()
            return plain(*args, **kwargs)

        return wrapped

    def _after(self, call: str, do: Callable[..., Any]) -> Callable[..., Any] | None:
        """Wrap a method: `do` is called after each call, with its result and arguments. If `do` returns a value other than
        None, this replaces the connector's answer. Returns None if there is no such method."""
        plain = getattr(self._connector, call, None)
        if plain is None:
            return None

        @wraps(plain)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            try:
                instead = do(result, *args, **kwargs)
            except Exception:
                self._failed()
                return result
            return result if instead is None else instead

        return wrapped

    def _failed(self) -> None:
        logger.exception("kvtrail: the bytes of KV blocks are not checked any more")
        self.stop()

    def _wrap_after(self, call: str, do: Callable[..., Any]) -> None:
        if (wrapped := self._after(call, do)) is not None:
            self._wrap(call, wrapped)

    def _wrap(self, call: str, wrapped: Callable[..., Any]) -> None:
        setattr(self._connector, call, wrapped)
        self.wrapped.add(call)

    def _unwrap(self, call: str) -> None:
        """Restore the connector's method."""
        if call in self.wrapped:
            self.wrapped.remove(call)
            delattr(self._connector, call)


class SchedulerChecks(BlockChecks):
    """The scheduler's side: sends the workers the checks of each step."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._heals = self._settings.guard is Guard.HEAL
        self._forces_misses = (
            self._heals and unhealable(self._connector, self._vllm_config, self._kv_cache_config) is None
        )
        self._scheduler = CheckScheduler(
            self._groups,
            hash_size=hash_size(self._vllm_config, self._kv_cache_config),
            held=HELD[self._settings.checked_bytes],
            identity=identity_of,
        )
        self._wrap_after("get_num_new_matched_tokens", self._on_lookup)
        self._wrap_after("update_state_after_alloc", self._on_alloc)
        self._wrap_after("build_connector_meta", self._on_step)
        self._wrap_after("update_connector_output", self._on_worker_output)
        self._wrap_after("reset_cache", lambda succeeded: self._scheduler.on_reset())
        self._handed_over: dict[str, HandedOver] = {}
        """Other engines' descriptions of KV that requests have not loaded yet."""
        if self._receives:
            self._wrap("get_num_new_matched_tokens", self._before("get_num_new_matched_tokens", self._on_new_lookup))
            if self._heals:
                self._wrap_after("request_finished", self._on_finished)
                self._wrap_after("request_finished_all_groups", self._on_finished)

    def _on_new_lookup(self, request: Any, computed: int) -> None:
        """Remove the prefill engine's description of the handed-over KV. A request with a different prompt, or with less KV
        than expected, loads nothing."""
        parameters = getattr(request, "kv_transfer_params", None)
        if not parameters or checksums.KEY not in parameters:
            return
        try:
            handed_over = HandedOver.of_dict(parameters.pop(checksums.KEY))
        except Exception:  # from another version or another program
            return
        self._handed_over[request.request_id] = handed_over
        prompt = request.prompt_token_ids
        if self._heals and prompt and handed_over.prompt:
            is_less = handed_over.tokens < len(prompt) - 1  # the decode engine computes the last token
            if is_less or digest_of(prompt[: handed_over.of_prompt]) != handed_over.prompt:
                self._instrumentation.forced_misses.add(request.request_id)

    def _on_finished(self, answer: Any, request: Any, block_ids: Any) -> None:
        """Add the description of the hand-off to the parameters that the connector returns."""
        is_kept, parameters = answer
        if not is_kept or not isinstance(parameters, dict) or not parameters.get("do_remote_prefill"):
            return
        tokens, prompt, layout = request.num_computed_tokens, request.prompt_token_ids or (), ""
        each: dict[int, int] = {}
        if (read := checksums.BY_ENGINE.get(self._engine_id)) is not None:
            layout, table = read.layout, block_ids[0] if isinstance(block_ids[0], Sequence) else block_ids
            # A request that continues may still write to its last block.
            size = self._groups[0].block_size
            filled = tokens // size if request.num_output_tokens > 1 else -(-tokens // size)
            numbers = checksums.chosen(min(filled, len(table)))
            each = dict(zip(numbers, read.of(numbers, [table[number] for number in numbers]), strict=True))
        of_prompt = min(tokens, len(prompt))
        digest = digest_of(prompt[:of_prompt]) if prompt else ""
        parameters[checksums.KEY] = HandedOver(tokens, digest, of_prompt, layout, each).as_dict()

    def _on_lookup(self, answer: Any, request: Any, computed: int) -> None:
        if answer[0] is not None:
            self._scheduler.on_lookup(request, computed, bool(answer[1]))

    def _on_alloc(self, result: Any, request: Any, blocks: Any, external: int) -> None:
        handed_over = self._handed_over.pop(request.request_id, None) if self._handed_over else None
        if handed_over is not None and not self._is_of_another_engine(request, external):
            handed_over = None
        self._scheduler.on_alloc(request, external, blocks, handed_over)

    def _is_of_another_engine(self, request: Any, external: int) -> bool:
        """Whether these tokens are loaded from another engine, not from a child of a MultiConnector."""
        sources = hit_sources(self._connector, request, external)
        return bool(sources) and all(each.startswith(PEER) for each in sources or ())

    def _on_step(self, metadata: Any, output: Any) -> None:
        number, self._step = self._step, self._step + 1
        if self._instrumentation.forced_misses:
            self._instrumentation.forced_misses.difference_update(output.finished_req_ids)
        if self._handed_over:
            for request_id in output.finished_req_ids:
                self._handed_over.pop(request_id, None)
        plan = self._scheduler.plan_step(output, number)
        if plan is not None:
            recorder = self._instrumentation.recorder
            if recorder is not None and recorder.contexts.any_callers:
                checks = (*plan.before, *plan.states, *plan.loads, *plan.async_loads)
                contexts = map(recorder.contexts.named, {check.request_id for check in checks})
                plan.callers = {each.request_id: (each.root, each.sampled) for each in contexts if each.has_caller}
            setattr(metadata, CHECK_PLAN, plan)

    def _on_worker_output(self, result: Any, output: Any) -> None:
        invalid, failed = getattr(output, "invalid_block_ids", None), getattr(output, "failed_recving", None)
        if invalid or failed:
            waiting = self._scheduler.on_load_failures()
            if self._forces_misses:
                # vLLM asks again, and would load the same wrong bytes forever.
                self._instrumentation.forced_misses |= waiting.difference(failed or ())


class WorkerChecks(BlockChecks):
    """A worker's side: runs the checks that the scheduler's side plans."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._has_groups = len(self._kv_cache_config.kv_cache_groups) > 1
        self._worker: Any = None
        """A `CheckWorker`, after the KV caches are registered."""
        self._slices: dict[int, str] = {}
        """By KV cache group, the identity of the caches and the rank's first head."""
        self._in_step: dict[str, Callable[..., Any]] = {}
        """The wrappers that are installed only in steps with something to check."""
        self._wrap_after("register_kv_caches", self._on_kv_caches)

    def _on_kv_caches(self, result: Any, kv_caches: dict[str, Any]) -> None:
        from vllm.distributed import kv_transfer

        from kvtrail.connector.fingerprints.references import References
        from kvtrail.connector.fingerprints.worker import CheckWorker
        from kvtrail.connector.kv_layout import fill_with_zeros

        if kv_transfer.has_kv_transfer_group() and kv_transfer.get_kv_transfer_group() is not self._connector:
            return  # another connector's child
        num_blocks, numbers = self._kv_cache_config.num_blocks, [group.number for group in self._groups]
        layers = {number: self._kv_cache_config.kv_cache_groups[number].layer_names for number in numbers}
        caches = {number: {name: kv_caches[name] for name in names} for number, names in layers.items()}
        references = References(own=self._owns_store(), units={group.number: group.unit for group in self._groups})
        self._worker = CheckWorker(
            self._fingerprints(caches),
            references,
            checksums=self._checksums(caches),
            fill_with_zeros=partial(fill_with_zeros, kv_caches, num_blocks),
            heals=self._heals(),
            report=self._record,
        )
        self._wrap_after("bind_connector_metadata", self._on_metadata)
        self._wrap_after("shutdown", lambda result: self._worker.end())
        after = {
            "get_finished": self._on_finished,
            "get_transfer_results": self._on_transfer_results,
            "get_block_ids_with_load_errors": self._conclude,
        }
        self._in_step = {call: wrapped for call, do in after.items() if (wrapped := self._after(call, do))}
        self._in_step["wait_for_save"] = self._before("wait_for_save", self._worker.forward_passed)

    def _fingerprints(self, caches: Mapping[int, Any]) -> dict[int, Any]:
        """The fingerprints of each KV cache group."""
        from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints

        num_blocks, heads = self._kv_cache_config.num_blocks, self._heads()
        sizes = {group.number: 0 if group.boundary else group.block_size for group in self._groups}
        all_bytes = self._settings.checked_bytes is Fingerprints.ALL
        made = {
            number: BlockFingerprints(each, num_blocks, sizes[number], heads=heads.get(number, 0), all_bytes=all_bytes)
            for number, each in caches.items()
        }
        self._slices = {number: self._slice() for number, each in made.items() if each.of_first_head}
        return made

    def _checksums(self, caches: Mapping[int, Any]) -> BlockChecksums | None:
        """Checksums of hand-offs, if the connector receives hand-offs and requests keep all of their blocks. With a single
        worker, a scheduler's side in this process may also read them."""
        from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints

        if not self._receives or self._has_groups or any(each.frees_blocks for each in self._groups):
            return None
        (group,), num_blocks = self._groups, self._kv_cache_config.num_blocks
        heads = self._heads().get(group.number, 0)
        read = BlockChecksums(BlockFingerprints(caches[group.number], num_blocks, group.block_size, heads=heads))
        if self._vllm_config.parallel_config.world_size == 1:
            checksums.BY_ENGINE[self._engine_id] = read
        return read

    def _owns_store(self) -> bool:
        """Whether this engine alone writes to the connector's store."""
        store = self._settings.fingerprint_store
        if store is FingerprintStore.AUTO:
            return is_own(self._vllm_config.kv_transfer_config) and not self._receives
        return store is FingerprintStore.OWN

    def _heads(self) -> dict[int, int]:
        """By KV cache group, the number of heads in a block, if there are hand-offs between engines: the other engine may
        have another tensor-parallel size."""
        if not self._receives or getattr(self._vllm_config.parallel_config, "pipeline_parallel_size", 1) > 1:
            return {}
        specs = {each.number: self._kv_cache_config.kv_cache_groups[each.number].kv_cache_spec for each in self._groups}
        return {number: heads for number, spec in specs.items() if (heads := getattr(spec, "num_kv_heads", 0))}

    def _slice(self) -> str:
        """The name of this rank's first head, which is the same for engines of any tensor-parallel size."""
        parallel, config = self._vllm_config.parallel_config, self._kv_cache_config
        ranks = parallel.tensor_parallel_size
        first = parallel.rank % ranks * self._vllm_config.model_config.get_total_num_kv_heads() // ranks
        return f"{identity_of_caches(self._vllm_config, config, of_heads=True)}/{first}"

    def _heals(self) -> bool:
        """Whether mismatched blocks are recomputed; logs one line with the reason if healing is requested but impossible."""
        if self._settings.guard is not Guard.HEAL:
            return False
        reason = unhealable(self._connector, self._vllm_config, self._kv_cache_config)
        if reason is not None:
            logger.warning("kvtrail: wrong bytes are recorded and not healed: %s", reason)
        return reason is None

    def _on_metadata(self, result: Any, metadata: Any) -> None:
        plan = getattr(metadata, CHECK_PLAN, None)
        if plan is not None:
            self._step = plan.step
            if (recorder := self._instrumentation.recorder) is not None:
                for request_id, caller in plan.callers.items():
                    recorder.contexts.adopt(request_id, *caller)
        is_busy = self._worker.begin(plan)
        if is_busy != ("wait_for_save" in self.wrapped):
            for call, wrapped in self._in_step.items():
                if is_busy:
                    self._wrap(call, wrapped)
                else:
                    self._unwrap(call)

    def _on_finished(self, result: Any, *_: Any) -> None:
        if result and result[1]:
            self._worker.received(result[1], ())

    def _on_transfer_results(self, result: Any, *_: Any) -> None:
        self._worker.received(result.finished_recving or (), getattr(result, "failed_recving", None) or ())

    def _conclude(self, result: Any) -> Any:
        healed = self._worker.conclude(result or ())
        return {*result, *healed} if healed else result

    def _record(self, result: CheckResult) -> None:
        """Record the result of a check."""
        if (recorder := self._instrumentation.recorder) is None:
            return
        listed = result.mismatches[:MAX_MISMATCHES]
        contexts = recorder.contexts
        values = (
            result.kind,
            result.blocks,
            result.unknown,
            result.fingerprints or None,
            self._slices.get(result.group) if result.fingerprints else None,
            tuple(each.kind for each in listed) or None,
            tuple(each.block for each in listed) or None,
            tuple(each.token for each in listed) or None,
            tuple(_short(each.hash) for each in listed) or None,
            tuple(_described(each.holds, contexts.name_of, result.group) for each in listed) or None,
            tuple(each.source and contexts.name_of(each.source) for each in listed) or None,
            len(result.mismatches) - len(listed) or None,
            result.healed or None,
            result.group if self._has_groups else None,
            self._step,
            result.identity,
        )
        at_ns = monotonic_ns()
        source = self._instrumentation.source
        recorder.record(Kind.BLOCK_CHECK, source, contexts.named(result.request_id), at_ns, at_ns, values)


def attach(connector: Any, settings: Settings, vllm_config: Any, role: Any, kv_cache_config: Any) -> BlockChecks | None:
    """Check bytes around the calls of this connector, if the settings say so and its caches can be checked."""
    if settings.checked_bytes is Fingerprints.OFF:
        return None
    if not groups_of(vllm_config, kv_cache_config):
        logger.info(
            "kvtrail: the bytes of KV blocks are not checked: no group with hashes of its blocks, or context parallelism"
        )
        return None
    checks = SchedulerChecks if role.name == "SCHEDULER" else WorkerChecks
    return checks(connector, connector._kvtrail, settings, vllm_config, kv_cache_config)


def unhealable(connector: Any, vllm_config: Any, kv_cache_config: Any) -> str | None:
    """Why vLLM cannot recompute wrong blocks; None if it can."""
    if getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", "fail") != "recompute":
        return "kv_load_failure_policy is not 'recompute'"
    if len(kv_cache_config.kv_cache_groups) != 1:
        return "vLLM computes failed loads again in models with one KV cache group only"
    if any(group.frees_blocks for group in groups_of(vllm_config, kv_cache_config)):
        return "the window of a block that is computed again may be gone"
    return unrecoverable(connector)


def groups_of(vllm_config: Any, kv_cache_config: Any) -> list[Group]:
    """The KV cache groups with blocks that can be checked."""
    parallel = vllm_config.parallel_config
    spread = getattr(parallel, "decode_context_parallel_size", 1) * getattr(
        parallel, "prefill_context_parallel_size", 1
    )
    if kv_cache_config is None or spread > 1:
        return []
    size_of_hash = hash_size(vllm_config, kv_cache_config)
    groups = [
        _group_of(number, group.kv_cache_spec, size_of_hash)
        for number, group in enumerate(kv_cache_config.kv_cache_groups)
    ]
    return [group for group in groups if group is not None]


def _group_of(number: int, spec: Any, hash_size: int) -> Group | None:
    """The checks' description of a group; None if blocks have no hashes, or it is unknown how long a request keeps them:
    encoders, rings of blocks, states that are not cached or that drafts write to, and kinds that a later vLLM adds."""
    inner, cache = inner_spec(spec), group_of(spec, 1)
    has_states = cache.kind == MAMBA
    if not getattr(inner, "prefix_cacheable", True) or not cache.has_place_for_all:
        return None
    if has_states and (cache.cache_mode not in (ALIGN, ALL) or inner.num_speculative_blocks):
        return None
    if has_states or inner.block_size % hash_size == 0:
        return Group(number, inner.block_size, cache, hash_size if has_states else 0)
    return None


def _receives(transfer: Any) -> bool:
    """Whether the connector of a `KVTransferConfig`, or one of its children, is known to load hand-offs from another
    engine."""
    children = (transfer.kv_connector_extra_config or {}).get("connectors") or ()
    names = (transfer.kv_connector, *(child.get("kv_connector") for child in children))
    known = (by_name(str(name).removeprefix("Traced")) for name in names)
    return any(each is not None and Capability.RECEIVES_ONCE in each.capabilities for each in known)


def _short(number: int) -> str:
    return f"{number:016x}"


def _described(holds: Holds, name: Callable[[str], str], group: int) -> str:
    """The contents of a block in this KV cache group."""
    if isinstance(holds, str):
        return holds
    place = f"{name(holds.request_id)}@{holds.token}"
    return place if holds.group == group else f"{place}/{holds.group}"

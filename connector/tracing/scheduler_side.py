"""The scheduler's side of the instrumentation: lookups, allocations, steps, and a probe's observations of them.

The calls of every step, and lookups, are not factored into shared wrappers, which cost a step 3 % (`benchmarks/throughput.py
thread`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import index
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

from kvtrail.connector.known.probe import Probe, Seen
from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.encoder import inside, of_span
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.settings import Guard, LevelSwitch
from kvtrail.connector.tracing import handoffs
from kvtrail.connector.tracing.block_hashes import BlockHashes
from kvtrail.connector.tracing.cache_events import CacheEvents, StoreEvents
from kvtrail.connector.tracing.holdings import Holdings
from kvtrail.connector.tracing.identity import Adapters, identity_of
from kvtrail.connector.tracing.instrumentation import Instrumentation, fail_open
from kvtrail.connector.tracing.plans import Plans
from kvtrail.connector.tracing.prefix_cache import PrefixCacheEvents, can_be_followed
from kvtrail.connector.tracing.reading import hit_sources, ids_in, ids_of_step
from kvtrail.connector.tracing.spare import spare_capacity
from kvtrail.connector.tracing.steps import Steps, held_at_end, in_groups
from kvtrail.tracer.events import contract
from kvtrail.tracer.events.events import FIELDS
from kvtrail.tracer.events.semconv import Kind

MOST_FAILED = 256
"""Maximum number of requests with an error that are remembered until the workers' report is recorded."""
SAFE_ANSWER = (0, False)
"""The answer that loads nothing: vLLM computes the tokens itself. It is always legal."""
_NO_POOL = SimpleNamespace(cached_block_hash_to_block=None)
_END_UNKNOWN = (None,) * len(FIELDS[Kind.REQUEST])


class ContractBreach(RuntimeError):
    """A lookup's answer broke the contract under `guard: raise`."""


class SchedulerInstrumentation(Instrumentation):
    """Records the scheduler's calls of one connector object.

    Attributes:
        forced_misses: requests with wrong loads: under `guard: heal` their lookups answer 0, and vLLM computes them.
        ends_by: the side that records a request's end when this one receives it: a traced MultiConnector knows the combined
            answer of its children, and lets one of them record it; None if another one does.
    """

    def __init__(
        self,
        recorder: Recorder | None = None,
        *,
        name: str = "",
        source: bytes = b"",
        probe: Probe | None = None,
        lease: Callable[[str], float | None] | None = None,
        guard: Guard = Guard.OBSERVE,
        unannounced: bool = False,
        has_groups: bool = False,
        records_hashes: bool = True,
    ) -> None:
        """`lease` returns how long the connector keeps an ended request's blocks, in seconds; `guard` is the action for a
        lookup's answer that breaks the contract; `unannounced`, whether this vLLM has no `on_new_request`; `has_groups`,
        whether there are several KV cache groups; the others select the data recorded at level `detailed`."""
        super().__init__(recorder, name=name, source=source, probe=probe)
        self._level = LevelSwitch() if recorder is None else recorder.level
        self._call_source = source
        self._lease = lease
        self._guard = guard
        self._unannounced = unannounced
        self._step = 0
        self._steps: Any = None if recorder is None else Steps(recorder, source)  # checked as the recorder is
        self._plans: Any = None if recorder is None else Plans(recorder, source, self._not_recorded)
        self._hashes: Any = None if recorder is None else BlockHashes.of(recorder, enabled=records_hashes)
        self._holdings: Any = None if recorder is None else Holdings(recorder, source)
        self._adapters = Adapters()
        self._pool: Any = _NO_POOL
        self._cached: Any = None
        """The pool's map of cached blocks at the last check."""
        self._failed: deque[RequestContext] = deque(maxlen=MOST_FAILED)
        """Requests that vLLM has ended with an error, before it reports which blocks could not be loaded."""
        self._reset_step = -1
        """The first step after the last reset of vLLM's cache."""
        self._has_groups, self._records_caches = has_groups, records_hashes
        self._prefix_cache: PrefixCacheEvents | None = None
        self._store: StoreEvents | None = None
        self.forced_misses: set[str] = set()
        self.ends_by: SchedulerInstrumentation | None = self

    @contextmanager
    def placed(self, *, span_id: bytes = b"", parent_id: bytes = b"") -> Iterator[None]:
        """A context in which lookups and allocations have this id, or are children of this span."""
        before = self._call_source
        self._call_source += (of_span(span_id) if span_id else b"") + (inside(parent_id) if parent_id else b"")
        try:
            yield
        finally:
            self._call_source = before

    # In the order of a request's calls.

    @fail_open(Kind.CACHE_RESET)
    def on_pool_bound(self, bound: Any) -> None:
        """After `bind_kv_cache_manager` or `bind_gpu_block_pool`: vLLM's block pool, with a new map of cached blocks after
        each reset. Another vLLM may have none."""
        pool = getattr(bound, "block_pool", bound)
        if hasattr(pool, "cached_block_hash_to_block"):
            self._pool, self._cached = pool, pool.cached_block_hash_to_block
            if self._records_caches and can_be_followed(pool):
                self._prefix_cache = PrefixCacheEvents.of(pool, self._recorder, has_groups=self._has_groups)
            self._recorder.spare = self._recorder.spare or spare_capacity(pool)

    @fail_open(Kind.REQUEST_START)
    def on_request_start(self, request: Any) -> None:
        """After `on_new_request`; of a vLLM that has no such call, after the first lookup."""
        context = self._recorder.contexts.of(request)
        if context.source is None:
            context.source = self.source
            limit, priority = getattr(request, "max_tokens", None), getattr(request, "priority", None)
            *hashes, seen = self._hashes.at_start(context, request)
            identity = (identity_of(request), seen, self._adapters.recorded(request, self._not_recorded))
            values = (request.num_tokens, limit, self._step, priority or None, *hashes, *identity)
            start_ns = context.start_ns
            self._recorder.record(Kind.REQUEST_START, self.source, context, start_ns, monotonic_ns(), values)
            if getattr(request, "kv_transfer_params", None):
                self._record_taken(request, context)

    def on_lookup(
        self, connector: Any, request: Any, computed: int, start_ns: int, answer: tuple[int | None, bool]
    ) -> tuple[int | None, bool]:
        """After `get_num_new_matched_tokens`. Returns the answer for vLLM: the connector's, unless the guard heals it.

        Raises:
            ContractBreach: the answer breaks the contract under `guard: raise`.
        """
        end_ns = monotonic_ns()
        refused = None
        matched, cached = self._ask("lookup", connector, request, gap=False, answered=_matched) or (None, None)
        keys = self._ask("keys", connector, request, gap=False) if self._level.detailed else None
        if getattr(request, "num_preemptions", 0) and self._recorder is not None:
            self._record_preemption(request, start_ns)
        if self._store is None and self._records_caches:
            self._follow_store(connector)
        self._flush_cache_events(end_ns)
        if self._has_groups and answer[0] and self._level.detailed:
            self._record_groups(connector, request, computed, computed + answer[0], end_ns)
        try:
            total, (returned, is_async) = request.num_tokens, answer
            if returned is not None and returned.__class__ is not int:
                returned = int(index(returned))  # a numpy number; other types are not converted
            if self._guard is not Guard.OBSERVE and (
                contract.breach(total, computed, matched, returned, is_async)
                or (returned and request.request_id in self.forced_misses)
            ):
                answer, returned, refused = SAFE_ANSWER, SAFE_ANSWER[0], returned
            if self._recorder is not None:
                context = self._recorder.contexts.of(request)
                if self._unannounced and context.source is None:
                    self.on_request_start(request)
                rest = (refused, keys, self._step, *self._hashes.since(context, request))
                values = (total, computed, matched, returned, True if is_async else False, cached, *rest)  # noqa: SIM210 - faster
                self._recorder.record(Kind.LOOKUP, self._call_source, context, start_ns, end_ns, values)
        except Exception:
            self._not_recorded(Kind.LOOKUP, ids_in((request,)))
        if refused is not None and self._guard is Guard.RAISE:
            raise ContractBreach(
                f"kvtrail: the connector returned {refused} new tokens for request {request.request_id}, which has {total}"
                f" tokens, {computed} of them computed: at most {contract.new_at_most(total, computed, matched)} can be new"
            )
        return answer

    @fail_open(Kind.PREEMPT)
    def _record_preemption(self, request: Any, at_ns: int) -> None:
        """Record the request's preemption, if no step has reported it yet: then a reset of vLLM's cache preempted it."""
        self._record_cache_reset(at_ns)
        self._steps.preempted(self._recorder.contexts.of(request), request.request_id, self._step, at_ns)

    def _record_cache_reset(self, at_ns: int) -> None:
        """Handle a reset of vLLM's cache, which creates a new map."""
        if self._pool.cached_block_hash_to_block is not self._cached:
            self._cached, self._reset_step = self._pool.cached_block_hash_to_block, self._step
            self._record(Kind.CACHE_RESET, None, at_ns, (self._step,))

    def _record_groups(self, connector: Any, request: Any, computed: int, claimed: int, at_ns: int) -> None:
        """Record the contents of each KV cache group, before the lookup that makes a claim about all of them."""
        context = self._recorder.contexts.of(request)
        for group, boundaries in self._ask("groups", connector, request, computed, claimed, gap=False) or ():
            matched = boundaries[-1] if boundaries else 0
            self._record(Kind.RANK_LOOKUP, context, at_ns, (request.num_tokens, matched, group, boundaries))

    @fail_open(Kind.ALLOC)
    def on_alloc(
        self,
        connector: Any,
        request: Any,
        blocks: Any,
        external: int,
        start_ns: int,
        error: Exception | None = None,
    ) -> None:
        """After `update_state_after_alloc`, which may have raised; with the block table if the request's epoch is recorded
        in detail. Evictions from vLLM's prefix cache by the allocation are recorded before it."""
        self._flush_cache_events(monotonic_ns())
        context: RequestContext = self._recorder.contexts.of(request)
        if context.detailed_epoch != context.epoch:
            context.detailed_epoch, context.detailed = context.epoch, self._level.detailed and context.recorded
        context.blocks = blocks
        table, by_group = in_groups(blocks.get_block_ids()) if context.detailed else (None, None)
        groups = getattr(blocks, "blocks", None)
        count = None if groups is None else sum(map(len, groups))
        sources = hit_sources(connector, request, external) if external and error is None else None
        values = (request.num_tokens, external, count, table, by_group, None, None, sources, self._step)
        if error is None:
            self._recorder.record(Kind.ALLOC, self._call_source, context, start_ns, monotonic_ns(), values)
        else:
            self._record_error(Kind.ALLOC, self._call_source, context, start_ns, values, error)

    @fail_open(Kind.LOOKUP)
    def on_lookup_error(self, request: Any, computed: int, start_ns: int, error: Exception) -> None:
        """`get_num_new_matched_tokens` has raised."""
        context = self._recorder.contexts.of(request)
        known = {"total": request.num_tokens, "computed": computed, "scheduler_step": self._step}
        values = tuple(known.get(attribute.field) for attribute in FIELDS[Kind.LOOKUP])
        self._record_error(Kind.LOOKUP, self._call_source, context, start_ns, values, error)

    def on_step(self, connector: Any, output: Any, metadata: Any) -> None:
        """After `build_connector_meta`: record the step's effects on requests, and the probe's observations."""
        if self._recorder is None:
            return
        at_ns, any_detailed = monotonic_ns(), self._level.any_detailed
        if self._recorder.spare is not None:
            try:
                self._recorder.spare.step(output, at_ns)
            except Exception:
                self._recorder.spare = None
                self._not_recorded(Kind.HEARTBEAT, (), gap=False)
        try:
            if self._pool.cached_block_hash_to_block is not self._cached:
                self._record_cache_reset(at_ns)
            if (
                any_detailed
                or output.scheduled_new_reqs
                or output.preempted_req_ids
                or output.scheduled_cached_reqs.resumed_req_ids
            ):
                pool = (
                    None if self._reset_step == self._step else self._pool
                )  # blocks that a reset has freed may be held by loads
                self._steps.record(connector, output, pool, self._step, at_ns)
        except Exception:
            self._not_recorded(Kind.SCHEDULE, ids_of_step(output))
        if any_detailed:
            self._flush_cache_events(at_ns, can_wait=True, is_planned=True)
        self._steps.previous = output
        self._step += 1
        self._recorder.steps = self._step
        seen = self._ask("stepped", connector, metadata, concerns=lambda: ids_of_step(output))
        if seen is not None:
            if any_detailed:
                self._flush_cache_events(at_ns, is_planned=True)  # the cache that loses a block last is recorded last
            self._record_seen(seen, metadata, output, at_ns)
        if any_detailed and self._level.detailed and at_ns >= self._holdings.due_ns:
            try:
                self._holdings.record_page(self._probe, connector, at_ns)
                self._failing.pop("held_keys", None)
            except Exception:
                self._probe_failed("held_keys", gap=False)

    def ended_transfers(self, connector: Any, output: Any) -> Sequence[int]:
        """Before `update_connector_output`: the numbers of planned transfers that this report of the workers ends. Only asked
        if the instrumentation `sees_ends`."""
        return self._ask("ended", connector, output, concerns=self._plans.requests) or ()

    def on_worker_output(self, connector: Any, output: Any, ended: Sequence[int]) -> None:
        """After `update_connector_output`: transfers that ended, blocks that could not be loaded, and chunks that left
        the store."""
        if self._recorder is None:
            return
        at_ns = monotonic_ns()
        self._record_ends(ended)
        self._record_load_errors(output, at_ns)
        self._failed.clear()
        self._record_completions(output, at_ns)
        self._record_evictions(connector, at_ns)

    @fail_open(Kind.TRANSFER_END, concerns_all=True)
    def _record_ends(self, ended: Sequence[int]) -> None:
        for number in ended:
            self._plans.job(Kind.TRANSFER_END, number, (False, self._step))

    @fail_open(Kind.LOAD_ERROR, concerns_all=True)
    def _record_load_errors(self, output: Any, at_ns: int) -> None:
        if invalid := getattr(output, "invalid_block_ids", None):
            for context, blocks in self._holders(invalid):
                self._record(Kind.LOAD_ERROR, context, at_ns, in_groups(blocks))
                self._steps.watch(context.request_id)

    @fail_open(Kind.EVICT, concerns_all=True)
    def _record_evictions(self, connector: Any, at_ns: int) -> None:
        self._plans.evicted(self._probe.forgotten(connector), at_ns)

    @fail_open(Kind.RECEIVED, concerns_all=True)
    def _record_completions(self, output: Any, at_ns: int) -> None:
        failed = getattr(output, "failed_recving", None) or ()
        for request_id in output.finished_recving or ():
            self._record_completion(request_id, Kind.RECEIVED, at_ns, (request_id in failed, self._step))
        for request_id in output.finished_sending or ():
            self._record_completion(request_id, Kind.SENT, at_ns, (self._step,))

    @fail_open(Kind.RECEIVED)
    def _record_completion(self, request_id: str, kind: Kind, at_ns: int, values: tuple[Any, ...]) -> None:
        self._record(kind, self._recorder.contexts.of_id(request_id), at_ns, values)
        self._recorder.contexts.release(request_id)

    @fail_open(Kind.REQUEST)
    def on_request_finished(self, request: Any, answer: Any, blocks: Any = None) -> None:
        """After `request_finished`, which receives the request's blocks, and returns whether the connector keeps them, and
        the parameters for the client."""
        context = self._recorder.contexts.of(request)
        if isinstance(answer, tuple) and answer and (answer[0] or getattr(request, "kv_transfer_params", None)):
            self._record_given(request, context, answer)
        if self.ends_by is not None:
            self.ends_by._record_end(request, context, answer, blocks)
        self._steps.ended(context.request_id)

    @fail_open(Kind.REQUEST)
    def _record_end(self, request: Any, context: RequestContext, answer: Any, blocks: Any) -> None:
        """Record the end of a request, with its blocks if it will be handed over and was preempted."""
        if context.ended is None:  # another child of a MultiConnector that is not traced may have recorded it
            values: tuple[Any, ...]
            delayed = False
            try:
                counts = (request.num_tokens, request.num_output_tokens, request.num_computed_tokens)
                outcome = request.status.name.removeprefix("FINISHED_").lower()
                if outcome == "error":
                    self._failed.append(context)
                delayed = bool(answer[0])
                handoff = (getattr(request, "kv_transfer_params", None) or {}).get("do_remote_decode") is True or None
                held = held_at_end(blocks) if handoff and context.epoch and blocks is not None else (None, None)
                hashes = self._hashes.since(context, request)
                used = (getattr(request, "num_prompt_tokens", None), context.cached)
                lease_s = self._lease_s(context.request_id) if delayed else None
                values = (*counts, outcome, delayed, *held, self._step, *hashes, handoff, lease_s, *used)
            except Exception:  # record the end even without its numbers
                self._not_recorded(Kind.REQUEST, (), gap=False)
                values = _END_UNKNOWN
            self._recorder.record(Kind.REQUEST, self.source, context, context.start_ns, monotonic_ns(), values)
            self._recorder.contexts.end(context, delayed=delayed)

    @fail_open(Kind.HANDOFF)
    def _record_taken(self, request: Any, context: RequestContext) -> None:
        """Record the hand-off that the request will read from another engine, if any."""
        values = handoffs.taken(request, self._recorder.contexts.name_of, with_blocks=self._level.detailed)
        if values is not None:
            self._record(Kind.HANDOFF, context, monotonic_ns(), values)

    @fail_open(Kind.HANDOFF)
    def _record_given(self, request: Any, context: RequestContext, answer: tuple[Any, ...]) -> None:
        """Record the hand-off of the request to another engine, if any."""
        name_of, computed = self._recorder.contexts.name_of, request.num_computed_tokens
        detailed = self._level.detailed
        values = handoffs.given(
            request, answer[-1], name_of, is_kept=bool(answer[0]), computed=computed, with_blocks=detailed
        )
        if values is not None:
            self._record(Kind.HANDOFF, context, monotonic_ns(), values)

    def _lease_s(self, request_id: str) -> int | None:
        """The number of seconds for which the connector keeps the blocks of an ended request; None if unknown."""
        try:
            lease_s = None if self._lease is None else self._lease(request_id)
            return None if lease_s is None else max(0, round(lease_s))
        except Exception:
            self._not_recorded("lease", (), gap=False)
            return None

    @fail_open(Kind.RESET)
    def on_reset(self, succeeded: bool | None) -> None:
        """After `reset_cache`, which vLLM calls after it has emptied its own cache."""
        self._flush_cache_events(monotonic_ns(), is_planned=True)
        self._record(Kind.RESET, None, monotonic_ns(), (succeeded, self._step))

    @fail_open(Kind.STORE_PLAN, concerns_all=True)
    def _record_seen(self, seen: Seen, metadata: Any, output: Any, at_ns: int) -> None:
        self._plans.seen(seen, metadata, output, at_ns)
        self._record_events(seen.events, at_ns)

    def _holders(self, blocks: Collection[int]) -> Iterator[tuple[RequestContext, list[list[int]]]]:
        """The requests that received some of these blocks, and the blocks by KV cache group. Rare: only after a failed load,
        which may have ended its request by now."""
        for context in (*self._recorder.contexts.open.values(), *self._failed):
            if context.blocks is not None:
                held = [[block for block in ids if block in blocks] for ids in context.blocks.get_block_ids()]
                if any(held):
                    if context.request is not None:
                        context.epoch = context.request.num_preemptions
                    yield context, held

    def _follow_store(self, connector: Any) -> None:
        """Observe the changes of the connector's store, if its probe can."""
        contents = self._ask("contents", connector, gap=False)
        self._records_caches = "contents" not in self._failing
        if contents is not None and self._recorder is not None:
            self._store = StoreEvents(self._recorder, contents)

    def _flush_cache_events(self, at_ns: int, *, can_wait: bool = False, is_planned: bool = False) -> None:
        """Record the changes of the connector's store in the previous step, and then those of vLLM's prefix cache, which
        `can_wait`; a store that changed in the step that `is_planned` is recorded after it."""
        if not self._level.any_detailed:
            return
        is_later = is_planned and self._store is not None and self._store.contents.changes_in_plans
        if not is_later:
            self._flush(self._store, at_ns)
        self._flush(self._prefix_cache, at_ns, can_wait=can_wait)
        if is_later and not can_wait:
            self._flush(self._store, at_ns)

    def _flush(self, cache: CacheEvents | None, at_ns: int, *, can_wait: bool = False) -> None:
        if cache is None:
            return
        try:
            cache.flush(self.source, self._step, at_ns, can_wait=can_wait)
        except Exception:
            with suppress(Exception):
                cache.stop(self.source, self._step, at_ns)
            if cache is self._store:
                self._store, self._records_caches = None, False
                self._probe_failed("contents")
            else:
                self._prefix_cache = None
                self._not_recorded(Kind.PREFIX_CACHE, ())


def _matched(answer: tuple[Any, bool | None]) -> tuple[int | None, bool | None]:
    """A probe's answer about a lookup, with numpy numbers converted to Python's."""
    matched, cached = answer
    return None if matched is None else int(index(matched)), cached

"""What is recorded of a traced connector's calls: between `traced`, which intercepts them, and the recorder.

The calls of every step, and lookups, are written out in one piece: shared wrappers cost a step 3 % (`benchmarks/throughput.py
thread`).

Recording must never break the engine, and one odd object costs one event, never the recording. Whatever fails here, an
attribute that another vLLM names differently, a probe that no longer fits its connector, is logged, counted by kind in the
recorder's heartbeats, and leaves a gap in the numbers: of the recorder, and of the requests that it concerns.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from operator import index
from time import monotonic, monotonic_ns
from types import SimpleNamespace
from typing import Any, TypeVar

from kvtrail.connector.known.probe import NO_PROBE, Moved, Probe, Seen
from kvtrail.connector.recording import death
from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.encoder import inside, of_span
from kvtrail.connector.recording.messages import located
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.settings import Guard, LevelSwitch
from kvtrail.connector.tracing.block_hashes import BlockHashes
from kvtrail.connector.tracing.holdings import Holdings
from kvtrail.connector.tracing.identity import Adapters, identity_of
from kvtrail.connector.tracing.plans import PLACES, Plans
from kvtrail.connector.tracing.prefix_cache import PrefixCache, can_be_followed
from kvtrail.connector.tracing.reading import hit_sources, ids_in, ids_of_step
from kvtrail.connector.tracing.spare import spare_capacity
from kvtrail.connector.tracing.steps import Steps, first_group, held_at_end
from kvtrail.connector.tracing.store_changes import StoreChanges
from kvtrail.tracer.events import contract
from kvtrail.tracer.events.semconv import FIELDS, Kind

logger = logging.getLogger("vllm.kvtrail")

FLUSH_S = 1.0
"""How long a dying or ending engine waits for its last events to be sent."""
NO_FLUSH_S = 60.0
"""How long nobody waits again after a wait was in vain: an engine that lives on with failing calls is not slowed down."""
MOST_PROBE_FAILURES = 100
"""Failures of one question in a row after which a probe is switched off."""
LOG_AGAIN_S = 600.0
"""After how long a failure of the same kind is logged again."""
SAFE_ANSWER = (0, False)
"""Nothing is loaded, vLLM computes the tokens itself. Always legal: vLLM may ignore a connector's answer."""
_NAMES = {kind: kind.value for kind in Kind}  # reading an enum's value takes five times as long
_NO_POOL = SimpleNamespace(cached_block_hash_to_block=None)
_END_UNKNOWN = (None,) * len(FIELDS[Kind.REQUEST])
_TOLD = "_kvtrail_told"
"""Attribute of an exception that has been recorded: it may pass through several traced calls."""
Method = TypeVar("Method", bound=Callable[..., None])


class ContractBreach(RuntimeError):
    """A lookup's answer broke the contract under `guard: raise`."""


def _never_breaks(kind: str, *, concerns_all: bool = False) -> Callable[[Method], Method]:
    """For methods that record events of this kind. If one fails, its event is untold: of the request that is among its
    arguments, or of any request if it `concerns_all`."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def guarded(self: Instrumentation, *args: Any) -> None:
            if self._recorder is not None:
                try:
                    method(self, *args)
                except Exception:
                    self._untold(kind, None if concerns_all else ids_in(args))

        return guarded  # type: ignore[return-value]  # the same signature

    return decorate


class Instrumentation:
    """Records the calls of one connector object; without a recorder it records nothing."""

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
        tells_hashes: bool = True,
        tells_cache: bool = True,
    ) -> None:
        """`name` is the connector's, for the log; `source` the encoded attributes that say who recorded; `lease`, how
        long the connector keeps an ended request's blocks, in seconds; `guard`, what to do
        with a lookup's answer that breaks the contract; `unannounced`, whether this vLLM has no `on_new_request`;
        `has_groups`, whether there are several KV cache groups; the others, what is recorded at level `detailed`."""
        self._recorder: Any = recorder  # checked once, in `_never_breaks`
        self._level = LevelSwitch() if recorder is None else recorder.level
        self._name = name
        self._source = self._call_source = source
        self._probe = probe or Probe()
        self._lease = lease
        self._guard = guard
        self._unannounced = unannounced
        self._steps = 0
        self._steps_told: Any = None if recorder is None else Steps(recorder, source)  # checked as the recorder is
        self._plans: Any = None if recorder is None else Plans(recorder, source, self._untold)
        self._hashes: Any = None if recorder is None else BlockHashes.of(recorder, tells=tells_hashes)
        self._holdings: Any = None if recorder is None else Holdings(recorder, source)
        self._adapters = Adapters()
        self._pool: Any = _NO_POOL
        self._cached: Any = None
        """The pool's map of cached blocks when it was last looked at."""
        self._has_groups, self._tells_cache = has_groups, tells_cache
        self._prefix_cache: PrefixCache | None = None
        self._store: StoreChanges | None = None
        self._failing: dict[str, int] = {}
        """Questions to the probe that failed the last time they were asked, and how often in a row."""
        self._log_again_s: dict[str, float] = {}
        """When a failure of a kind is worth a word again."""
        self._no_flush_s = float("-inf")
        """Until when nobody waits for events to be sent."""
        self._is_shut_down = False
        self._held_at_last: int | None = None
        self.loads_nothing: set[str] = set()
        """Requests whose loads were wrong: under `guard: heal`, vLLM computes them."""
        self.sees_ends = recorder is not None and self._probe.sees_ends
        self.unprobed = None if probe is not None and type(probe) is not Probe else NO_PROBE
        """Why the probe sees nothing; None while it works."""
        if recorder is not None:
            recorder.join()

    @property
    def recorder(self) -> Recorder | None:
        """What records."""
        return self._recorder  # type: ignore[no-any-return]

    @property
    def source(self) -> bytes:
        """The encoded attributes that say who recorded."""
        return self._source

    @contextmanager
    def placed(self, *, span_id: bytes = b"", parent_id: bytes = b"") -> Iterator[None]:
        """Inside, lookups and allocations have this id, or are children of this span."""
        before = self._call_source
        self._call_source += (of_span(span_id) if span_id else b"") + (inside(parent_id) if parent_id else b"")
        try:
            yield
        finally:
            self._call_source = before

    # On the scheduler's side, in the order of a request's life.

    @_never_breaks(Kind.CACHE_RESET)
    def pool_bound(self, bound: Any) -> None:
        """After `bind_kv_cache_manager` or `bind_gpu_block_pool`: vLLM's block pool, whose map of cached blocks is a new one
        after each reset. Another vLLM may have none."""
        pool = getattr(bound, "block_pool", bound)
        if hasattr(pool, "cached_block_hash_to_block"):
            self._pool, self._cached = pool, pool.cached_block_hash_to_block
            if self._tells_cache and can_be_followed(pool):
                self._prefix_cache = PrefixCache.of(pool, self._recorder, has_groups=self._has_groups)
            self._recorder.spare = self._recorder.spare or spare_capacity(pool)

    @_never_breaks(Kind.REQUEST_START)
    def request_started(self, request: Any) -> None:
        """After `on_new_request`; of a vLLM that has no such call, after the first lookup."""
        context = self._recorder.contexts.of(request)
        if context.source is None:
            context.source = self._source
            limit, priority = getattr(request, "max_tokens", None), getattr(request, "priority", None)
            *told, seen = self._hashes.at_start(context, request)
            whose = (identity_of(request), seen, self._adapters.recorded(request, self._untold))
            values = (request.num_tokens, limit, self._steps, priority or None, *told, *whose)
            start_ns = context.start_ns
            self._recorder.record(_NAMES[Kind.REQUEST_START], self._source, context, start_ns, monotonic_ns(), values)

    def looked_up(
        self, connector: Any, request: Any, computed: int, start_ns: int, answer: tuple[int | None, bool]
    ) -> tuple[int | None, bool]:
        """After `get_num_new_matched_tokens`. Returns the answer for vLLM: the connector's, unless the guard heals it.

        Raises:
            ContractBreach: the answer breaks the contract under `guard: raise`.
        """
        end_ns = monotonic_ns()
        matched = cached = refused = None
        try:
            matched, cached = self._probe.lookup(connector, request)
            if matched is not None and matched.__class__ is not int:
                matched = int(index(matched))
            if self._failing:
                self._failing.pop("lookup", None)
        except Exception:
            matched = None
            self._probe_failed("lookup", gap=False)
        keys = self._keys(connector, request) if self._level.detailed else None
        if self._store is None and self._tells_cache:
            self._follow_store(connector)
        self._tell_caches(end_ns)
        try:
            total, (returned, is_async) = request.num_tokens, answer
            if returned is not None and returned.__class__ is not int:
                returned = int(index(returned))  # a numpy number; whatever else it is, nothing is made up
            if self._guard is not Guard.OBSERVE and (
                contract.breach(total, computed, matched, returned, is_async)
                or (returned and request.request_id in self.loads_nothing)
            ):
                answer, returned, refused = SAFE_ANSWER, SAFE_ANSWER[0], returned
            if self._recorder is not None:
                context = self._recorder.contexts.of(request)
                if self._unannounced and context.source is None:
                    self.request_started(request)
                told = (refused, keys, self._steps, *self._hashes.since(context, request))
                values = (total, computed, matched, returned, True if is_async else False, cached, *told)  # noqa: SIM210 - faster
                self._recorder.record(_NAMES[Kind.LOOKUP], self._call_source, context, start_ns, end_ns, values)
        except Exception:
            self._untold(Kind.LOOKUP, ids_in((request,)))
        if refused is not None and self._guard is Guard.RAISE:
            raise ContractBreach(
                f"kvtrail: the connector returned {refused} new tokens for request {request.request_id}, of whose {total}"
                f" tokens {computed} are computed: at most {contract.new_at_most(total, computed, matched)} can be new"
            )
        return answer

    @_never_breaks(Kind.ALLOC)
    def allocated(
        self,
        connector: Any,
        request: Any,
        blocks: Any,
        external: int,
        start_ns: int,
        error: Exception | None = None,
    ) -> None:
        """After `update_state_after_alloc`, which may have raised; with the block table if the request's epoch is recorded
        in detail. What the allocation has pushed out of vLLM's prefix cache is told before it."""
        self._tell_caches(monotonic_ns())
        context: RequestContext = self._recorder.contexts.of(request)
        if context.detailed_epoch != context.epoch:
            context.detailed_epoch, context.detailed = context.epoch, self._level.detailed and context.recorded
        context.blocks = blocks
        table = first_group(blocks.get_block_ids()) if context.detailed else None
        groups = getattr(blocks, "blocks", None)
        count = None if groups is None else sum(map(len, groups))
        sources = hit_sources(connector, request, external) if external and error is None else None
        values = (request.num_tokens, external, count, table, None, None, sources, self._steps)
        if error is None:
            self._recorder.record(_NAMES[Kind.ALLOC], self._call_source, context, start_ns, monotonic_ns(), values)
        else:
            self._failed(Kind.ALLOC, context, start_ns, values, error)

    @_never_breaks(Kind.LOOKUP)
    def lookup_failed(self, request: Any, computed: int, start_ns: int, error: Exception) -> None:
        """`get_num_new_matched_tokens` has raised."""
        context = self._recorder.contexts.of(request)
        values = (request.num_tokens, computed, *(None,) * 6, self._steps, None, None)
        self._failed(Kind.LOOKUP, context, start_ns, values, error)

    @_never_breaks(Kind.FAILURE)
    def call_failed(self, call: str, start_ns: int, error: Exception, *about: Any) -> None:
        """Another call of the connector has raised. It is about the request among its arguments, if there is one."""
        if getattr(error, _TOLD, False):
            return
        ids = ids_in(about)
        context = self._recorder.contexts.named(ids[0]) if ids else None
        self._failed(Kind.FAILURE, context, start_ns, (call,), error)

    def _failed(
        self, kind: Kind, context: RequestContext | None, start_ns: int, values: tuple[Any, ...], error: Exception
    ) -> None:
        text, source = located(error), self._source if kind is Kind.FAILURE else self._call_source
        self._recorder.record(_NAMES[kind], source, context, start_ns, monotonic_ns(), values, text)
        with suppress(AttributeError, TypeError):
            setattr(error, _TOLD, True)
        if monotonic() >= self._no_flush_s and not self._recorder.flush(FLUSH_S):  # the engine may be about to die
            self._no_flush_s = monotonic() + NO_FLUSH_S

    def step_built(self, connector: Any, output: Any, metadata: Any) -> None:
        """After `build_connector_meta`: what the step does to requests, and what the probe saw of it."""
        if self._recorder is None:
            return
        at_ns = monotonic_ns()
        if self._recorder.spare is not None:
            try:
                self._recorder.spare.step(output, at_ns)
            except Exception:
                self._recorder.spare = None
                self._untold(Kind.HEARTBEAT, (), gap=False)
        try:
            if self._pool.cached_block_hash_to_block is not self._cached:
                self._cached = self._pool.cached_block_hash_to_block
                self._record(Kind.CACHE_RESET, None, at_ns, (self._steps,))
            if (
                self._level.any_detailed
                or output.scheduled_new_reqs
                or output.preempted_req_ids
                or output.scheduled_cached_reqs.resumed_req_ids
            ):
                self._steps_told.record(connector, output, self._pool, self._steps, at_ns)
        except Exception:
            self._untold(Kind.SCHEDULE, ids_of_step(output))
        self._tell_caches(at_ns, can_wait=True)
        self._steps_told.previous = output
        self._steps += 1
        self._recorder.steps = self._steps
        try:
            seen = self._probe.stepped(connector, metadata)
            if self._failing:
                self._failing.pop("stepped", None)
        except Exception:
            self._probe_failed("stepped", ids_of_step(output))
            return
        if seen is not None:
            self._tell_caches(at_ns)  # whichever cache loses a block last is told last
            self._seen(seen, metadata, output, at_ns)
        if self._level.detailed and at_ns >= self._holdings.due_ns:
            try:
                self._holdings.tell(self._probe, connector, at_ns)
                self._failing.pop("held_keys", None)
            except Exception:
                self._probe_failed("held_keys", gap=False)

    def transfers_ended(self, connector: Any, output: Any) -> Sequence[int]:
        """Before `update_connector_output`: the numbers of planned transfers that this report of the workers ends. Only asked
        if the instrumentation `sees_ends`."""
        try:
            ended = self._probe.ended(connector, output)
            self._failing.pop("ended", None)
            return ended
        except Exception:
            self._probe_failed("ended", self._plans.requests())
            return ()

    def workers_reported(self, connector: Any, output: Any, ended: Sequence[int]) -> None:
        """After `update_connector_output`: transfers that ended, blocks that could not be loaded, and chunks that are
        forgotten."""
        if self._recorder is None:
            return
        at_ns = monotonic_ns()
        self._ends(ended)
        self._load_errors(output, at_ns)
        self._completions(output, at_ns)
        self._forgotten(connector, at_ns)

    @_never_breaks(Kind.TRANSFER_END, concerns_all=True)
    def _ends(self, ended: Sequence[int]) -> None:
        for number in ended:
            self._plans.job(Kind.TRANSFER_END, number, (False, self._steps))

    @_never_breaks(Kind.LOAD_ERROR, concerns_all=True)
    def _load_errors(self, output: Any, at_ns: int) -> None:
        if invalid := getattr(output, "invalid_block_ids", None):
            for context, blocks in self._holders(invalid):
                self._record(Kind.LOAD_ERROR, context, at_ns, (blocks,))
                self._steps_told.watch(context.request_id)

    @_never_breaks(Kind.EVICT, concerns_all=True)
    def _forgotten(self, connector: Any, at_ns: int) -> None:
        self._plans.evicted(self._probe.forgotten(connector), at_ns)

    @_never_breaks(Kind.RECEIVED, concerns_all=True)
    def _completions(self, output: Any, at_ns: int) -> None:
        failed = getattr(output, "failed_recving", None) or ()
        for request_id in output.finished_recving or ():
            self._completed(request_id, Kind.RECEIVED, at_ns, (request_id in failed, self._steps))
        for request_id in output.finished_sending or ():
            self._completed(request_id, Kind.SENT, at_ns, (self._steps,))

    @_never_breaks(Kind.RECEIVED)
    def _completed(self, request_id: str, kind: Kind, at_ns: int, values: tuple[Any, ...]) -> None:
        self._record(kind, self._recorder.contexts.of_id(request_id), at_ns, values)
        self._recorder.contexts.release(request_id)

    @_never_breaks(Kind.REQUEST)
    def request_ended(self, request: Any, answer: Any, blocks: Any = None) -> None:
        """After `request_finished`, which is given the blocks that the request holds, and answers whether the connector keeps
        them, and what goes to the client. The blocks are recorded of a request that is to be handed on and was preempted."""
        context = self._recorder.contexts.of(request)
        if context.ended is None:  # another child of a MultiConnector may have recorded it
            values: tuple[Any, ...]
            delayed = False
            try:
                counts = (request.num_tokens, request.num_output_tokens, request.num_computed_tokens)
                outcome = request.status.name.removeprefix("FINISHED_").lower()
                delayed = bool(answer[0])
                handoff = (getattr(request, "kv_transfer_params", None) or {}).get("do_remote_decode") is True or None
                held = held_at_end(blocks) if handoff and context.epoch and blocks is not None else None
                hashes = self._hashes.since(context, request)
                used = (getattr(request, "num_prompt_tokens", None), context.cached)
                lease_s = self._lease_s(context.request_id) if delayed else None
                values = (*counts, outcome, delayed, held, self._steps, *hashes, handoff, lease_s, *used)
            except Exception:  # an end without its numbers is an end all the same
                self._untold(Kind.REQUEST, (), gap=False)
                values = _END_UNKNOWN
            self._recorder.record(_NAMES[Kind.REQUEST], self._source, context, context.start_ns, monotonic_ns(), values)
            self._recorder.contexts.end(context, kept=delayed)
        self._steps_told.ended(context.request_id)

    def _lease_s(self, request_id: str) -> int | None:
        """For how many seconds the connector keeps the blocks of an ended request; None where that is not known."""
        try:
            lease_s = None if self._lease is None else self._lease(request_id)
            return None if lease_s is None else max(0, round(lease_s))
        except Exception:
            self._untold("lease", (), gap=False)
            return None

    @_never_breaks(Kind.RESET)
    def cache_reset(self, succeeded: bool | None) -> None:
        """After `reset_cache`."""
        self._tell_caches(monotonic_ns())
        self._record(Kind.RESET, None, monotonic_ns(), (succeeded, self._steps))

    def shutting_down(self, connector: Any) -> None:
        """Before `shutdown`: what the connector holds is known for the last time."""
        self._held_at_last = self._held_bytes(connector)

    @_never_breaks(Kind.HEARTBEAT)
    def shut_down(self, error: BaseException | None = None) -> None:
        """After `shutdown`; vLLM calls it while it handles the `error` that the engine dies of, if it does."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._recorder.leave(FLUSH_S, ended_by=death.told(error or death.of_process()))

    def follow(self, connector: Any) -> None:
        """Ask the probe with each sign of life what this connector holds, until the connector is shut down or gone."""
        if self._recorder is not None:
            try:
                self._probe.made(connector)
            except Exception:
                self._probe_failed("made", gap=False)
            there = weakref.ref(connector)
            self._recorder.holders.append(lambda: self._held_bytes(there()))

    def _held_bytes(self, connector: Any) -> int | None:
        if connector is None or self._is_shut_down:
            return self._held_at_last
        try:
            held = self._probe.held_bytes(connector)
            self._failing.pop("held_bytes", None)
            return None if held is None else index(held)
        except Exception:
            self._probe_failed("held_bytes", gap=False)
            return None

    def temporary(self, connector: Any) -> Mapping[str, int]:
        """What the probe counts that must be 0 when no request is left."""
        try:
            return self._probe.temporary(connector)
        except Exception:
            self._probe_failed("temporary")
            return {}

    # On a worker.

    def loaded(self, connector: Any, start_ns: int) -> None:
        """After the connector's call that loads."""
        self._moved(Kind.LOAD, "loads", connector, start_ns)

    def stored(self, connector: Any, start_ns: int) -> None:
        """After the connector's call that stores."""
        self._moved(Kind.STORE, "stores", connector, start_ns)

    @_never_breaks(Kind.LOAD, concerns_all=True)
    def _moved(self, kind: Kind, question: str, connector: Any, start_ns: int) -> None:
        """Record what this step has copied, in the callers' traces that the scheduler's side passed on."""
        try:
            moved = getattr(self._probe, question)(connector)
            if self._failing:
                self._failing.pop(question, None)
        except Exception:
            self._probe_failed(question, None)
            return
        if not moved:
            return
        end_ns, contexts = monotonic_ns(), self._recorder.contexts
        for request_id, place in getattr(connector._connector_metadata, PLACES, {}).items():
            contexts.adopt(request_id, *place)
        for each in moved:
            self._copied(each, kind, start_ns, end_ns)

    @_never_breaks(Kind.LOAD)
    def _copied(self, moved: Moved, kind: Kind, start_ns: int, end_ns: int) -> None:
        request_id, *values = moved
        context = self._recorder.contexts.of_id(request_id)
        self._recorder.record(_NAMES[kind], self._source, context, start_ns, end_ns, (*values, None))

    # Plans.

    @_never_breaks(Kind.STORE_PLAN, concerns_all=True)
    def _seen(self, seen: Seen, metadata: Any, output: Any, at_ns: int) -> None:
        self._plans.seen(seen, metadata, output, at_ns)

    def _holders(self, blocks: Collection[int]) -> Iterator[tuple[RequestContext, tuple[int, ...]]]:
        """The requests that were given some of these blocks, and those blocks. Rare: only after a failed load."""
        for context in list(self._recorder.contexts.open.values()):
            if context.request is not None and context.blocks is not None:
                table = first_group(context.blocks.get_block_ids()) or ()
                if held := tuple(block for block in table if block in blocks):
                    context.epoch = context.request.num_preemptions
                    yield context, held

    def _record(self, kind: Kind, context: RequestContext | None, at_ns: int, values: tuple[Any, ...]) -> None:
        """Something that takes no time."""
        self._recorder.record(_NAMES[kind], self._source, context, at_ns, at_ns, values)

    def _tell_caches(self, at_ns: int, *, can_wait: bool = False) -> None:
        """Tell what the connector's store has gained and lost, by the step before, and then vLLM's prefix cache, which
        `can_wait`. If that fails, nothing more is told of it."""
        if (store := self._store) is not None:
            try:
                store.tell(self._source, self._steps, at_ns)
            except Exception:
                self._store, self._tells_cache = None, False
                self._probe_failed("contents")
                with suppress(Exception):
                    store.let_go(self._source, self._steps, at_ns)
        if (cache := self._prefix_cache) is not None:
            try:
                cache.tell(self._source, self._steps, at_ns, can_wait=can_wait)
            except Exception:
                self._prefix_cache = None
                self._untold(Kind.PREFIX_CACHE, ())
                with suppress(Exception):
                    cache.let_go(self._source, self._steps, at_ns)

    def _follow_store(self, connector: Any) -> None:
        """Follow what the connector's store gains and loses, if its probe can."""
        try:
            contents = self._probe.contents(connector)
            if contents is not None and self._recorder is not None:
                self._store = StoreChanges(self._recorder, contents)
        except Exception:
            self._tells_cache = False
            self._probe_failed("contents", gap=False)

    def _keys(self, connector: Any, request: Any) -> tuple[str, ...] | None:
        """The keys that a lookup claims, if the probe knows them."""
        try:
            keys = self._probe.keys(connector, request)
            if self._failing:
                self._failing.pop("keys", None)
            return keys
        except Exception:
            self._probe_failed("keys", (), gap=False)
            return None

    # What could not be told. All of this is called while an exception is handled.

    def _probe_failed(self, question: str, ids: Iterable[str] | None = (), *, gap: bool = True) -> None:
        """The probe could not answer. After too many failures of one question in a row it is asked nothing more."""
        self.unprobed = f"it failed when it was asked for `{question}`: {sys.exception()!r}"
        self._untold(f"probe.{question}", ids, gap=gap)
        self._failing[question] = self._failing.get(question, 0) + 1
        if self._failing[question] >= MOST_PROBE_FAILURES:
            self._failing.clear()
            self._probe, self.sees_ends = Probe(), False
            logger.error(
                "kvtrail: the probe of %s failed %d times in a row and is switched off: what only it can see is absent from"
                " now on",
                self._name,
                MOST_PROBE_FAILURES,
            )
            if self._recorder is not None:
                self._recorder.probes_off[self._name] = None
                self._untold("probe", None)  # transfers that it has shown have no end now

    def _untold(self, kind: str, ids: Iterable[str] | None, *, gap: bool = True) -> None:
        """Something could not be told: count it, and log it now and then.

        Args:
            kind: of the event, or `probe.<question>`.
            ids: the requests that it concerns; None if nobody knows, so that it may be any that is open.
            gap: whether an event is missing for it, and not only a number in one.
        """
        if self._recorder is not None:
            with suppress(Exception):
                contexts = self._recorder.contexts
                concerned = list(contexts.open.values()) if ids is None else [contexts.named(each) for each in ids]
                self._recorder.leave_out(kind, concerned if gap else None)
        now_s = monotonic()
        if now_s >= self._log_again_s.get(kind, now_s):
            self._log_again_s[kind] = now_s + LOG_AGAIN_S
            logger.exception(
                "kvtrail: of %s, something could not be told (%s); the heartbeats count how often. The engine goes on"
                " undisturbed.",
                self._name,
                kind,
            )

"""What is told of a traced connector's calls: between `traced`, which sees them, and `recorder`, which keeps them.

Telling must never break the engine. Whatever fails here, an attribute that another vLLM calls differently, a probe that does
not know its connector any more, is logged once, and that telling is over; the connector goes on as if untraced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, wraps
from time import time_ns
from types import SimpleNamespace
from typing import Any, TypeVar

from kvtrail.connector.known.probe import Moved, Probe, Seen
from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.settings import LevelSwitch
from kvtrail.connector.tracing import guard, steps
from kvtrail.connector.tracing.transfers import Places, Transfers
from kvtrail.tracer.model.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")

FLUSH_S = 1.0
"""How long a dying or ending engine waits for its last events to be sent."""
HASH_BYTES = 6
"""What is told of a block's hash: enough to know it again among those of a trace."""
_NAMES = {kind: kind.value for kind in Kind}  # an enum's own way to its value is slow
_LOOKUP, _ALLOC = Kind.LOOKUP.value, Kind.ALLOC.value
_NO_POOL = SimpleNamespace(cached_block_hash_to_block=None)
Method = TypeVar("Method", bound=Callable[..., None])


def _never_breaks(method: Method) -> Method:
    @wraps(method)
    def telling(self: Teller, *args: Any) -> None:
        if self._recorder is not None:
            try:
                method(self, *args)
            except Exception:
                self._give_up()

    return telling  # type: ignore[return-value]  # the same signature


@cache  # an enum's own way to a name is slow
def _outcome(status: Any) -> str:
    """How a request ended, by its `RequestStatus`."""
    name: str = status.name
    return name.removeprefix("FINISHED_").lower()


class Teller:
    """Tells a recorder about one connector object; without a recorder it tells nobody."""

    def __init__(
        self,
        recorder: Recorder | None = None,
        *,
        name: str = "",
        source: bytes = b"",
        probe: Probe | None = None,
        guarded: bool = False,
    ) -> None:
        """`name` is the connector's, for the log; `source` the encoded attributes that say who recorded; `guarded`, whether
        answers that break the contract are refused."""
        self._recorder: Any = recorder  # checked once, in `_never_breaks`
        self._level = LevelSwitch() if recorder is None else recorder.level
        self._name = name
        self._source = source
        self._probe = probe or Probe()
        self._guarded = guarded
        self._steps = 0
        self._pool: Any = _NO_POOL
        self._prefix_cache: Any = _NO_POOL.cached_block_hash_to_block
        self._transfers = Transfers(self._recorder, source)
        self.sees_ends = recorder is not None and self._probe.sees_ends

    def bound(self, kv_cache_manager: Any) -> None:
        """Know vLLM's block pool, whose map of cached blocks is a new one after each reset. Another vLLM's may have none."""
        pool = getattr(kv_cache_manager, "block_pool", None)
        if pool is not None and hasattr(pool, "cached_block_hash_to_block"):
            self._pool, self._prefix_cache = pool, pool.cached_block_hash_to_block

    @_never_breaks
    def begun(self, request: Any) -> None:
        context = self._recorder.context(request)
        if not context.started:
            context.started = True
            limit, priority = getattr(request, "max_tokens", None), getattr(request, "priority", None)
            values = (request.num_tokens, limit, self._steps, priority or None, self._hashes(context, request))
            self._recorder.record(
                _NAMES[Kind.REQUEST_START], self._source, context, context.start_ns, time_ns(), values
            )

    def lookup(
        self,
        connector: Any,
        request: Any,
        computed: int,
        start_ns: int,
        answer: tuple[int | None, bool],
    ) -> str | None:
        """Tell a lookup that has just been answered. Returns why the answer is refused, if lookups are guarded and it breaks
        the contract. The most frequent of all calls, and so in one piece."""
        end_ns = time_ns()
        total, (returned, is_async) = request.num_tokens, answer
        matched = cached = keys = instead = refused = None
        try:
            matched, cached = self._probe.lookup(connector, request)
            if self._level.detailed:
                keys = self._probe.keys(connector, request)
        except Exception:
            self._blind()
        if self._guarded and guard.breaks(total, computed, matched, returned, is_async):
            refused = guard.message(request.request_id, total, computed, matched, returned)
            returned, instead = guard.SAFE_ANSWER[0], returned
        if self._recorder is not None:
            values = (total, computed, matched, returned, is_async, cached, instead, keys)
            try:
                self._recorder.record(_LOOKUP, self._source, self._recorder.context(request), start_ns, end_ns, values)
            except Exception:
                self._give_up()
        return refused

    @_never_breaks
    def alloc(
        self,
        connector: Any,
        request: Any,
        blocks: Any,
        external: int,
        start_ns: int,
        error: BaseException | None = None,
    ) -> None:
        """Tell an allocation, with the block table where the request's epoch is recorded in detail."""
        recorder = self._recorder
        context: RequestContext = recorder.context(request)
        if context.detailed_epoch != context.epoch:
            context.detailed_epoch, context.detailed = context.epoch, recorder.level.detailed
        table = steps.first_group(blocks.get_block_ids()) if context.detailed else None
        groups = getattr(blocks, "blocks", None)
        count = None if groups is None else sum(map(len, groups))
        sources = self._sources(connector, request, external) if external and error is None else None
        values = (request.num_tokens, external, count, table, None, None, sources)
        if error is None:
            recorder.record(_ALLOC, self._source, context, start_ns, time_ns(), values)
        else:
            self.failed(Kind.ALLOC, request, start_ns, values, error)

    @_never_breaks
    def failed(self, kind: Kind, request: Any, start_ns: int, values: tuple[Any, ...], error: BaseException) -> None:
        recorder, text = self._recorder, f"{type(error).__name__}: {error}"
        recorder.record(kind.value, self._source, recorder.context(request), start_ns, time_ns(), values, text)
        recorder.flush(FLUSH_S)  # the engine is about to die, perhaps without a chance to say more

    def _sources(self, connector: Any, request: Any, external: int) -> tuple[str, ...] | None:
        """Where external tokens come from, by the connector's own account; None where it gives none."""
        try:
            counted = connector.get_external_cache_hit_sources(request, external)
            return tuple(f"{source.value}:{int(tokens)}" for source, tokens in counted.items())
        except Exception:  # it is asked for this one span only: what fails here must not end the telling
            return None

    def step(self, connector: Any, scheduler_output: Any, metadata: Any) -> None:
        """Preemptions, steps, plans, evictions and signs of a scheduling steps."""
        if self._recorder is None:
            return
        try:
            if self._pool.cached_block_hash_to_block is not self._prefix_cache:
                self._forgotten()
            out = scheduler_output
            if (
                out.scheduled_new_reqs
                or out.preempted_req_ids
                or out.scheduled_cached_reqs.resumed_req_ids
                or self._level.any_detailed
            ):
                steps.tell(self._recorder, self._source, connector, out)
            self._steps += 1
        except Exception:
            self._give_up()
            return
        try:
            seen = self._probe.stepped(connector, metadata)
        except Exception:
            self._blind()
            return
        if seen is not None:
            self._seen(seen, metadata)

    def ending(self, connector: Any, connector_output: Any) -> Sequence[int]:
        """The numbers of planned transfers that a report of the workers ends; asked before the connector hears it."""
        try:
            return self._probe.ended(connector, connector_output)
        except Exception:
            self._blind()
            return ()

    @_never_breaks
    def completions(self, connector: Any, output: Any, ended: Sequence[int]) -> None:
        """What the workers reported: transfers that ended, and blocks that could not be loaded."""
        at_ns = time_ns()
        for number in ended:
            self._transfers.over(Kind.TRANSFER_END, number, (False, self._steps))
        if invalid := getattr(output, "invalid_block_ids", None):
            for context, blocks in steps.holders(self._recorder, connector, invalid):
                self._tell(Kind.LOAD_ERROR, context, at_ns, (blocks,))
        failed = getattr(output, "failed_recving", None) or ()
        for request_id in output.finished_recving or ():
            self._tell(
                Kind.RECEIVED, self._recorder.contexts.of_id(request_id), at_ns, (request_id in failed, self._steps)
            )
        for request_id in output.finished_sending or ():
            self._tell(Kind.SENT, self._recorder.contexts.of_id(request_id), at_ns, (self._steps,))

    @_never_breaks
    def ended(self, request: Any, delayed: bool) -> None:
        context = self._recorder.context(request)
        if context.ended is None:  # another child of a MultiConnector may have told it
            counts = (request.num_tokens, request.num_output_tokens, request.num_computed_tokens)
            values = (*counts, _outcome(request.status), delayed, None, self._steps, self._hashes(context, request))
            self._recorder.record(_NAMES[Kind.REQUEST], self._source, context, context.start_ns, time_ns(), values)
            self._recorder.contexts.end(context)

    @_never_breaks
    def reset(self, succeeded: bool | None) -> None:
        self._tell(Kind.RESET, None, time_ns(), (succeeded, self._steps))

    def loaded(self, connector: Any, start_ns: int) -> None:
        """What this step has loaded."""
        self._moved(Kind.LOAD, self._probe.loads, connector, start_ns)

    def stored(self, connector: Any, start_ns: int) -> None:
        """What this step has stored."""
        self._moved(Kind.STORE, self._probe.stores, connector, start_ns)

    @_never_breaks
    def flush(self) -> None:
        self._recorder.flush(FLUSH_S)

    @_never_breaks
    def _seen(self, seen: Seen, metadata: Any) -> None:
        """What the probe saw of a step, in the order in which it happens: what is evicted makes room for what is stored."""
        at_ns, transfers = time_ns(), self._transfers
        loads, stores, evicted, flushed, signs = seen
        places: Places = {}
        if loads:
            transfers.plan_loads(loads, at_ns, places)
        for chunk in evicted:
            self._tell(Kind.EVICT, None, at_ns, tuple(chunk))
        if stores:
            transfers.plan_stores(stores, at_ns, places)
        if places:
            transfers.hand_over(places, metadata)
        for number in flushed:
            transfers.over(Kind.FLUSH, number, ())
        for kind, request_id, values in signs:
            context = None if request_id is None else self._recorder.contexts.of_id(request_id)
            self._tell(kind, context, at_ns, values)

    @_never_breaks
    def _moved(self, kind: Kind, look: Callable[[Any], Sequence[Moved]], connector: Any, start_ns: int) -> None:
        try:
            moved = look(connector)
        except Exception:
            self._blind()
            return
        if moved:
            self._transfers.moved(kind, connector._connector_metadata, start_ns, moved)

    def _tell(self, kind: Kind, context: RequestContext | None, at_ns: int, values: tuple[Any, ...]) -> None:
        self._recorder.record(_NAMES[kind], self._source, context, at_ns, at_ns, values)

    def _forgotten(self) -> None:
        """vLLM's prefix cache is another one: it was reset."""
        self._prefix_cache = self._pool.cached_block_hash_to_block
        self._tell(Kind.CACHE_RESET, None, time_ns(), (self._steps,))

    def _hashes(self, context: RequestContext, request: Any) -> str | None:
        """In detail, the hashes of the request's blocks that were not told yet."""
        if not self._recorder.level.detailed:
            return None
        fresh = request.block_hashes[context.hashed :]
        context.hashed += len(fresh)
        return b"".join(bytes(block_hash)[:HASH_BYTES] for block_hash in fresh).hex() or None

    def _give_up(self) -> None:
        logger.exception("kvtrail: %s could not be told; nothing more is recorded of it", self._name)
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.leave_gap()

    def _blind(self) -> None:
        logger.exception(
            "kvtrail: the probe of %s failed and is switched off: what only it can see is absent from now on",
            self._name,
        )
        self._probe = Probe()
        self.sees_ends = False
        if self._recorder is not None:
            self._recorder.leave_gap()

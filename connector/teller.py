"""What is told of a traced connector's calls: between `traced`, which sees them, and `recorder`, which keeps them.

Telling must never break the engine. Whatever fails here, an attribute that another vLLM calls differently, a probe that does
not know its connector any more, is logged once, and that telling is over; the connector goes on as if untraced.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from time import time_ns
from typing import Any, TypeVar

from connector import step
from connector.context import RequestContext
from connector.probes import Evicted, Moved, Planned, Probe, Sees, Sign
from connector.recorder import Recorder
from tracer.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")

FLUSH_S = 1.0
"""How long a dying or ending engine waits for its last events to be sent."""
HASH_BYTES = 6
"""What is told of a block's hash: enough to know it again among those of a trace."""
MOST_JOBS = 65_536
"""Numbered transfers of which the request is remembered."""
_NAMES = {kind: kind.value for kind in Kind}  # an enum's own way to its value is slow
_LOOKUP = Kind.LOOKUP.value
HANDED_OVER = "_kvtrail_places"
"""Attribute of a connector's metadata by which the scheduler's side tells the workers of callers' traces."""
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


class Teller:
    """Tells a recorder about one connector object; without a recorder it tells nobody."""

    def __init__(
        self, recorder: Recorder | None = None, *, name: str = "", source: bytes = b"", probe: Probe | None = None
    ) -> None:
        """`name` is the connector's, for the log; `source` the encoded attributes that say who recorded."""
        self._recorder: Any = recorder  # checked once, in `_never_breaks`
        self._name = name
        self._source = source
        self._probe = probe or Probe()
        self._sees = Sees.of(self._probe)
        self._steps = 0
        self._prefix_cache: Any = None
        self._jobs: OrderedDict[int, str] = OrderedDict()
        """The requests of numbered transfers; those that have ended are kept for a while, for a second report of them."""
        self.sees_transfers = recorder is not None and self._probe.sees_transfers
        """Whether there is anything to tell of a worker's step."""

    def see(self, connector: Any, request: Any) -> tuple[int | None, bool | None, tuple[str, ...] | None]:
        """What the probe sees after a lookup: the matched tokens, whether the answer was remembered, and in detail the keys
        of the chunks."""
        try:
            matched, cached = self._probe.lookup(connector, request)
            recorder = self._recorder
            if recorder is None or not recorder.level.detailed:
                return matched, cached, None
            return matched, cached, self._probe.keys(connector, request)
        except Exception:
            self._blind()
            return None, None, None

    def table(self, request: Any, blocks: Any) -> tuple[int, ...] | None:
        """The block table at an allocation, where the request's epoch is recorded in detail."""
        recorder = self._recorder
        if recorder is None:
            return None
        try:
            context: RequestContext = recorder.context(request)
            if context.detailed_epoch != context.epoch:
                context.detailed_epoch, context.detailed = context.epoch, recorder.level.detailed
            return step.first_group(blocks.get_block_ids()) if context.detailed else None
        except Exception:
            self._give_up()
            return None

    @_never_breaks
    def begun(self, request: Any) -> None:
        context = self._recorder.context(request)
        if not context.begun:
            context.begun = True
            limit, priority = getattr(request, "max_tokens", None), getattr(request, "priority", None)
            values = (request.num_tokens, limit, self._steps, priority or None, self._hashes(context, request))
            self._tell(Kind.REQUEST_START, context, context.start_ns, values)

    def lookup(self, request: Any, start_ns: int, end_ns: int, values: tuple[Any, ...]) -> None:
        recorder = self._recorder
        if recorder is not None:
            try:
                recorder.record(_LOOKUP, self._source, recorder.context(request), start_ns, end_ns, values)
            except Exception:
                self._give_up()

    @_never_breaks
    def alloc(self, request: Any, start_ns: int, values: tuple[Any, ...]) -> None:
        self._tell(Kind.ALLOC, self._recorder.context(request), start_ns, values)

    @_never_breaks
    def failed(self, kind: Kind, request: Any, start_ns: int, values: tuple[Any, ...], error: BaseException) -> None:
        recorder, text = self._recorder, f"{type(error).__name__}: {error}"
        recorder.record(kind.value, self._source, recorder.context(request), start_ns, time_ns(), values, text)
        recorder.flush(FLUSH_S)  # the engine is about to die, perhaps without a chance to say more

    def sources(self, connector: Any, request: Any, external: int) -> tuple[str, ...] | None:
        """Where external tokens come from, by the connector's own account; None where it gives none."""
        try:
            counted = connector.get_external_cache_hit_sources(request, external)
            return tuple(f"{source.value}:{int(tokens)}" for source, tokens in counted.items())
        except Exception:  # it is asked for this one span only: what fails here must not end the telling
            return None

    def step(self, connector: Any, scheduler_output: Any, metadata: Any) -> None:
        """Preemptions, steps, plans, evictions and signs of a scheduling step."""
        if self._recorder is None:
            return
        try:
            if (cache := step.prefix_cache(connector)) is not self._prefix_cache:
                self._forgotten(cache)
            out = scheduler_output
            if (
                out.scheduled_new_reqs
                or out.preempted_req_ids
                or out.scheduled_cached_reqs.resumed_req_ids
                or self._recorder.level.tells_steps
            ):
                step.tell(self._tell, self._recorder, connector, out)
                if out.scheduled_new_reqs:
                    self._hand_over(out, metadata)
            self._steps += 1
        except Exception:
            self._give_up()
            return
        probe = self._probe
        try:
            planned = probe.plans(connector, metadata) if self._sees.plans else ()
            evicted = probe.evictions(connector) if self._sees.evictions else ()
            flushed = probe.flushed(connector, metadata) if self._sees.flushed else ()
            signs = probe.signs(connector) if self._sees.signs else ()
        except Exception:
            self._blind()
            return
        if planned or evicted or flushed or signs:
            self._seen(planned, evicted, flushed, signs)

    def ending(self, connector: Any, connector_output: Any) -> Sequence[int]:
        """The numbers of planned transfers that a report of the workers ends; asked before the connector hears it."""
        if self._recorder is None or not self._sees.ended:
            return ()
        return self._moved(self._probe.ended, connector, connector_output)

    def completions(self, connector: Any, connector_output: Any, ended: Sequence[int]) -> None:
        """What the workers reported: transfers that ended, and blocks that could not be loaded."""
        out = connector_output
        try:
            told = ended or out.finished_recving or out.finished_sending or out.invalid_block_ids
        except AttributeError:
            told = True  # another vLLM's report: told as far as it is understood
        if told:
            self._completions(connector, out, ended)

    @_never_breaks
    def _completions(self, connector: Any, output: Any, ended: Sequence[int]) -> None:
        at_ns = time_ns()
        self._numbered(Kind.TRANSFER_END, ended)
        if invalid := getattr(output, "invalid_block_ids", None):
            for context, blocks in step.holders(self._recorder, connector, invalid):
                self._tell(Kind.LOAD_ERROR, context, at_ns, (blocks,))
        failed = getattr(output, "failed_recving", None) or ()
        for request_id in output.finished_recving or ():
            self._tell(
                Kind.RECEIVED, self._recorder.context_of_id(request_id), at_ns, (request_id in failed, self._steps)
            )
        for request_id in output.finished_sending or ():
            self._tell(Kind.SENT, self._recorder.context_of_id(request_id), at_ns, (self._steps,))

    @_never_breaks
    def ended(self, request: Any, delayed: bool) -> None:
        context = self._recorder.context(request)
        if context.ended is None:  # another child of a MultiConnector may have told it
            outcome = request.status.name.removeprefix("FINISHED_").lower()
            counts = (request.num_tokens, request.num_output_tokens, request.num_computed_tokens)
            values = (*counts, outcome, delayed, None, self._steps, self._hashes(context, request))
            self._tell(Kind.REQUEST, context, context.start_ns, values)
            self._recorder.end(context)

    @_never_breaks
    def reset(self, succeeded: bool | None) -> None:
        self._tell(Kind.RESET, None, time_ns(), (succeeded, self._steps))

    def loaded(self, connector: Any, start_ns: int) -> None:
        """What this step has loaded; and before it, the places in callers' traces that the scheduler's side hands over."""
        if places := getattr(getattr(connector, "_connector_metadata", None), HANDED_OVER, None):
            self._adopt(places)
        if moved := self._moved(self._probe.loads, connector):
            self._transfers(Kind.LOAD, start_ns, moved)

    def stored(self, connector: Any, start_ns: int) -> None:
        """What this step has stored."""
        if moved := self._moved(self._probe.stores, connector):
            self._transfers(Kind.STORE, start_ns, moved)

    @_never_breaks
    def flush(self) -> None:
        self._recorder.flush(FLUSH_S)

    @_never_breaks
    def _seen(
        self, planned: Sequence[Planned], evicted: Sequence[Evicted], flushed: Sequence[int], signs: Sequence[Sign]
    ) -> None:
        """What the probe saw of a step, in the order in which it happens: what is evicted makes room for what is stored."""
        self._plans([plan for plan in planned if not plan.is_store])
        self._evictions(evicted)
        self._plans([plan for plan in planned if plan.is_store])
        self._numbered(Kind.FLUSH, flushed)
        self._signs(signs)

    @_never_breaks
    def _evictions(self, evicted: Sequence[Evicted]) -> None:
        for each in evicted:
            self._tell(Kind.EVICT, None, time_ns(), tuple(each))

    @_never_breaks
    def _plans(self, planned: Sequence[Planned]) -> None:
        at_ns = time_ns()
        for plan in planned:
            context = self._known(plan.request_id)
            blocks = plan.blocks if context.detailed else None
            values = (plan.start, plan.tokens, blocks, plan.keys, plan.job)
            if plan.job is not None:
                self._jobs[plan.job] = plan.request_id
                if len(self._jobs) > MOST_JOBS:
                    self._jobs.popitem(last=False)
            if plan.is_store:
                self._tell(Kind.STORE_PLAN, context, at_ns, (*values, plan.present))
            else:
                self._tell(Kind.LOAD_PLAN, context, at_ns, values)

    @_never_breaks
    def _numbered(self, kind: Kind, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (request_id := self._jobs.get(number)) is not None:
                values = (number,) if kind is Kind.FLUSH else (number, False, self._steps)
                self._tell(kind, self._recorder.context_of_id(request_id), time_ns(), values)

    @_never_breaks
    def _signs(self, signs: Sequence[Sign]) -> None:
        for kind, request_id, values in signs:
            self._tell(kind, None if request_id is None else self._known(request_id), time_ns(), values)

    @_never_breaks
    def _adopt(self, places: Mapping[str, tuple[bytes, bool]]) -> None:
        for request_id, place in places.items():
            self._recorder.adopt(request_id, *place)

    @_never_breaks
    def _transfers(self, kind: Kind, start_ns: int, moved: Sequence[Moved]) -> None:
        for request_id, *values in moved:
            self._tell(kind, self._recorder.context_of_id(request_id), start_ns, (*values, None))

    def _tell(self, kind: Kind, context: RequestContext | None, start_ns: int, values: tuple[Any, ...]) -> None:
        self._recorder.record(_NAMES[kind], self._source, context, start_ns, time_ns(), values)

    def _known(self, request_id: str) -> RequestContext:
        return step.known(self._recorder, request_id)

    def _forgotten(self, cache: Any) -> None:
        """vLLM's prefix cache is another one: not the first that is seen, so it was reset."""
        if self._prefix_cache is not None:
            self._tell(Kind.CACHE_RESET, None, time_ns(), (self._steps,))
        self._prefix_cache = cache

    def _hashes(self, context: RequestContext, request: Any) -> str | None:
        """In detail, the hashes of the request's blocks that were not told yet."""
        if not self._recorder.level.detailed:
            return None
        fresh = request.block_hashes[context.hashed :]
        context.hashed += len(fresh)
        return b"".join(bytes(block_hash)[:HASH_BYTES] for block_hash in fresh).hex() or None

    def _hand_over(self, scheduler_output: Any, metadata: Any) -> None:
        """Tell workers in other processes the traces of new requests that are a caller's; others they can derive."""
        contexts = (self._recorder.context_of_id(new.req_id) for new in scheduler_output.scheduled_new_reqs)
        places = {context.request_id: (context.root, context.sampled) for context in contexts if context.has_caller}
        if places:
            try:
                setattr(metadata, HANDED_OVER, places)
            except (AttributeError, TypeError):
                logger.debug("kvtrail: %s takes no note of callers' traces for its workers", type(metadata))

    def _moved(self, look: Callable[..., Sequence[Any]], *about: Any) -> Sequence[Any]:
        try:
            return look(*about)
        except Exception:
            self._blind()
            return []

    def _give_up(self) -> None:
        logger.exception("kvtrail: %s could not be told; nothing more is recorded of it", self._name)
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.lose()

    def _blind(self) -> None:
        logger.exception(
            "kvtrail: the probe of %s failed and is switched off: what only it can see is absent from now on",
            self._name,
        )
        self._probe = Probe()
        self._sees, self.sees_transfers = Sees.of(self._probe), False
        if self._recorder is not None:
            self._recorder.lose()

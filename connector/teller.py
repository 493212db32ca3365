"""What is told of a traced connector's calls: between `traced`, which sees them, and `recorder`, which keeps them.

Telling must never break the engine. Whatever fails here, an attribute that another vLLM calls differently, a probe that does
not know its connector any more, is logged once, and that telling is over; the connector goes on as if untraced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from time import time_ns
from typing import Any, TypeVar

from connector.context import RequestContext
from connector.probes import Moved, Probe
from connector.recorder import Recorder
from tracer.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")

FLUSH_S = 1.0
"""How long a dying or ending engine waits for its last events to be sent."""
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
        self.sees_transfers = recorder is not None and self._probe.sees_transfers
        """Whether there is anything to tell of a worker's step."""

    def see(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """What the probe sees after a lookup: the matched tokens, and whether the answer was remembered."""
        try:
            return self._probe.lookup(connector, request)
        except Exception:
            self._blind()
            return None, None

    @_never_breaks
    def begun(self, request: Any) -> None:
        context = self._recorder.context(request)
        if not context.begun:
            context.begun = True
            self._tell(Kind.REQUEST_START, context, context.start_ns, (request.num_tokens,))

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

    def step(self, connector: Any, scheduler_output: Any, metadata: Any) -> None:
        """Preemptions, first steps after an admission or a resumption, and evictions of a scheduling step."""
        if self._recorder is None:
            return
        try:
            output = scheduler_output
            if output.preempted_req_ids or output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids:
                self._changes(output, metadata)
            if evicted := self._moved(self._probe.evictions, connector):
                at_ns = time_ns()
                for each in evicted:
                    self._tell(Kind.EVICT, None, at_ns, tuple(each))
        except Exception:
            self._give_up()

    @_never_breaks
    def completions(self, connector_output: Any) -> None:
        at_ns = time_ns()
        failed = getattr(connector_output, "failed_recving", None) or ()
        for request_id in connector_output.finished_recving or ():
            self._tell(Kind.RECEIVED, self._recorder.context_of_id(request_id), at_ns, (request_id in failed,))
        for request_id in connector_output.finished_sending or ():
            self._tell(Kind.SENT, self._recorder.context_of_id(request_id), at_ns, ())

    @_never_breaks
    def ended(self, request: Any, delayed: bool) -> None:
        context = self._recorder.context(request)
        if context.ended is None:  # another child of a MultiConnector may have told it
            outcome = request.status.name.removeprefix("FINISHED_").lower()
            values = (request.num_tokens, request.num_output_tokens, request.num_computed_tokens, outcome, delayed)
            self._tell(Kind.REQUEST, context, context.start_ns, values)
            self._recorder.end(context)

    @_never_breaks
    def reset(self, succeeded: bool | None) -> None:
        self._tell(Kind.RESET, None, time_ns(), (succeeded,))

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

    def _changes(self, output: Any, metadata: Any) -> None:
        at_ns = time_ns()
        for request_id in output.preempted_req_ids or ():
            self._tell(Kind.PREEMPT, self._known(request_id), at_ns, ())
        scheduled = output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            context = self._known(new.req_id)
            self._tell(
                Kind.SCHEDULE, context, at_ns, (new.num_computed_tokens, scheduled[new.req_id], context.epoch > 0)
            )
        running = output.scheduled_cached_reqs
        if running.resumed_req_ids:
            for request_id, computed in zip(running.req_ids, running.num_computed_tokens, strict=True):
                if request_id in running.resumed_req_ids:
                    self._tell(Kind.SCHEDULE, self._known(request_id), at_ns, (computed, scheduled[request_id], True))
        if output.scheduled_new_reqs:
            self._hand_over(output, metadata)

    @_never_breaks
    def _adopt(self, places: Mapping[str, tuple[bytes, bool]]) -> None:
        for request_id, place in places.items():
            self._recorder.adopt(request_id, *place)

    @_never_breaks
    def _transfers(self, kind: Kind, start_ns: int, moved: Sequence[Moved]) -> None:
        for request_id, *values in moved:
            self._tell(kind, self._recorder.context_of_id(request_id), start_ns, tuple(values))

    def _tell(self, kind: Kind, context: RequestContext | None, start_ns: int, values: tuple[Any, ...]) -> None:
        self._recorder.record(kind.value, self._source, context, start_ns, time_ns(), values)

    def _known(self, request_id: str) -> RequestContext:
        context: RequestContext = self._recorder.context_of_id(request_id)
        if context.request is not None:
            context.epoch = context.request.num_preemptions
        return context

    def _hand_over(self, scheduler_output: Any, metadata: Any) -> None:
        """Tell workers in other processes the traces of new requests that are a caller's; others they can derive."""
        contexts = (self._recorder.context_of_id(new.req_id) for new in scheduler_output.scheduled_new_reqs)
        places = {context.request_id: (context.root, context.sampled) for context in contexts if context.has_caller}
        if places:
            try:
                setattr(metadata, HANDED_OVER, places)
            except (AttributeError, TypeError):
                logger.debug("kvtrail: %s takes no note of callers' traces for its workers", type(metadata))

    def _moved(self, look: Callable[[Any], Sequence[Any]], connector: Any) -> Sequence[Any]:
        try:
            return look(connector)
        except Exception:
            self._blind()
            return []

    def _give_up(self) -> None:
        logger.exception("kvtrail: %s could not be told; nothing more is recorded of it", self._name)
        self._recorder = None

    def _blind(self) -> None:
        logger.exception(
            "kvtrail: the probe of %s failed and is switched off: what only it can see is absent from now on",
            self._name,
        )
        self._probe, self.sees_transfers = Probe(), False

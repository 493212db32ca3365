"""The hot path: an event is one tuple appended to a bounded ring; a thread hands tuples to where they become OTLP.

Nothing here ever blocks or breaks the caller. When the tracer is slow, hung or absent, the ring fills, the oldest events are
dropped and counted, and their sequence numbers are missing in the trace, so the tracer knows that it does not know.

One recorder serves a process: the scheduler's and the worker's connector of a single-process engine share it.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_SCHEDULE_DELAY,
    OTEL_SDK_DISABLED,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from kvtrail.connector.level import LevelSwitch
from kvtrail.connector.recording import exporter, transport
from kvtrail.connector.recording.context import Recorded, RequestContext, caller_of, root_ids
from kvtrail.connector.recording.environment import positive, resource_of
from kvtrail.connector.recording.ring import Ring
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")  # below vLLM's logger, so that its handlers print it

MAX_REQUESTS = 65_536
"""Requests remembered at once; the oldest is forgotten first, and begins a new trace if it comes back."""
MAX_ENDED = 4096
"""Ended requests remembered for what comes late."""
HAND_OVER = 2048
"""Events that leave the process at once, about half a millisecond's work. Each time, the caller's thread waits for this one
and finds its caches used, so many at once cost it less than few."""
HEARTBEAT_S = 5.0
COMPLAIN_EVERY_S = 60.0


class Recorder:
    """Records events and exports them. Create it with `of_process`; `record` and `context` are the hot path."""

    def __init__(self, engine_id: str, resource: dict[str, Any], out: exporter.Outlet) -> None:
        self.id = secrets.token_hex(8)
        self.engine_id = engine_id
        self.level = LevelSwitch()
        limit = positive(OTEL_BSP_MAX_QUEUE_SIZE, 65_536)
        self._ring = Ring(limit)
        self._append, self._numbers = self._ring.waiting.append, self._ring.numbers
        self._many = 1 << max(1, min(HAND_OVER, limit // 2)).bit_length() - 1  # a power of two
        self._bits_of_many = self._many - 1
        """The thread is woken at each event whose number has none of these bits."""
        self._delay_s = positive(OTEL_BSP_SCHEDULE_DELAY, 500) / 1000
        own = {"process.pid": os.getpid(), semconv.RECORDER_ID.key: self.id, semconv.ENGINE_ID.key: engine_id}
        provider = TracerProvider(resource=resource_of({**own, **resource}), shutdown_on_exit=False)
        self._sampler = provider.sampler
        self._samples_all = self._sampler is DEFAULT_ON
        """Whether a request without a caller's trace need not ask the sampler, which takes as long as all the rest."""
        self._outlet = out
        out.open(provider.resource.attributes, secrets.randbits(63))
        self._given_up = self._sent = 0
        self._requests: dict[str, RequestContext] = {}
        self._ended: OrderedDict[str, RequestContext] = OrderedDict()
        self._no_request = RequestContext("", start_ns=0, root=root_ids(engine_id, self.id), parent=None, sampled=True)
        self._wake = threading.Event()
        self._flushed = threading.Condition()
        self._tickets = self._last_ticket = 0
        self._closing = False
        self._complained_s = float("-inf")
        self._beat_s = float("-inf")
        self._said_goodbye = False
        self._thread = threading.Thread(target=self._run, name=transport.THREAD_NAME, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def context(self, request: Any) -> RequestContext:
        """The context of one of vLLM's requests, on the scheduler's side, brought to its current epoch."""
        context = self._requests.get(request.request_id)
        if context is None or context.request is not request:
            context = self._meet(request)
        context.epoch = request.num_preemptions
        return context

    def context_of_id(self, request_id: str) -> RequestContext:
        """The context of a request of which only the id is known, brought to its current epoch on the scheduler's side."""
        context = self._requests.get(request_id) or self._ended.get(request_id) or self._open(request_id, None)
        if context.request is not None:
            context.epoch = context.request.num_preemptions
        return context

    def adopt(self, request_id: str, root: bytes, sampled: bool) -> None:
        """Take over a request's place in its caller's trace, as another process has decided it."""
        if request_id not in self._requests:
            context = RequestContext(request_id, start_ns=time.time_ns(), root=root, parent=None, sampled=sampled)
            self._remember(context)

    def end(self, context: RequestContext) -> None:
        """The request has ended. Its context is kept for a while: what comes late goes on with its numbers, and so does a
        request that uses the id again, so that the tracer can tell the two apart."""
        if self._requests.pop(context.request_id, None) is not None:
            context.ended, context.request = _reference(context.request), None
            self._ended[context.request_id] = context
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def record(
        self,
        kind: str,
        source: bytes,
        context: RequestContext | None,
        start_ns: int,
        end_ns: int,
        values: tuple[Any, ...],
        error: str | None = None,
    ) -> None:
        """Record one event; `values` are those of `semconv.FIELDS[kind]`, in that order. Never blocks, never raises."""
        if context is None:
            context = self._no_request
        elif not context.sampled:
            return
        sequence, number, append = next(self._numbers), next(context.sequence), self._append
        append((kind, source, context.identity, sequence, number, context.epoch, start_ns, end_ns, error, values))
        if not sequence & self._bits_of_many:
            self._wake.set()

    def record_call(
        self, kind: str, source: bytes, request: Any, start_ns: int, end_ns: int, values: tuple[Any, ...]
    ) -> None:
        """`record` with `context`, in one for the most frequent of all calls: `request` is vLLM's."""
        context = self._requests.get(request.request_id)
        if context is None or context.request is not request:
            context = self._meet(request)
        epoch = context.epoch = request.num_preemptions
        if context.sampled:
            sequence, number, append = next(self._numbers), next(context.sequence), self._append
            append((kind, source, context.identity, sequence, number, epoch, start_ns, end_ns, None, values))
            if not sequence & self._bits_of_many:
                self._wake.set()

    def lose(self) -> None:
        """Something could not be told, and nobody knows of which request: a number is missing from now on, in the recorder's
        events and in those of every open request, so that the tracer knows that it does not know."""
        self._ring.skip()
        for context in self.open_contexts():
            next(context.sequence)

    @property
    def dropped(self) -> int:
        """Events lost so far: dropped by a full ring, or given up after a failed export."""
        return self._given_up + self._ring.dropped

    def open_contexts(self) -> list[RequestContext]:
        """The requests that have not ended."""
        return list(self._requests.values())

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything recorded so far has been sent; False when the time was not enough."""
        with self._flushed:
            self._last_ticket += 1
            ticket = self._last_ticket
            self._wake.set()
            return self._flushed.wait_for(lambda: self._tickets >= ticket, timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is left, for `timeout_s` at most, and stop. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._outlet.close()  # what hangs in it is given up
        self._thread.join(timeout_s / 4)
        atexit.unregister(self.close)

    def _meet(self, request: Any) -> RequestContext:
        """A request object that has no open context: a new one, one that a worker named first, or one that has ended and
        is spoken of by another child of a MultiConnector."""
        held, ended = self._requests.get(request.request_id), self._ended.get(request.request_id)
        if held is not None and held.request is None:
            held.request = request
            return held
        if ended is not None and ended.ended is not None and ended.ended() is request:
            return ended
        context = self._open(request.request_id, request, incarnation=0 if ended is None else ended.incarnation + 1)
        if ended is not None:
            context.sequence = ended.sequence
        return context

    def _open(self, request_id: str, request: Any, *, incarnation: int = 0) -> RequestContext:
        parent = caller_of(getattr(request, "trace_headers", None))
        root = root_ids(self.engine_id, request_id, incarnation)
        if parent is not None:
            root = parent.trace_id.to_bytes(16, "big") + root[16:]
        sampled = (self._samples_all and parent is None) or self._is_sampled(root, parent)
        context = RequestContext(request_id, start_ns=time.time_ns(), root=root, parent=parent, sampled=sampled)
        context.request, context.incarnation = request, incarnation
        self._remember(context)
        return context

    def _is_sampled(self, root: bytes, parent: SpanContext | None) -> bool:
        carrier = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
        sampled = self._sampler.should_sample(carrier, int.from_bytes(root[:16], "big"), Kind.REQUEST)
        return sampled.decision is Decision.RECORD_AND_SAMPLE

    def _remember(self, context: RequestContext) -> None:
        if len(self._requests) >= MAX_REQUESTS:
            del self._requests[next(iter(self._requests))]
        self._requests[context.request_id] = context

    # Everything below runs on the recorder's own thread.

    def _run(self) -> None:
        unsent: list[Recorded] = []
        while True:
            self._wake.wait(self._delay_s)
            self._wake.clear()
            closing, ticket = self._closing, self._last_ticket  # read first: what came before them is in the ring
            sent, least = True, 1
            while sent and (
                unsent or (unsent := self._ring.take(HAND_OVER, least=least)) or (unsent := self._beat(closing))
            ):
                sent = self._send(unsent)
                if sent:
                    unsent = []
                    least = 1 if closing or ticket != self._tickets else self._many  # a few may wait for more
            if sent:
                with self._flushed:
                    self._tickets = ticket
                    self._flushed.notify_all()
            elif closing:
                self._given_up += len(unsent) + len(self._ring.take(len(self._ring.waiting)))
            elif self._ring.is_full:
                self._given_up += len(unsent)  # perhaps it is these that nobody takes: let others try
                unsent = []
            if closing:
                return

    def _send(self, events: list[Recorded]) -> bool:
        try:
            sent = self._outlet.send(events)
        except Exception:
            logger.exception("kvtrail: %d events could not be encoded and are lost", len(events))
            self._given_up += len(events)
            return True
        self._sent += len(events) if sent else 0
        now = time.monotonic()
        if not sent and now - self._complained_s > COMPLAIN_EVERY_S:
            self._complained_s = now
            logger.warning(
                "kvtrail: no tracer answers at %s; %d events wait, %d were dropped. The engine goes on undisturbed."
                " Start one with `kvtrail serve`, or point OTEL_EXPORTER_OTLP_ENDPOINT at it.",
                self._outlet.endpoint,
                len(self._ring.waiting) + len(events),
                self.dropped,
            )
        return sent

    def _beat(self, closing: bool) -> list[Recorded]:
        """A sign of life, if it is time for one."""
        now = time.monotonic()
        if now - self._beat_s < (0.0 if closing and not self._said_goodbye else HEARTBEAT_S):
            return []
        self._beat_s, self._said_goodbye = now, closing
        self.level.read()
        at_ns, dropped = time.time_ns(), self.dropped
        self.record(Kind.HEARTBEAT.value, b"", None, at_ns, at_ns, (self._sent + dropped, dropped, closing))
        return self._ring.take(HAND_OVER)


def _reference(request: Any) -> Callable[[], Any] | None:
    return None if request is None else weakref.ref(request)


_recorders: dict[tuple[int, str], Recorder | None] = {}
_lock = threading.Lock()
_make_outlet: Callable[[], exporter.Outlet] | None = None
"""What `handing_to` asked for; None is what the environment says."""


def of_process(engine_id: str, resource: dict[str, Any]) -> Recorder | None:
    """The recorder of this engine in this process, made at the first call; None when `OTEL_SDK_DISABLED` is true.

    Raises:
        ValueError, ImportError: the OTLP variables ask for what there is not; see `exporter.from_environment`.
    """
    key = (os.getpid(), engine_id)
    with _lock:
        if key not in _recorders:
            if _make_outlet is None and os.environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
                _recorders[key] = None
            else:
                out = exporter.from_environment() if _make_outlet is None else _make_outlet()
                _recorders[key] = Recorder(engine_id, resource, out)
        return _recorders[key]


@contextmanager
def handing_to(make_outlet: Callable[[], exporter.Outlet]) -> Iterator[None]:
    """Recorders that are made inside hand what they hold to outlets of this making, whatever the environment says, and are
    closed at the end. For runs that are their own tracer; not for two at a time."""
    global _make_outlet, _recorders
    before = _make_outlet, _recorders
    _make_outlet, _recorders = make_outlet, {}
    try:
        yield
    finally:
        for each in recorders():
            each.close()
        _make_outlet, _recorders = before


def recorders() -> list[Recorder]:
    """The recorders of this process, for those who want to flush them or to read their losses."""
    return [recorder for (pid, _), recorder in _recorders.items() if recorder is not None and pid == os.getpid()]

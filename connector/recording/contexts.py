"""The recorder's state of requests: the trace context of each request, and how much of the request has been recorded."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Decision, Sampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvtrail.connector.recording.ring import Identity
from kvtrail.tracer.events import ids, semconv
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.semconv import Kind

try:
    from opentelemetry.propagate import extract
except Exception:  # `OTEL_PROPAGATORS` names a propagator that is not installed; then the module cannot be imported
    extract = TraceContextTextMapPropagator().extract

MAX_REQUESTS = 65_536
"""Maximum number of remembered open requests. The oldest is forgotten first; if it continues, it starts a new trace."""
MAX_ENDED = 4096
"""Maximum number of ended requests remembered for late events."""


NAMED_BY_ROUTER = ("transfer_id", "kv_request_id")
"""Parameters by which a router names a hand-off to both engines."""
NAMED_BY_GIVER = "remote_request_id"
"""The parameter by which the engine that prefills names it."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """A request's trace context, and how much of the request has been recorded.

    Attributes:
        request_id: the engine's id; empty in the context of events without a request.
        name: the request's name outside of the engine: its id, shortened if it is too long, or a hash of it.
        root: 16 bytes of trace id and 8 of the root span's id.
        caller: the id of the caller's span, or empty.
        sampled: False if OpenTelemetry's sampler did not choose the request.
        recorded: whether its events are recorded.
        has_caller: whether the root is part of a trace that only the request itself names: a caller's or a hand-off's.
        request: vLLM's request object on the scheduler's side, else None.
        incarnation: number of earlier requests with the same id.
        start_ns: when it was first seen, by the monotonic clock.
        blocks: the blocks of its last allocation, in vLLM's form, while it is not preempted.
        cached: number of its prompt's tokens that were not computed at its first admission, once known.
        source: the encoded source of its recorded start, None before; several connectors may report it.
        hashed: number of its recorded block hashes.
        ended: after the request has ended, a weak reference to vLLM's object.
        epoch: the preemption epoch at the last call.
        detailed: whether the epoch `detailed_epoch` is recorded in detail; decided once in each epoch, since half a block
            table would be worse than none.
        table_ns: when its whole block table was last recorded, by the monotonic clock.
        sequence: counts the request's events.
        identity: the fields that all spans of this request share.
    """

    request_id: str
    name: str
    root: bytes
    caller: bytes = b""
    sampled: bool = True
    recorded: bool = True
    has_caller: bool = False
    request: Any = None
    incarnation: int = 0
    start_ns: int = field(default_factory=time.monotonic_ns)
    blocks: Any = None
    cached: int | None = None
    source: bytes | None = None
    hashed: int = 0
    ended: Callable[[], Any] | None = None
    epoch: int = 0
    detailed: bool = False
    detailed_epoch: int = -1
    table_ns: int = 0
    sequence: count[int] = field(default_factory=count)
    identity: Identity = field(init=False)

    def __post_init__(self) -> None:
        self.identity = (self.root, self.caller, self.name, self.sampled)

    def redacted(self, error: str) -> str:
        """The text of an error without the request's ids, if ids are hashed."""
        if self.name == self.request_id:
            return error
        error = error.replace(self.request_id, self.name)
        return error.replace(semconv.external_id(self.request_id), semconv.external_id(self.name))

    @property
    def events(self) -> int:
        """The number of the request's events so far."""
        return int(repr(self.sequence)[len("count(") : -1])  # only this reads the number without incrementing it


class Contexts:
    """The requests of one recorder, open and recently ended.

    Attributes:
        open: the open requests, by id.
        invites: whether vLLM's own spans are added to the trace of a request without a caller's trace.
        any_callers: whether any request was in a trace that workers in other processes cannot derive.
        delayed: ended requests that still hold their blocks, by id.
        name_of: maps a request id, or a shortened one, to the request's name outside of the engine.
    """

    def __init__(
        self,
        engine_id: str,
        sampler: Sampler,
        *,
        launch: str = "",
        sampled_only: bool = False,
        name_of: Callable[[str], str] = ids.bounded,
    ) -> None:
        """
        Args:
            name_of: maps a request id, or a shortened one, to its name. By default the name is the id, shortened if it is
                too long.
            launch: the engine's launch, the same in all of its processes.
            sampled_only: whether unsampled requests are not recorded.
        """
        self.open: dict[str, RequestContext] = {}
        self.invites = self.any_callers = False
        self.delayed: dict[str, RequestContext] = {}
        self._ended: BoundedDict[str, RequestContext] = BoundedDict(MAX_ENDED)
        self._engine_id, self._launch = engine_id, launch
        self._sampler, self.name_of = sampler, name_of
        self._sampled_only = sampled_only

    def of(self, request: Any) -> RequestContext:
        """The context of one of vLLM's requests, on the scheduler's side, updated to its current epoch."""
        context = self.open.get(request.request_id)
        if context is None or context.request is not request:
            context = self._meet(request)
        context.epoch = request.num_preemptions
        return context

    def of_id(self, request_id: str) -> RequestContext:
        """The context of a request by its id, updated to its current epoch on the scheduler's side."""
        context = self.named(request_id)
        if context.request is not None:
            context.epoch = context.request.num_preemptions
        return context

    def named(self, request_id: str) -> RequestContext:
        """The context of a request by its id, without an update of the epoch."""
        return self.open.get(request_id) or self._ended.get(ids.bounded(request_id)) or self._create(request_id, None)

    def release(self, request_id: str) -> None:
        """Note that the blocks of an ended request are freed."""
        self.delayed.pop(ids.bounded(request_id), None)

    def adopt(self, request_id: str, root: bytes, sampled: bool) -> None:
        """Accept a request's context in its caller's trace, which another process has decided. A worker in the scheduler's
        process may report it for an ended request: late events continue its numbers."""
        if request_id not in self.open and ids.bounded(request_id) not in self._ended:
            self._remember(RequestContext(request_id, self.name_of(request_id), root, sampled=sampled))

    def end(self, context: RequestContext, *, delayed: bool = False) -> None:
        """Close a request; its blocks may be freed later (`delayed`). Its context is kept for a while: late events continue
        its numbers, and so does a request that reuses the id, so that the tracer can distinguish the two."""
        if self.open.pop(context.request_id, None) is not None:
            context.ended = _weakly(context.request)
            context.request = None
            context.request_id = ids.bounded(context.request_id)  # it may take a megabyte, and vLLM frees it now
            self._ended[context.request_id] = context
            if delayed:
                self.delayed[context.request_id] = context
                if len(self.delayed) > MAX_ENDED:
                    del self.delayed[next(iter(self.delayed))]

    def redacted(self, error: str) -> str:
        """The text of an error without the ids of any request, if ids are hashed."""
        for context in [*self.open.values(), *self._ended.values()]:
            error = context.redacted(error)
        return error

    def begun(self) -> list[RequestContext]:
        """The open requests with a recorded start. Not called on the scheduler's thread."""
        contexts = list(self.open.values())  # a copy in one go
        return [context for context in contexts if context.source is not None and context.recorded]

    def events(self) -> dict[str, int]:
        """The number of events of each recorded request that is open or still holds its blocks. Not called on the scheduler's
        thread, which continues in the meantime."""
        contexts = {**self.delayed, **self.open}  # a copy in one go
        return {context.name: context.events for context in contexts.values() if context.recorded}

    def _meet(self, request: Any) -> RequestContext:
        """The context of a request object without an open context: it is new, or a worker named it first, or it has ended and
        another child of a MultiConnector still reports it."""
        named, ended = self.open.get(request.request_id), self._ended.get(ids.bounded(request.request_id))
        if named is not None and named.request is None:
            named.request = request
            return named
        if ended is not None and ended.ended is not None and ended.ended() is request:
            return ended
        context = self._create(request.request_id, request, incarnation=0 if ended is None else ended.incarnation + 1)
        if ended is not None:
            context.sequence = ended.sequence
        return context

    def _create(self, request_id: str, request: Any, incarnation: int = 0) -> RequestContext:
        headers = getattr(request, "trace_headers", None)
        parent = caller_of(headers)
        name = self.name_of(request_id)
        root = root_ids(self._engine_id, name, incarnation, self._launch)
        if parent is not None and parent.span_id.to_bytes(8, "big") == root[16:]:
            parent = (
                None  # the trace is kvtrail's own: the request was forgotten because there were too many, and continues
            )
        shared = None
        if parent is not None:
            root = parent.trace_id.to_bytes(16, "big") + root[16:]
        elif (shared := handoff_of(request, self._engine_id, self.name_of)) is not None:
            root = trace_of(shared) + root[16:]
        sampled = self._is_sampled(root, parent)
        if self.invites and request is not None and not headers:
            request.trace_headers = {"traceparent": _traceparent(root, sampled)}
        context = RequestContext(
            request_id,
            name,
            root,
            b"" if parent is None else parent.span_id.to_bytes(8, "big"),
            sampled,
            sampled or not self._sampled_only,
            parent is not None or shared is not None,
            request,
            incarnation,
        )
        self.any_callers = self.any_callers or context.has_caller
        self._remember(context)
        return context

    def _is_sampled(self, root: bytes, parent: SpanContext | None) -> bool:
        if parent is None and self._sampler is DEFAULT_ON:
            return True  # this call takes as long as the rest of a new request's recording
        caller = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
        sampled = self._sampler.should_sample(caller, int.from_bytes(root[:16], "big"), Kind.REQUEST)
        return sampled.decision is Decision.RECORD_AND_SAMPLE

    def _remember(self, context: RequestContext) -> None:
        if len(self.open) >= MAX_REQUESTS:
            del self.open[next(iter(self.open))]
        self.open[context.request_id] = context


def _traceparent(root: bytes, sampled: bool) -> str:
    """The root as the parent of spans elsewhere: https://www.w3.org/TR/trace-context/#traceparent-header."""
    return f"00-{root[:16].hex()}-{root[16:].hex()}-{int(sampled):02x}"


def _weakly(request: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(request)
    except TypeError:  # there is none, or none that can be referred to
        return lambda: None


def root_ids(engine_id: str, request_id: str, incarnation: int = 0, launch: str = "") -> bytes:
    """16 bytes of trace id and 8 of the root's span id, the same in every process of an engine.

    `incarnation` distinguishes consecutive requests with the same id; workers only know the first. `launch` does so if an
    engine with a fixed id is restarted.
    """
    again = f"\0{incarnation}" if incarnation else ""
    since = f"\0\0{launch}" if launch else ""
    named = f"{engine_id}\0{request_id}{again}{since}"
    return hashlib.blake2b(named.encode("utf-8", "surrogatepass"), digest_size=24).digest()


def handoff_of(request: Any, engine_id: str, name_of: Callable[[str], str]) -> str | None:
    """The common name of a new request's hand-off on both engines: the first of `kvtrail.handoff.keys` that both know then;
    None without a hand-off. The prefill engine is later asked for the request by its own id."""
    asked = getattr(request, "kv_transfer_params", None)
    if not isinstance(asked, Mapping) or not (asked.get("do_remote_decode") or asked.get("do_remote_prefill")):
        return None
    for key in NAMED_BY_ROUTER:
        if asked.get(key):
            return f"{key}:{name_of(str(asked[key]))}"
    if asked.get("do_remote_prefill"):
        giver, id_ = asked.get("remote_engine_id"), asked.get("remote_request_id")
        return None if giver is None or id_ is None else f"{NAMED_BY_GIVER}:{giver}/{name_of(str(id_))}"
    return f"{NAMED_BY_GIVER}:{engine_id}/{name_of(request.request_id)}"


def trace_of(handoff: str) -> bytes:
    """The trace id that both engines use for the requests of a hand-off without a caller's trace."""
    return hashlib.blake2b(handoff.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def caller_of(trace_headers: Mapping[str, str] | None) -> SpanContext | None:
    """The caller's span, from the trace headers that vLLM passes on; None without a valid one."""
    if not trace_headers:
        return None
    try:
        span = get_current_span(extract(trace_headers)).get_span_context()
    except Exception:  # invalid headers
        return None
    return span if span.is_valid else None

"""Requests as the recorder knows them: each one's place in its trace, and how far it has been recorded."""

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
except Exception:  # `OTEL_PROPAGATORS` names one that is not installed, and then the module cannot be imported
    extract = TraceContextTextMapPropagator().extract

MAX_REQUESTS = 65_536
"""Open requests remembered at once. The oldest is forgotten first, and starts a new trace if it comes back."""
MAX_ENDED = 4096
"""Ended requests remembered for events that come late."""


NAMED_BY_ROUTER = ("transfer_id", "kv_request_id")
"""Parameters by which a router names a hand-off to both engines."""
NAMED_BY_GIVER = "remote_request_id"
"""The parameter by which the engine that prefills names it."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """A request's place in its trace, and how far it has been recorded.

    Attributes:
        request_id: the engine's id; empty in the context of events that concern no request.
        name: what the request is called outside of the engine: its id, shortened if it is too long, or a hash of it.
        root: 16 bytes of trace id and 8 of the root span's id.
        caller: the id of the caller's span, or nothing.
        sampled: False when OpenTelemetry's sampler left the request out.
        recorded: whether its events are recorded.
        has_caller: whether the root is part of a trace that only the request itself names: a caller's, or that of a hand-off.
        request: vLLM's request object on the scheduler's side, else None.
        incarnation: how often the id had been used before.
        start_ns: when it was first seen, by the monotonic clock.
        blocks: the blocks of its last allocation, as vLLM handed them over, while it is not preempted.
        cached: tokens of its prompt that were not computed at its first admission, once that is known.
        source: the encoded source of its recorded start, None before; several connectors may report it.
        hashed: how many of its block hashes have been recorded.
        ended: once the request has ended, a weak reference to vLLM's object.
        epoch: the preemption epoch, as of the last call.
        detailed: whether the epoch `detailed_epoch` is recorded in detail; decided once in each epoch, since half a block
            table would be worse than none.
        table_ns: when its whole block table was last recorded, by the monotonic clock.
        sequence: counts the request's events.
        identity: what the spans of this request share.
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
        """The text of an error without the request's ids, where these are hashed."""
        if self.name == self.request_id:
            return error
        error = error.replace(self.request_id, self.name)
        return error.replace(semconv.external_id(self.request_id), semconv.external_id(self.name))

    @property
    def events(self) -> int:
        """How many events of the request there were."""
        return int(repr(self.sequence)[len("count(") : -1])  # nothing else reads the number without taking it


class Contexts:
    """The requests of one recorder, open and recently ended.

    Attributes:
        open: the requests that have not ended, by id.
        invites: whether vLLM's own spans are asked into the trace of a request that nobody called with one.
        any_callers: whether any request has been in a trace that workers in other processes cannot derive.
        delayed: those that have ended and still hold their blocks, by id.
    """

    def __init__(
        self,
        engine_id: str,
        sampler: Sampler,
        *,
        launch: str = "",
        sampled_only: bool = False,
        name: Callable[[str], str] | None = None,
    ) -> None:
        """
        Args:
            name: gives a request its name by its id; None if the id is the name, shortened if it is too long.
            launch: the engine's, the same in all of its processes.
            sampled_only: requests that the sampler leaves out are not recorded.
        """
        self.open: dict[str, RequestContext] = {}
        self.invites = self.any_callers = False
        self.delayed: dict[str, RequestContext] = {}
        self._ended: BoundedDict[str, RequestContext] = BoundedDict(MAX_ENDED)
        self._engine_id, self._launch = engine_id, launch
        self._sampler, self._name = sampler, name or ids.bounded
        self._sampled_only = sampled_only

    def of(self, request: Any) -> RequestContext:
        """The context of one of vLLM's requests, on the scheduler's side, brought to its current epoch."""
        context = self.open.get(request.request_id)
        if context is None or context.request is not request:
            context = self._meet(request)
        context.epoch = request.num_preemptions
        return context

    def of_id(self, request_id: str) -> RequestContext:
        """The context of a request with only its id known, brought to its current epoch on the scheduler's side."""
        context = self.named(request_id)
        if context.request is not None:
            context.epoch = context.request.num_preemptions
        return context

    def named(self, request_id: str) -> RequestContext:
        """The context of a request with only its id known, at the epoch that it had."""
        return self.open.get(request_id) or self._ended.get(ids.bounded(request_id)) or self._create(request_id, None)

    def name_of(self, request_id: str) -> str:
        """What the request is called outside of the engine; the id may be the shortened one."""
        return self._name(request_id)

    def release(self, request_id: str) -> None:
        """The blocks of a request that has ended are freed now."""
        self.delayed.pop(ids.bounded(request_id), None)

    def adopt(self, request_id: str, root: bytes, sampled: bool) -> None:
        """Accept a request's place in its caller's trace, as another process has decided it. A worker in the scheduler's own
        process may say so of a request that has ended: late events continue its numbers."""
        if request_id not in self.open and ids.bounded(request_id) not in self._ended:
            self._remember(RequestContext(request_id, self._name(request_id), root, sampled=sampled))

    def end(self, context: RequestContext, *, delayed: bool = False) -> None:
        """Close a request; the freeing of its blocks may be `delayed`. Its context stays for a while: late events continue
        its numbers, and so does a request that uses the id again, so that the tracer can distinguish the two."""
        if self.open.pop(context.request_id, None) is not None:
            context.ended = _weakly(context.request)
            context.request = None
            context.request_id = ids.bounded(context.request_id)  # it may be a megabyte, and vLLM gives it back now
            self._ended[context.request_id] = context
            if delayed:
                self.delayed[context.request_id] = context
                if len(self.delayed) > MAX_ENDED:
                    del self.delayed[next(iter(self.delayed))]

    def redacted(self, error: str) -> str:
        """The text of an error without the ids of any request, where these are hashed."""
        for context in [*self.open.values(), *self._ended.values()]:
            error = context.redacted(error)
        return error

    def begun(self) -> list[RequestContext]:
        """The open requests with a recorded start. Asked by another thread than the scheduler's."""
        contexts = list(self.open.values())  # a copy in one go
        return [context for context in contexts if context.source is not None and context.recorded]

    def events(self) -> dict[str, int]:
        """How many events there were of each recorded request that is open or still holds its blocks. Asked by another thread
        than the scheduler's, which goes on."""
        contexts = {**self.delayed, **self.open}  # a copy in one go
        return {context.name: context.events for context in contexts.values() if context.recorded}

    def _meet(self, request: Any) -> RequestContext:
        """The context of a request object that has none open: it is new, or a worker named it first, or it has ended and
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
        name = self._name(request_id)
        root = root_ids(self._engine_id, name, incarnation, self._launch)
        if parent is not None and parent.span_id.to_bytes(8, "big") == root[16:]:
            parent = None  # we have invited ourselves: the request was forgotten among too many, and comes back
        shared = None
        if parent is not None:
            root = parent.trace_id.to_bytes(16, "big") + root[16:]
        elif (shared := handoff_of(request, self._engine_id, self._name)) is not None:
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
            return True  # asking it takes as long as everything else about a new request
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

    `incarnation` distinguishes requests that use the same id, one after the other; workers only know the first. `launch` does
    so where an engine with a fixed id is restarted.
    """
    again = f"\0{incarnation}" if incarnation else ""
    since = f"\0\0{launch}" if launch else ""
    named = f"{engine_id}\0{request_id}{again}{since}"
    return hashlib.blake2b(named.encode("utf-8", "surrogatepass"), digest_size=24).digest()


def handoff_of(request: Any, engine_id: str, name_of: Callable[[str], str]) -> str | None:
    """What both engines call the hand-off of a request as it begins, the first of `kvtrail.handoff.keys` that both know then;
    None if it is not handed over. The engine that prefills will be asked for the request by its own id of it."""
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
    """The trace id that both engines give the requests of a hand-off, where no caller gives one."""
    return hashlib.blake2b(handoff.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def caller_of(trace_headers: Mapping[str, str] | None) -> SpanContext | None:
    """The caller's span, from the trace headers that vLLM passes on; None if there is none, or no valid one."""
    if not trace_headers:
        return None
    try:
        span = get_current_span(extract(trace_headers)).get_span_context()
    except Exception:  # headers that are no headers
        return None
    return span if span.is_valid else None

"""What the recorder keeps of a request, and what it keeps of a call: the data between the hot path and the encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import count
from operator import itemgetter
from typing import Any

from opentelemetry.propagate import extract
from opentelemetry.trace import SpanContext, get_current_span


class RequestContext:
    """A request's place in its trace, and what has been told of it.

    Attributes:
        request_id: the engine's id; empty in the context of events that concern no request.
        request: vLLM's request object on the scheduler's side, else None.
        hashed: how many of its block hashes have been told.
        begun: whether the request's start has been told; several connectors may hear of it.
        ended: once the request has ended, a weak reference to vLLM's object.
        incarnation: how often the id had been used before.
        epoch: the preemption epoch, as of the last call.
        detailed: whether the epoch `detailed_epoch` is recorded in detail; decided once in each epoch, since half a block
            table would be worse than none.
        sequence: counts the request's events.
        sampled: False when OpenTelemetry's sampler left the request out.
        root: 16 bytes of trace id and 8 of the root span's id.
        has_caller: whether the root is part of a caller's trace.
        identity: who the spans of this request are about.
    """

    __slots__ = (
        "begun", "detailed", "detailed_epoch", "ended", "epoch", "has_caller", "hashed", "identity", "incarnation",
        "request", "request_id", "root", "sampled", "sequence", "start_ns",
    )  # fmt: skip

    def __init__(
        self, request_id: str, *, start_ns: int, root: bytes, parent: SpanContext | None, sampled: bool
    ) -> None:
        self.request_id = request_id
        self.request: Any = None
        self.begun = False
        self.hashed = 0
        self.ended: Callable[[], Any] | None = None
        self.incarnation = 0
        self.start_ns = start_ns
        self.sampled = sampled
        self.epoch = 0
        self.detailed = False
        self.detailed_epoch = -1
        self.sequence = count()
        self.root = root
        self.has_caller = parent is not None
        self.identity: Identity = (root, b"" if parent is None else parent.span_id.to_bytes(8, "big"), request_id)


Identity = tuple[bytes, bytes, str]
"""What the spans of a request share: 16 bytes of trace id and 8 of the root span's id, the id of the caller's span if there
is one, and the request's id."""
Recorded = tuple[str, bytes, Identity, int, int, int, int, int, str | None, tuple[Any, ...]]
"""kind, encoded source, request, recorder's and request's sequence number, epoch, start and end in Unix nanoseconds,
error, and the values of `semconv.FIELDS[kind]`. Nothing but what `marshal` knows, so that it can leave the process."""

number_of = itemgetter(3)
"""An event's number among its recorder's."""


def root_ids(engine_id: str, request_id: str, incarnation: int = 0) -> bytes:
    """16 bytes of trace id and 8 of the root's span id, the same in every process of an engine.

    `incarnation` tells requests apart that use the same id, one after the other; workers only know of the first.
    """
    again = f"\0{incarnation}" if incarnation else ""
    return hashlib.blake2b(f"{engine_id}\0{request_id}{again}".encode(), digest_size=24).digest()


def caller_of(trace_headers: Mapping[str, str] | None) -> SpanContext | None:
    """The caller's span, as vLLM hands on its trace headers; None where there is none, or none that is valid."""
    if not trace_headers:
        return None
    span = get_current_span(extract(trace_headers)).get_span_context()
    return span if span.is_valid else None

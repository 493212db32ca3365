"""One request on its way: what is held of it, and whether it matters."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from kvtrail.tracer.events.events import (
    CutOff,
    Event,
    LoadError,
    Preempt,
    Received,
    RequestEnd,
    RequestStart,
    Schedule,
    TransferEnd,
)
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.serve.forward.figures import Reason
from kvtrail.tracer.serve.forward.pieces import Piece, Whose

STATE_BYTES = 700
"""What a request takes in memory beside the spans that are held of it."""
ROOTS = frozenset({RequestEnd, CutOff})
"""The events whose span is the root of a request."""
_FAILURES, _MAY_FAIL = frozenset({LoadError, CutOff}), frozenset({Received, TransferEnd})
_QUEUED, _SERVED = frozenset({RequestStart, Preempt}), ROOTS | {Schedule}
"""After the former a request waits to run, and with the latter it does not any more."""
_ERROR = "error"
_RATIO = 2**64


def is_sampled(trace_id: bytes, share: float) -> bool:
    """Whether a trace is among the share that is forwarded in any case: as OpenTelemetry's `TraceIdRatioBased` decides, so
    that everybody who asks gets the same answer."""
    return int.from_bytes(trace_id[-8:], "big") < round(share * _RATIO)


def went_wrong(event: Event) -> bool:
    """Whether a call failed, or a load, or the request itself."""
    kind = type(event)
    return (
        event.error is not None
        or kind in _FAILURES
        or (kind in _MAY_FAIL and event.failed)  # type: ignore[attr-defined]
        or (kind is RequestEnd and event.outcome == _ERROR)  # type: ignore[attr-defined]
    )


class Request(Struct, eq=False, gc=False):
    """A request that has not been decided, or has been and may still get spans.

    Attributes:
        since_s: when it was first seen.
        reason: why it is forwarded; None while there is no reason.
        held: its spans but for the root, while it is undecided.
        held_bytes: what they and the root take in memory.
        root: its root, from its end on, until all has come that belongs to it.
        findings: by id.
        is_shed: there was no room or time to hold its spans.
        trace_id: in hex, as the scheduler has it: a worker may not know the caller's.
        root_id: the id of its root, as far as it is known: its spans name it as their parent.
        whose: whose its spans are.
        waits_ns: since when it has been waiting to run.
    """

    key: tuple[str, str]
    since_s: float
    reason: Reason | None = None
    held: list[Piece] = field(default_factory=list)
    held_bytes: int = 0
    root: Piece | None = None
    findings: dict[str, Finding] = field(default_factory=dict)
    is_shed: bool = False
    trace_id: str = ""
    root_id: bytes = b""
    whose: Whose | None = None
    waits_ns: int | None = None

    def place(self, event: Event, span: Any, whose: Whose) -> None:
        """Learn from one of its spans where it belongs."""
        kind = type(event)
        if kind in ROOTS or kind is RequestStart or not self.trace_id:
            self.trace_id, self.whose = event.trace_id, whose
            self.root_id = span.span_id if kind in ROOTS else span.parent_span_id

    def waited_ns(self, event: Event) -> int:
        """How long it waited for what just happened: to run, after it came or was preempted; or for a call or a copy."""
        kind = type(event)
        if kind in _SERVED:
            since_ns, self.waits_ns = self.waits_ns, None
            return 0 if since_ns is None else event.end_ns - since_ns
        if kind in _QUEUED:
            self.waits_ns = event.start_ns
            return 0
        return event.end_ns - event.start_ns

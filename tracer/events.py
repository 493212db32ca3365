"""Typed events, and how a span becomes one.

An event is a kvtrail span read back: who recorded it, when, about which request, and the numbers of its kind. A field
that the recorder could not know is None. Foreign spans (vLLM's `llm_request`, a gateway's) are no events; they are
stored and shown beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tracer import semconv
from tracer.semconv import Kind
from tracer.spans import LATEST_NS, Span


@dataclass(slots=True, kw_only=True)
class Event:
    """What all events share. Times are Unix nanoseconds; `sequence` counts the recorder's events from 0, and
    `request_sequence` those of them that concern this request."""

    kind: ClassVar[Kind]

    engine: str
    recorder: str
    sequence: int
    connector: str
    connector_id: str = ""
    role: str
    rank: int
    start_ns: int
    end_ns: int
    span_id: str = ""
    trace_id: str = ""
    request: str | None = None
    external: str | None = None
    request_sequence: int = 0
    epoch: int = 0
    error: str | None = None
    block_size: int | None = None
    """Tokens per KV block of the engine."""

    def numbers(self) -> dict[str, Any]:
        """The fields of this event's kind that are known."""
        pairs = ((a.field, getattr(self, a.field)) for a in semconv.FIELDS[self.kind])
        return {name: value for name, value in pairs if value is not None}


@dataclass(slots=True, kw_only=True)
class RequestStart(Event):
    kind = Kind.REQUEST_START
    total: int | None = None


@dataclass(slots=True, kw_only=True)
class RequestEnd(Event):
    kind = Kind.REQUEST
    total: int | None = None
    output: int | None = None
    computed: int | None = None
    outcome: str | None = None
    free_delayed: bool | None = None


@dataclass(slots=True, kw_only=True)
class Lookup(Event):
    kind = Kind.LOOKUP
    total: int
    computed: int
    matched: int | None = None
    returned: int | None = None
    is_async: bool = False
    cached: bool | None = None
    refused: int | None = None

    @property
    def answer(self) -> int | None:
        """What the connector said, before a guard replaced it."""
        return self.returned if self.refused is None else self.refused


@dataclass(slots=True, kw_only=True)
class Alloc(Event):
    kind = Kind.ALLOC
    total: int | None = None
    allocated: int
    blocks_count: int | None = None


@dataclass(slots=True, kw_only=True)
class Schedule(Event):
    kind = Kind.SCHEDULE
    computed: int
    scheduled: int
    resumed: bool = False


@dataclass(slots=True, kw_only=True)
class Preempt(Event):
    kind = Kind.PREEMPT


@dataclass(slots=True, kw_only=True)
class Transfer(Event):
    start: int
    count: int
    blocks_count: int | None = None
    bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class Load(Transfer):
    kind = Kind.LOAD


@dataclass(slots=True, kw_only=True)
class Store(Transfer):
    kind = Kind.STORE


@dataclass(slots=True, kw_only=True)
class Received(Event):
    kind = Kind.RECEIVED
    failed: bool = False


@dataclass(slots=True, kw_only=True)
class Sent(Event):
    kind = Kind.SENT


@dataclass(slots=True, kw_only=True)
class Evict(Event):
    kind = Kind.EVICT
    chunk_key: str | None = None
    count: int | None = None
    bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class Reset(Event):
    kind = Kind.RESET
    succeeded: bool | None = None


@dataclass(slots=True, kw_only=True)
class Heartbeat(Event):
    kind = Kind.HEARTBEAT
    recorder_recorded: int = 0
    recorder_dropped: int = 0
    recorder_closed: bool = False


CLASSES: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RequestStart, RequestEnd, Lookup, Alloc, Schedule, Preempt, Load, Store, Received, Sent, Evict, Reset, Heartbeat,
    )
}  # fmt: skip
_KEYS: dict[str, tuple[tuple[str, str, type], ...]] = {
    kind: tuple((a.key, a.field, a.type) for a in attributes) for kind, attributes in semconv.FIELDS.items()
}

_COMMON = (
    (semconv.SEQUENCE.key, "sequence", int),
    (semconv.CONNECTOR.key, "connector", str),
    (semconv.CONNECTOR_ID.key, "connector_id", str),
    (semconv.ROLE.key, "role", str),
    (semconv.RANK.key, "rank", int),
    (semconv.REQUEST_ID.key, "request", str),
    (semconv.EXTERNAL_ID.key, "external", str),
    (semconv.REQUEST_SEQUENCE.key, "request_sequence", int),
    (semconv.EPOCH.key, "epoch", int),
)
_MAY_BE_NEGATIVE = {semconv.RETURNED.key, semconv.REFUSED.key}
"""A connector's answer is recorded as it is, however wrong."""
MOST = 2**50
"""Counts beyond this are taken for damage, and so sums of them always fit into 64 bits."""


class MalformedSpan(ValueError):
    """A span in kvtrail's scope that lacks what its kind needs; the text names the span and what is missing."""


def from_span(span: Span) -> Event | None:
    """The event that a span carries; None for a foreign span or a kind that a newer kvtrail invented.

    Raises:
        MalformedSpan: the span has our scope and a known name, but not the attributes that its kind needs.
    """
    if span.scope != semconv.SCOPE:
        return None
    cls = CLASSES.get(span.name)
    if cls is None:
        return None
    attributes, resource = span.attributes, span.resource
    try:
        fields = {field: _typed(attributes, key, type_) for key, field, type_ in _KEYS[span.name] if key in attributes}
        common = {field: _typed(attributes, key, type_) for key, field, type_ in _COMMON if key in attributes}
        if not (span.span_id and 0 <= span.start_ns < LATEST_NS and 0 <= span.end_ns < LATEST_NS):
            raise TypeError(f"id {span.span_id!r} or time {span.start_ns} to {span.end_ns} is none")
        return cls(
            engine=_typed(resource, semconv.ENGINE_ID.key, str),
            recorder=_typed(resource, semconv.RECORDER_ID.key, str),
            block_size=_typed(resource, semconv.BLOCK_SIZE.key, int) if semconv.BLOCK_SIZE.key in resource else None,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            span_id=span.span_id,
            trace_id=span.trace_id,
            error=span.error,
            **{"connector": "", "role": "", "rank": 0, **common},
            **fields,
        )
    except KeyError as missing:
        raise MalformedSpan(f"span {span.span_id} ({span.name}) lacks {missing}") from missing
    except TypeError as wrong:
        raise MalformedSpan(f"span {span.span_id} ({span.name}): {wrong}") from wrong


def _typed(values: Mapping[str, Any], key: str, type_: type) -> Any:
    value: Any = values[key]
    if type(value) is not type_:
        raise TypeError(f"{key} must be {type_.__name__}, not {value!r}")
    least = -MOST if key in _MAY_BE_NEGATIVE else 0
    if isinstance(value, int) and not least <= value <= MOST:
        raise TypeError(f"{key} is {value}, which no count can be")
    return value

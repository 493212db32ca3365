"""A request of spans, decoded: what of it is judged, and what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest.decode import Decoded, MalformedOtlp, MalformedSpan, Refused
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.store import Chunk

Part = tuple[Mapping[str, Any], Decoded]
"""The attributes of a resource, and what came from it."""


@dataclass(slots=True)
class Received:
    """What one request holds.

    Attributes:
        payload: the spans that could be read, as an `ExportTraceServiceRequest`.
        parts: them, decoded.
        refused: the others.
        errors: what kvtrail itself failed at; these spans are in the payload alone.
    """

    payload: bytes
    parts: list[Part]
    refused: Refused | None = None
    errors: Sequence[Exception] = ()

    @property
    def spans(self) -> int:
        """How many spans could be read; a step is one."""
        return sum(decoded.spans for _, decoded in self.parts) + len(self.errors)

    @property
    def events(self) -> list[Event]:
        """The events, in the order of the request."""
        return [event for _, decoded in self.parts for event in decoded.events]

    @property
    def foreign(self) -> list[Span]:
        """The spans that no kvtrail recorder wrote."""
        return [span for _, decoded in self.parts for span in decoded.foreign]

    @property
    def malformed(self) -> list[MalformedSpan]:
        """What is wrong with those spans of ours that cannot be judged."""
        return [malformed for _, decoded in self.parts for malformed in decoded.malformed]

    def refuse_later_than(self, latest_ns: int) -> None:
        """Take the events for malformed that ended later: no clock gave them their time."""
        for _, decoded in self.parts:
            if max((event.end_ns for event in decoded.events), default=0) > latest_ns:
                decoded.malformed += (_later(event) for event in decoded.events if event.end_ns > latest_ns)
                decoded.events = [event for event in decoded.events if event.end_ns <= latest_ns]

    def chunk(self, *, latest_ns: int) -> Chunk:
        """What is stored of it. A span that ended later than `latest_ns` is taken to have ended then."""
        foreign, events, malformed = self.foreign, self.events, self.malformed
        ends_ns = [event.end_ns for event in events] + [span.end_ns for span in foreign]
        named = (span.attributes.get(semconv.CALLERS_ID.key) for span in foreign)
        return Chunk(
            self.payload,
            self.spans,
            min(max(ends_ns, default=latest_ns), latest_ns),
            requests={(event.engine, event.request) for event in events if event.request is not None},
            traces={event.trace_id for event in events}.union(
                (span.trace_id for span in foreign), (wrong.trace_id for wrong in malformed)
            ),
            named={name for name in named if isinstance(name, str)},
        )


def received(payload: bytes, decoder: ProtobufDecoder) -> Received:
    """What a request holds.

    Raises:
        MalformedOtlp: the bytes are no such request, or none of its spans can be read.
    """
    try:
        return Received(*decoder.salvaged(payload))
    except MalformedOtlp:
        raise
    except Exception:  # of kvtrail's own, at one of the spans
        parts, errors = decoder.one_by_one(payload)
        return Received(payload, parts, errors=errors)


def _later(event: Event) -> MalformedSpan:
    said = f"span {event.span_id} ({event.kind}): it ended more than a day after it arrived"
    return MalformedSpan(said, about=(event.kind, "end_ns"), trace_id=event.trace_id)

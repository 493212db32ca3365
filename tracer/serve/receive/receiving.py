"""The first stage of the pipeline: decodes a request of spans, and finds the new events in it.

A sender that receives no answer sends the same request again. A Collector in between may send the same events in other
requests; these duplicates are recognized by their recorders' numbers. If two spans have the same number, or a number that
the recorder cannot have reached yet, they are not duplicates: two senders use one recorder's id, and it is unknown which one
is right.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest.decode import Decoded, MalformedOtlp, MalformedSpan, Refused
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ledger.ordering import SeenNumbers, is_too_far
from kvtrail.tracer.store import MAX_RECEIPTS, Chunk

AHEAD_NS = 24 * 3600 * 10**9
"""Maximum error of a clock; an event further in the future has an invalid time."""
MAX_RECORDERS = 100_000
"""Maximum number of recorders with remembered numbers; the least recently reporting one is forgotten first."""
MAX_IDS_BYTES = 16 * 2**20
"""Maximum memory for the span ids of the latest events: about a million."""
_ID = 16
"""Length of a span id in characters."""
_RUN_BYTES = 400
"""Memory overhead of a run of numbers, besides its ids, in bytes."""

Part = tuple[Mapping[str, Any], Decoded]
"""The attributes of a resource, and its spans."""


@dataclass(slots=True)
class ReceivedRequest:
    """One request of spans.

    Attributes:
        payload: the spans that could be read, as an `ExportTraceServiceRequest`.
        digest: identifies the request.
        parts: the spans, decoded.
        refused: spans that could not be read.
        errors: internal errors of kvtrail; these spans are only in the payload.
        at_ns: arrival time; Unix nanoseconds.
        is_repeated: whether this request is stored already. Then the following attributes are empty.
        chunk: the data to store; None if there is none: a recorder that only looks for a receiver sends no span.
        fresh: events that were not received before.
        again: events that were received before.
        contested: events whose number another span also has.
        too_far: events with a number that their recorder cannot have reached yet.
        numbers: by recorder, the known numbers including this request's.
        runs: recorder, first number and span ids of its new events.
    """

    payload: bytes
    digest: bytes
    parts: list[Part]
    refused: Refused | None = None
    errors: Sequence[Exception] = ()
    at_ns: int = 0
    is_repeated: bool = False
    chunk: Chunk | None = None
    fresh: list[Event] = field(default_factory=list)
    again: list[Event] = field(default_factory=list)
    contested: list[Event] = field(default_factory=list)
    too_far: list[Event] = field(default_factory=list)
    numbers: dict[str, SeenNumbers] = field(default_factory=dict)
    runs: list[tuple[str, int, str]] = field(default_factory=list)

    @property
    def spans(self) -> int:
        """The number of spans that could be read; a step counts as one."""
        return sum(decoded.spans for _, decoded in self.parts) + len(self.errors)

    @property
    def foreign(self) -> list[Span]:
        """Spans that no kvtrail recorder wrote."""
        return [span for _, decoded in self.parts for span in decoded.foreign]

    @property
    def malformed(self) -> list[MalformedSpan]:
        """The errors of kvtrail spans that cannot be judged."""
        return [malformed for _, decoded in self.parts for malformed in decoded.malformed]


class _SpanIds:
    """The span ids of the latest events, by recorder and number."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[str, int], str] = OrderedDict()
        """Concatenated ids, by recorder and first number."""
        self._firsts: dict[str, list[int]] = {}
        self._bytes = 0

    def add(self, recorder: str, first: int, ids: str) -> None:
        """Store the ids of consecutive numbers; the oldest entries are dropped."""
        self._runs[recorder, first] = ids
        insort(self._firsts.setdefault(recorder, []), first)
        self._bytes += _RUN_BYTES + len(ids)
        while self._bytes > MAX_IDS_BYTES:
            (oldest, number), dropped = self._runs.popitem(last=False)
            self._bytes -= _RUN_BYTES + len(dropped)
            firsts = self._firsts[oldest]
            del firsts[bisect_left(firsts, number)]
            if not firsts:
                del self._firsts[oldest]

    def get(self, recorder: str, number: int) -> str | None:
        """The span id of an event; None if it is no longer known."""
        firsts = self._firsts.get(recorder, ())
        place = bisect_right(firsts, number) - 1
        if place < 0:
            return None
        at = (number - firsts[place]) * _ID
        return self._runs[recorder, firsts[place]][at : at + _ID] or None


class Receiver:
    """Decodes requests, and recognizes requests and events that are already stored."""

    def __init__(self, receipts: Iterable[bytes], numbers: Mapping[str, tuple[str, int]]) -> None:
        """`receipts` are the digests of stored requests. `numbers` has, by recorder, the numbers of stored events as
        text, and the arrival time of the last one in Unix nanoseconds."""
        self._decoder = ProtobufDecoder()
        self._receipts: BoundedDict[bytes, None] = BoundedDict(MAX_RECEIPTS)
        self._receipts.update(dict.fromkeys(receipts))
        self._recorders: BoundedDict[str, tuple[SeenNumbers, int]] = BoundedDict(MAX_RECORDERS)
        """The numbers of stored events, and the arrival time of the last one."""
        for recorder, (text, heard_ns) in numbers.items():
            self._recorders[recorder] = SeenNumbers.from_text(text), heard_ns
        self._ids = _SpanIds()

    def highest_numbers(self) -> dict[str, int]:
        """By recorder, the highest number that was received."""
        return {recorder: numbers.last for recorder, (numbers, _) in self._recorders.items()}

    def receive(self, payload: bytes, digest: bytes) -> ReceivedRequest:
        """Decode a request with this digest, and compare it with what is stored. It counts as stored once it is confirmed.

        Raises:
            MalformedOtlp: the bytes are not an OTLP request, or none of its spans can be read.
        """
        came = self._decoded(payload, digest)
        if digest in self._receipts:
            came.is_repeated = True
            return came
        came.at_ns = time.time_ns()
        latest_ns = came.at_ns + AHEAD_NS
        _refuse_later_than(latest_ns, came.parts)
        events = [event for _, decoded in came.parts for event in decoded.events]
        self._compare(events, came)
        came.chunk = _chunk_of(came, events, latest_ns=latest_ns) if came.spans else None
        return came

    def confirm(self, came: ReceivedRequest) -> None:
        """Note that a request is stored."""
        self._receipts[came.digest] = None
        for recorder, numbers in came.numbers.items():
            self._recorders[recorder] = numbers, came.at_ns
            self._recorders.move_to_end(recorder)
        for run in came.runs:
            self._ids.add(*run)

    def recall(self, events: Iterable[Event]) -> None:
        """Remember the span ids of events that an earlier sidecar stored."""
        for event in events:
            if self._ids.get(event.recorder, event.sequence) is None:
                self._ids.add(event.recorder, event.sequence, _ids_of([event]))

    def _decoded(self, payload: bytes, digest: bytes) -> ReceivedRequest:
        try:
            readable, parts, refused = self._decoder.salvaged(payload)
            return ReceivedRequest(readable, digest, parts, refused)
        except MalformedOtlp:
            raise
        except Exception:  # an internal error of kvtrail at one of the spans
            parts, errors = self._decoder.one_by_one(payload)
            return ReceivedRequest(payload, digest, parts, errors=errors)

    def _compare(self, events: Sequence[Event], came: ReceivedRequest) -> None:
        """Find the new events of a request."""
        in_request: dict[tuple[str, int], str] = {}
        """The first id of each number, computed on demand."""
        for recorder, run in groupby(events, key=attrgetter("recorder")):
            some = list(run)
            stored, heard_ns = self._recorders.get(recorder) or (SeenNumbers(), 0)
            seen = came.numbers.get(recorder)
            if seen is None:
                seen = came.numbers[recorder] = stored.copy()
            first = some[0].sequence
            if first == seen.last + 1 and [event.sequence for event in some] == list(range(first, first + len(some))):
                seen.extend(len(some))  # the usual case: the next numbers
                came.fresh += some
                came.runs.append((recorder, first, _ids_of(some)))
                continue
            elapsed_ns = came.at_ns - heard_ns
            for event in some:
                number = event.sequence
                if seen.last >= 0 and is_too_far(number, seen.last, elapsed_ns):
                    came.too_far.append(event)
                elif seen.add(number):
                    came.fresh.append(event)
                    came.runs.append((recorder, number, _ids_of([event])))
                else:
                    before = self._ids.get(recorder, number)
                    if before is None:
                        for each in () if in_request else events:
                            in_request.setdefault((each.recorder, each.sequence), _ids_of([each]))
                        before = in_request[recorder, number]
                    (came.again if before == _ids_of([event]) else came.contested).append(event)


def _ids_of(events: Sequence[Event]) -> str:
    """The concatenated ids of their spans; an invalid id is cut or padded to the length of a span id."""
    ids = "".join([event.span_id for event in events])
    return ids if len(ids) == _ID * len(events) else "".join([f"{event.span_id:{_ID}.{_ID}}" for event in events])


def of_this_time(events: Iterable[Event]) -> list[Event]:
    """The stored events that are judged: events with a plausible time."""
    latest_ns = time.time_ns() + AHEAD_NS
    return [event for event in events if event.end_ns <= latest_ns]


def _refuse_later_than(latest_ns: int, parts: Iterable[Part]) -> None:
    """Treat events that ended later as malformed: no clock can have given them this time."""
    for _, decoded in parts:
        if max((event.end_ns for event in decoded.events), default=0) > latest_ns:
            decoded.malformed += (_later(event) for event in decoded.events if event.end_ns > latest_ns)
            decoded.events = [event for event in decoded.events if event.end_ns <= latest_ns]


def _later(event: Event) -> MalformedSpan:
    text = f"span {event.span_id} ({event.kind}): it ended more than a day after it arrived"
    return MalformedSpan(text, about=(event.kind, "end_ns"), trace_id=event.trace_id)


def _chunk_of(came: ReceivedRequest, events: Sequence[Event], *, latest_ns: int) -> Chunk:
    """The data to store for a request. A span that ended later than `latest_ns` counts as ended then."""
    foreign, malformed = came.foreign, came.malformed
    ends_ns = [event.end_ns for event in events] + [span.end_ns for span in foreign]
    named = (span.attributes.get(semconv.CALLERS_ID.key) for span in foreign)
    return Chunk(
        came.payload,
        came.spans,
        min(max(ends_ns, default=latest_ns), latest_ns),
        requests={(event.engine, event.request) for event in events if event.request is not None},
        traces={event.trace_id for event in events}.union(
            (span.trace_id for span in foreign), (wrong.trace_id for wrong in malformed)
        ),
        named={name for name in named if isinstance(name, str)},
    )

"""Spans as they arrive, for all who read along: decoded and encoded once, for everybody.

Ingest only leaves the request here, and only while somebody reads. Twice a second a thread makes text of what has come, as
much as all readers together are given; of the rest they get the number. A reader who is slow misses what was pushed
out meanwhile, and gets the number of that, too.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.serve.limits import MIB

EVERY_S = 0.5
"""From one part to the next."""
MAX_SPANS = 1_000
"""In a part: 30 ms of a processor."""
MAX_BYTES = 8 * MIB
"""In a part, times the readers that it goes to."""
MAX_PENDING_BYTES = 16 * MIB
"""Of requests that wait to be rendered as text."""
PARTS_KEPT = 8
"""For readers that are slow."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A request that was stored: the number of its first span, how many it has, and its bytes."""

    first: int
    spans: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class _Part:
    """The text of some spans, the number of the first of them, and that after the last."""

    text: str
    first: int
    end: int


class Tail:
    """What has arrived lately, for those who read along."""

    def __init__(self, *, on_skip: Callable[[int], None] = lambda spans: None) -> None:
        """`on_skip` gets the number of spans that no reader is shown."""
        self._on_skip = on_skip
        self._lock = threading.Lock()
        self._left = threading.Event()
        self.readers = 0
        self._pending: deque[_Arrival] = deque()
        self._pending_bytes = 0
        self._parts: deque[_Part] = deque(maxlen=PARTS_KEPT)
        self._parts_made = 0
        """How many parts there were."""
        self._next: int | None = None
        """The number of the span after those of the last part; None before the first."""

    def publish(self, last: int, spans: int, payload: bytes) -> None:
        """Take an `ExportTraceServiceRequest` with this number of spans that was just stored; the last one has the number
        `last`."""
        if not self.readers:
            return
        with self._lock:
            self._pending.append(_Arrival(last - spans + 1, spans, payload))
            self._pending_bytes += len(payload)
            while self._pending_bytes > MAX_PENDING_BYTES:
                self._pending_bytes -= len(self._pending.popleft().payload)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """A reader of all that arrives from now on."""
        with self._lock:
            self.readers += 1
            reader = Reader(self, self._parts_made)
            if self.readers == 1:
                self._left, self._next = threading.Event(), None
                threading.Thread(target=self._run, args=(self._left,), name="tail", daemon=True).start()
        try:
            yield reader
        finally:
            with self._lock:
                self.readers -= 1
                if not self.readers:
                    self._left.set()
                    self._pending.clear()
                    self._parts.clear()
                    self._pending_bytes = 0

    def after(self, position: int) -> tuple[list[_Part], int]:
        """The parts after the first `position`, as far as they are still held, and how many there are then."""
        with self._lock:
            count = min(self._parts_made - position, len(self._parts))
            return [*self._parts][len(self._parts) - count :], self._parts_made

    def _run(self, left: threading.Event) -> None:
        decoder = ProtobufDecoder()
        while not left.wait(EVERY_S):
            with self._lock:
                pending, self._pending, self._pending_bytes = self._pending, deque(), 0
                readers = self.readers
            if pending and readers:
                part = self._part(pending, decoder, MAX_BYTES // readers)
                with self._lock:
                    self._parts.append(part)
                    self._parts_made += 1

    def _part(self, pending: deque[_Arrival], decoder: ProtobufDecoder, most_bytes: int) -> _Part:
        """The text of what has come, until it is enough."""
        texts: list[str] = []
        length = skipped = 0
        is_enough = False
        begin = expected = pending[0].first if self._next is None else self._next
        for arrival in pending:
            skipped += arrival.first - expected
            expected = arrival.first + arrival.spans
            shown = 0
            numbered_spans = decoder.numbered(arrival.payload, first=arrival.first)
            for number, span in () if is_enough else numbered_spans:
                texts.append(span_event(number, span))
                length += len(texts[-1])
                shown = number + 1 - arrival.first
                if is_enough := len(texts) >= MAX_SPANS or length >= most_bytes:
                    break
            skipped += arrival.spans - shown
        self._next = expected
        if skipped:
            self._on_skip(skipped)
            texts.append(skipped_event(skipped))
        return _Part("".join(texts), begin, expected)


class Reader:
    """One who reads along."""

    def __init__(self, tail: Tail, position: int) -> None:
        self._tail, self._position = tail, position
        self._next: int | None = None

    def texts(self) -> list[str]:
        """What has come since it was last asked: server-sent events."""
        parts, self._position = self._tail.after(self._position)
        texts: list[str] = []
        for part in parts:
            if self._next is not None and part.first > self._next:
                texts.append(skipped_event(part.first - self._next))
            self._next = part.end
            texts.append(part.text)
        return texts


def span_event(number: int, span: Span) -> str:
    """A span as a server-sent event."""
    return f"id: {number}\ndata: {json.dumps(numbered(number, span))}\n\n"


def skipped_event(spans: int) -> str:
    """How many spans a reader is not shown, as a server-sent event."""
    return f'event: skipped\ndata: {{"spans": {spans}}}\n\n'


def numbered(number: int, span: Span) -> dict[str, Any]:
    """A span as the api shows it in the order of arrival."""
    names = ("trace_id", "span_id", "parent_id", "name", "start_ns", "end_ns", "scope", "error", "attributes")
    return {"number": number, **{name: getattr(span, name) for name in names}}

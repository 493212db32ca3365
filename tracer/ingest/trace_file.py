"""Trace files, as kvtrail and the OpenTelemetry Collector's file exporter write them.

`files` takes the compression off a file, `messages` cuts it into messages, and here these become spans or events.
"""

from __future__ import annotations

import heapq
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvtrail.tracer.ingest import decode, files, otlp, otlp_json
from kvtrail.tracer.ingest.messages import Message, messages
from kvtrail.tracer.ingest.otlp_json import Odd
from kvtrail.tracer.ingest.quick import Quick
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.spans import Span

_BACKSLASH = "\\"
_BY_NUMBER = "u"
T = TypeVar("T")


class UnusableTrace(ValueError):
    """A file that cannot be read as a trace; the text names the file and the reason."""


@dataclass(slots=True)
class Batch:
    """What one message of a trace file holds.

    Attributes:
        events: the events, in the order of the message.
        foreign: spans that no kvtrail recorder wrote.
        malformed: for each span of ours that lacks what its kind needs, what is wrong.
        unknown_spans: spans of ours whose name this kvtrail does not know, by name.
        unknown_attributes: attributes of ours that this kvtrail does not know, by name.
    """

    events: list[Event] = field(default_factory=list)
    foreign: list[Span] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    unknown_spans: Counter[str] = field(default_factory=Counter)
    unknown_attributes: Counter[str] = field(default_factory=Counter)

    @property
    def at_ns(self) -> int:
        """When its first event happened; 0 where it has none."""
        return self.events[0].end_ns if self.events else 0

    def add(self, span: Span) -> Event | None:
        """Sort a span in; returns its event, if it has one."""
        if not decode.is_ours(span):
            self.foreign.append(span)
            return None
        try:
            event = decode.from_span(span)
        except decode.MalformedSpan as malformed:
            self.malformed.append(str(malformed))
            return None
        if event is None:
            self.unknown_spans[span.name] += 1
        else:
            self.unknown_attributes.update(decode.unknown_attributes(span))
            self.events.append(event)
        return event


class TraceReader:
    """Reads one file; a message that is none is counted and told, never fatal.

    Attributes:
        bad_lines: (number of the line or message, reason) of those that could not be read.
    """

    def __init__(self, path: Path, *, quick: Quick | None = None) -> None:
        """`quick` remembers what comes again; the readers of several files may share one."""
        self.path = path
        self.bad_lines: list[tuple[int, str]] = []
        self.on_bytes: Callable[[int], None] | None = None
        """Hears how many bytes of the file, as it lies on the disk, were read since it was called last."""
        self._quick = quick or Quick()

    def spans(self) -> Iterator[Span]:
        """The spans, in the order of the file.

        Raises:
            UnusableTrace: the file cannot be opened, or holds no message that is OTLP.
        """
        for spans in self._read(_spans):
            yield from spans

    def batches(self) -> Iterator[Batch]:
        """The same as events, message by message, much faster.

        Raises:
            UnusableTrace: as for `spans`.
        """
        yield from self._read(self._batch)

    def _read(self, read: Callable[[Message], T]) -> Iterator[T]:
        good = number = 0
        try:
            with files.opened(self.path) as (raw, text, source):
                told = 0
                for number, message in enumerate(messages(text), start=1):
                    try:
                        result = read(message)
                    except (ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, no OTLP
                        self.bad_lines.append((number, str(error)))
                        continue
                    good += not message.empty
                    yield result
                    if self.on_bytes is not None:
                        at = raw.tell()
                        self.on_bytes(at - told)
                        told = at
                if source is not None and source.damage is not None:
                    if self.bad_lines and self.bad_lines[-1][0] == number:
                        self.bad_lines.pop()  # the line in which the damage lies
                    self.bad_lines.append((number, source.damage))
        except OSError as error:
            raise UnusableTrace(f"{self.path}: {error.strerror or error}") from error
        if not good:
            why = f"line {self.bad_lines[0][0]}: {self.bad_lines[0][1]}" if self.bad_lines else "the file is empty"
            raise UnusableTrace(f"{self.path}: no OTLP JSON line in it ({why})")

    def _batch(self, message: Message) -> Batch:
        batch = Batch()
        spans: list[Span] | None = None
        if message.is_json:
            line = message.text()
            with suppress(Odd):  # another dialect, or damage, which the slower way tells
                if not _has_escapes(line):
                    batch.events, spans = self._quick.read(line)
        for span in _spans(message) if spans is None else spans:
            batch.add(span)
        return batch


def by_time(readers: Sequence[TraceReader]) -> Iterator[tuple[TraceReader, Batch]]:
    """The batches of several files in the order of time, as far as each file has it: a file is opened when its turn comes.

    Raises:
        UnusableTrace: one of the files cannot be read at all.
    """
    if len(readers) == 1:
        yield from ((readers[0], batch) for batch in readers[0].batches())
        return
    heap = [(_begins_ns(reader.path), number) for number, reader in enumerate(readers)]
    heapq.heapify(heap)
    held: dict[int, tuple[Iterator[Batch], Batch | None]] = {}
    while heap:
        at_ns, number = heapq.heappop(heap)
        batches, batch = held.pop(number) if number in held else (readers[number].batches(), None)
        if batch is not None:
            yield readers[number], batch
        if (following := next(batches, None)) is not None:
            held[number] = (batches, following)
            heapq.heappush(heap, (following.at_ns or at_ns, number))


def _begins_ns(path: Path) -> int:
    return next((batch.at_ns for batch in TraceReader(path).batches() if batch.at_ns), 0)


class TraceWriter:
    """Appends requests to a trace file, one line each, flushed at once."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file cannot be opened for appending."""
        self._file = path.open("a", encoding="utf-8")
        if _torn(path):  # a writer was killed within a line: the next one must not be joined to it
            self._file.write("\n")

    def write(self, request: ExportTraceServiceRequest) -> None:
        self._file.write(otlp.to_json_line(request) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _spans(message: Message) -> list[Span]:
    """The spans of a message.

    Raises:
        ValueError: it is none, or no UTF-8, no JSON, no OTLP.
    """
    if message.empty:
        return []
    if not message.is_json:
        return list(otlp.spans(otlp.from_protobuf(message.data)))
    text = message.text()
    data = json.loads(text)
    if not _has_escapes(text):
        with suppress(Odd):
            return otlp_json.spans(data)
    return list(otlp.spans(otlp.from_json(data)))


def _has_escapes(text: str) -> bool:
    """Whether a text names characters by number: such a name may be half a character, which protobuf refuses."""
    at = text.find(_BACKSLASH)  # one character is found ten times as fast as two, and few are there
    while at >= 0:
        if text[at + 1 : at + 2] == _BY_NUMBER:
            return True
        at = text.find(_BACKSLASH, at + 2)
    return False


def _torn(path: Path) -> bool:
    """Whether a file ends within a line."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"

"""Trace files of kvtrail and of the OpenTelemetry Collector's file exporter.

A file is a sequence of messages. A message is a line of OTLP JSON. With `format: proto` or `compression: zstd`, the Collector
instead writes the message's length in four bytes, big-endian, followed by JSON or protobuf, compressed or not. The bytes
determine the format, never the file's name.
"""

from __future__ import annotations

import heapq
import io
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec import DecodeError

from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import files
from kvtrail.tracer.ingest.decode import Decoded, Decoder
from kvtrail.tracer.ingest.otlp_json import JsonDecoder
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder

_NO_TEXT = b"\x08"
"""No text begins with a byte up to this value, but the length of a message of less than 144 MiB does."""
_LENGTH_BYTES = 4
MOST_OPEN = 200
"""Maximum number of files that are read at the same time. The usual limit of a process is 1,024 open files."""
_LONGEST = 1 << 30
"""Maximum size of a message in bytes. A longer one is treated as damage."""
T = TypeVar("T")


class UnusableTrace(ValueError):
    """A file that cannot be read as a trace; the text names the file and the reason."""


def is_framed(start: bytes) -> bool:
    """Whether a file with these first bytes holds messages preceded by their lengths."""
    return bool(start) and start[:1] <= _NO_TEXT


class Message(NamedTuple):
    """One message of a file, without its length."""

    data: bytes
    is_json: bool
    damage: str | None = None


def messages(file: io.BufferedReader) -> Iterator[Message]:
    """The messages of a file, not yet parsed. An invalid message raises an error only when it is parsed."""
    if not is_framed(file.peek(1)):
        yield from (Message(line, is_json=True) for line in file)
        return
    while length := file.read(_LENGTH_BYTES):
        size = int.from_bytes(length, "big")
        data = file.read(min(size, _LONGEST))
        if len(length) < _LENGTH_BYTES or len(data) < size:
            yield Message(data, is_json=True, damage=f"the file ends within a message of {size} bytes")
            return
        yield _unpacked(data)


def _unpacked(data: bytes) -> Message:
    damage = None
    if data.startswith(files.ZSTD):
        decompressor = files.zstd()
        try:
            data = decompressor.decompress(data)
            damage = None if decompressor.eof else "a message ends within a compressed block"
        except Exception as error:  # zstandard's error has no specific base class
            damage = f"a message is damaged: {error}"
    return Message(data, data.startswith(b"{"), damage)


class TraceReader:
    """Reads one file. A message that cannot be read is counted and reported, never fatal.

    Attributes:
        bad_lines: (number of the line or message, reason) of those that could not be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bad_lines: list[tuple[int, str]] = []
        self._json, self._protobuf = JsonDecoder(), ProtobufDecoder()

    def spans(self) -> Iterator[Span]:
        """The spans, in the order of the file.

        Raises:
            UnusableTrace: the file cannot be opened, or holds no message that is OTLP.
        """
        for spans in self._read(lambda decoder, data: decoder.spans(data)):
            yield from spans

    def decoded(self) -> Iterator[Decoded]:
        """The events, message by message.

        Raises:
            UnusableTrace: as for `spans`.
        """
        yield from self._read(lambda decoder, data: decoder.decoded(data))

    def _read(self, read: Callable[[Decoder[Any], Any], T]) -> Iterator[T]:
        good = number = 0
        try:
            with files.opened(self.path) as (text, source):
                for number, message in enumerate(messages(text), 1):
                    try:
                        if message.damage is not None:
                            raise ValueError(message.damage)
                        if not message.data.strip():
                            continue
                        if message.is_json:
                            result = read(self._json, message.data.decode("utf-8-sig"))
                        else:
                            result = read(self._protobuf, message.data)
                    except (ValueError, DecodeError, RecursionError) as error:  # no UTF-8, no JSON, no OTLP
                        self.bad_lines.append((number, str(error)))
                        continue
                    good += 1
                    yield result
                if source is not None and source.damage is not None:
                    if self.bad_lines and self.bad_lines[-1][0] == number:
                        self.bad_lines.pop()  # the damaged line
                    self.bad_lines.append((number, source.damage))
        except OSError as error:
            raise UnusableTrace(f"{self.path}: {error.strerror or error}") from error
        if not good:
            why = f"line {self.bad_lines[0][0]}: {self.bad_lines[0][1]}" if self.bad_lines else "the file is empty"
            raise UnusableTrace(
                f"{self.path}: no OTLP in it ({why}). A trace is OTLP, a request a line (`jq -c .` makes lines of JSON) or in"
                " binary form: see docs/logs-and-traces.md. `kvtrail audit` reads the log of a server, too."
            )


def by_time(readers: Sequence[TraceReader]) -> Iterator[tuple[TraceReader, Decoded]]:
    """The batches of several files merged by time, provided that each file is in order. If there are too many files to open
    them all, they are read one after the other.

    Raises:
        UnusableTrace: one of the files cannot be read at all.
    """

    def timed(reader: TraceReader) -> Iterator[tuple[int, TraceReader, Decoded]]:
        at_ns = 0
        for batch in reader.decoded():
            at_ns = batch.at_ns or at_ns
            yield at_ns, reader, batch

    streams = map(timed, readers)
    merged = heapq.merge(*streams, key=itemgetter(0)) if len(readers) <= MOST_OPEN else chain.from_iterable(streams)
    for _, reader, batch in merged:
        yield reader, batch

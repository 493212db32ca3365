"""Reads a log line by line as spans or events, with the interface of a trace file's reader."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import files
from kvtrail.tracer.ingest.files import STDIN
from kvtrail.tracer.ingest.logs.assembler import Assembler
from kvtrail.tracer.ingest.logs.event_spans import span_of
from kvtrail.tracer.ingest.logs.failures import CAUGHT, FAILURES, Tracebacks
from kvtrail.tracer.ingest.logs.line_patterns import Reading, Role
from kvtrail.tracer.ingest.logs.lines import Lines, Record
from kvtrail.tracer.ingest.logs.lmcache import LMCACHE
from kvtrail.tracer.ingest.logs.vllm import VLLM
from kvtrail.tracer.ingest.trace_file import TraceReader, UnusableTrace, is_framed

PATTERNS = (*FAILURES, *LMCACHE, *VLLM)
"""All known lines. The first pattern that reads a line counts."""
_START = 1 << 20
_TRACE = re.compile(rb'^(?:\xef\xbb\xbf)?\{(?:\s*|[^\n]*)"resource(?:Spans|_spans)"', re.MULTILINE)
"""The beginning of a request in JSON."""


def read(text: str) -> Reading | None:
    """The reading of a message; None if no pattern reads it."""
    for each in PATTERNS:
        if each.hint not in text or (match := each.pattern.search(text)) is None:
            continue
        if (reading := each.read(match)) is not None:
            reading.connector = reading.connector or each.connector
            return reading
    return None


class LogReader:
    """Reads one log. A line that no pattern reads is counted, never fatal.

    Attributes:
        understood, unread: numbers of messages that a pattern read, and of other messages; blank lines do not count.
        bad_lines: (line number, reason) of damage to the file itself.
    """

    def __init__(self, path: Path, *, engine: str | None = None) -> None:
        self.path = path
        self.understood = 0
        self.unread = 0
        self.bad_lines: list[tuple[int, str]] = []
        self._tracebacks = Tracebacks()
        self._assembler = Assembler(engine or ("stdin" if path == STDIN else path.name))

    @property
    def engine(self) -> str:
        """The name of the engine that wrote it."""
        return self._assembler.engine

    @property
    def summary(self) -> str:
        """A sentence about the numbers of read and unread lines."""
        return f"{self.path}: {self.understood} lines read, {self.unread} unread; `kvtrail replay` shows what they say."

    def spans(self) -> Iterator[Span]:
        """The events as spans, in the order of the log.

        Raises:
            UnusableTrace: the file cannot be opened, or no pattern reads any of its lines.
        """
        return map(span_of, self.events())

    def events(self) -> Iterator[Event]:
        """The events that the log shows, in its order.

        Raises:
            UnusableTrace: as for `spans`.
        """
        number = 0
        try:
            with files.opened(self.path) as (file, source):
                file_ns = time.time_ns() if self.path == STDIN else self.path.stat().st_mtime_ns
                for record in Lines(file_ns=file_ns).records(file):
                    number = record.number
                    reading = self._read(record)
                    if reading is not None:
                        self.understood += 1
                        yield from self._assembler.enter(record, reading)
                    elif record.text:
                        self.unread += 1
                if source is not None and source.damage is not None:
                    if not self.understood:
                        raise UnusableTrace(f"{self.path}: {source.damage}")
                    self.bad_lines.append((number, source.damage))
        except OSError as error:
            raise UnusableTrace(f"{self.path}: {error.strerror or error}") from error
        yield from self._assembler.close()
        if not self.understood:
            why = f"none of its {self.unread} lines can be read" if self.unread else "the file is empty"
            raise UnusableTrace(
                f"{self.path}: {why}. Accepted are traces (OTLP) and logs of vLLM with a KV connector:"
                " docs/logs-and-traces.md lists the lines. Many are printed at level DEBUG only."
            )

    def _read(self, record: Record) -> Reading | None:
        reading = read(record.text)
        if reading is None:
            return self._tracebacks.read(record)
        is_fatal = self._tracebacks.close(record.process)
        if reading.role is Role.FAILURE and record.level in CAUGHT:
            return None
        reading.is_fatal |= is_fatal and reading.role is Role.FAILURE
        return reading


def is_log(path: Path) -> bool:
    """Whether the first MiB of a file is text, but not of a trace. The standard input cannot be read twice, so it is always
    treated as a log."""
    if path == STDIN:
        return True
    try:
        with files.opened(path) as (file, _):
            start = file.read(_START)
    except OSError:
        return False  # the error is reported when the file is read
    return not is_framed(start) and b"\0" not in start and _TRACE.search(start) is None


def readers(paths: Iterable[Path]) -> tuple[list[TraceReader], list[LogReader]]:
    """A reader for each trace file and each log."""
    found = list(paths)
    named = dict(zip(found, names(found), strict=True))
    logs = [LogReader(path, engine=named[path]) for path in found if is_log(path)]
    log_paths = {log.path for log in logs}
    return [TraceReader(path) for path in found if path not in log_paths], logs


def names(paths: Sequence[Path]) -> list[str]:
    """The engine's name for each log: the file's name, or its path if several files have this name."""
    known = [path.name for path in dict.fromkeys(paths)]
    return [str(path) if known.count(path.name) > 1 else path.name for path in paths]

"""A log as a source of spans, read line by line, with the same face as a trace file's reader."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import files
from kvtrail.tracer.ingest.files import STDIN
from kvtrail.tracer.ingest.foreign import identified
from kvtrail.tracer.ingest.logs.assembler import Assembler
from kvtrail.tracer.ingest.logs.event_spans import span_of
from kvtrail.tracer.ingest.logs.failures import CAUGHT, FAILURES, Tracebacks
from kvtrail.tracer.ingest.logs.line_patterns import Reading, Role
from kvtrail.tracer.ingest.logs.lines import Lines, Record
from kvtrail.tracer.ingest.logs.lmcache import LMCACHE
from kvtrail.tracer.ingest.logs.timelines import Timelines
from kvtrail.tracer.ingest.logs.unread_lines import UnreadLines
from kvtrail.tracer.ingest.logs.vllm import VLLM
from kvtrail.tracer.ingest.trace_file import TraceReader, UnusableTrace, is_framed

PATTERNS = (*FAILURES, *LMCACHE, *VLLM)
"""All that is read. The first pattern that reads a line counts."""
_BOM = b"\xef\xbb\xbf"
_START = 1 << 16
_TRACE = (b'"resourceSpans"', b'"resource_spans"')
_WRAPPED = re.compile(r"\b(?:tensor|(?:np|numpy)\.u?int\d{1,3})\((-?\d{1,15})(?:, [^()]{0,80})?\)")
"""A number as numpy and torch print it."""


def read(text: str) -> Reading | None:
    """What a message says, in whichever system's words."""
    if "tensor(" in text or ".int" in text or ".uint" in text:
        text = _WRAPPED.sub(r"\1", text)
    for each in PATTERNS:
        if each.hint not in text or (match := each.pattern.search(text)) is None:
            continue
        if (reading := each.read(match)) is not None:
            reading.connector = reading.connector or each.connector
            return reading
    return None


class LogReader:
    """Reads one log; a line that says nothing about KV is counted, never fatal.

    Attributes:
        understood, unread: messages that were read, and that were not; blank lines are neither.
        bad_lines: where the file itself is damaged.
    """

    def __init__(self, path: Path, *, engine: str | None = None) -> None:
        self.path = path
        self.understood = 0
        self.unread = 0
        self.bad_lines: list[tuple[int, str]] = []
        self._tracebacks = Tracebacks()
        self._nearest = UnreadLines()
        self._assembler = Assembler(engine or ("stdin" if path == STDIN else path.name))

    @property
    def engine(self) -> str:
        """The name of the engine that wrote it."""
        return self._assembler.engine

    @property
    def summary(self) -> str:
        """How many of its lines were read, in a sentence."""
        return f"{self.path}: {self.understood} lines read, {self.unread} unread, {self._assembler.repeated} printed twice."

    @property
    def timelines(self) -> Timelines:
        """What it shows of each request."""
        return self._assembler.timelines

    def spans(self) -> Iterator[Span]:
        """The events as spans, in the order of the log.

        Raises:
            UnusableTrace: the file cannot be opened, or no line of it says anything about KV.
        """
        return map(span_of, self.events())

    def events(self) -> Iterator[Event]:
        """What the log shows, in its order.

        Raises:
            UnusableTrace: as for `spans`.
        """
        number = end_ns = 0
        try:
            with files.opened(self.path) as (file, source):
                if (what := identified(files.start(file))) is not None:
                    raise UnusableTrace(f"{self.path}: {what}")
                file_ns = time.time_ns() if self.path == STDIN else self.path.stat().st_mtime_ns
                for record in Lines(file_ns=file_ns).records(file):
                    number, end_ns = record.number, max(end_ns, record.at_ns)
                    reading = self._read(record)
                    if reading is not None:
                        self.understood += 1
                        yield from self._assembler.enter(record, reading)
                    elif record.text:
                        self.unread += 1
                        if not self.understood:
                            self._nearest.enter(record)
                if source is not None and source.damage is not None:
                    if not self.understood:
                        raise UnusableTrace(f"{self.path}: {source.damage}")
                    self.bad_lines.append((number, source.damage))
        except OSError as error:
            raise UnusableTrace(f"{self.path}: {error.strerror or error}") from error
        yield from self._assembler.close(end_ns)
        if not self.understood:
            raise UnusableTrace(f"{self.path}: {self._nearest.explanation(self.unread)}")

    def _read(self, record: Record) -> Reading | None:
        reading = read(record.text)
        if reading is None:
            return self._tracebacks.read(record)
        is_fatal = self._tracebacks.close(record.process)
        if reading.role is Role.FAILURE and record.level in CAUGHT:
            return None
        reading.is_fatal |= is_fatal and reading.role in (Role.FAILURE, Role.MISMATCH)
        return reading


def is_log(path: Path) -> bool:
    """Whether a file is a text that is no trace, such as a server's log: its first recognizable line decides. The
    standard input cannot be read twice, and is taken for a log."""
    if path == STDIN:
        return True
    is_text = False
    try:
        with files.opened(path) as (file, _):
            begins = files.start(file)[:_START]
            if _is_trace(begins) or identified(begins) is not None:
                return False
            lines = Lines(file_ns=path.stat().st_mtime_ns)
            number = 0
            while line := file.readline(_START):
                number += 1
                begins = line.removeprefix(_BOM).lstrip()
                if begins.startswith(b"{") and any(key in line for key in _TRACE):
                    return False
                if begins and not is_text:
                    if not _is_text(begins):
                        return False
                    is_text = not begins.startswith(b"{")
                for record in lines.split(line.decode("utf-8", errors="replace"), number):
                    if record.logged or read(record.text) is not None:
                        return True
    except OSError:
        return False  # whoever opens the file next says what is wrong with it
    return is_text


def _is_text(line: bytes) -> bool:
    """Whether a line can be of a log: logs may hold damaged letters, and no binary zeros."""
    return b"\0" not in line and not line.startswith((b"\xff\xfe", b"\xfe\xff"))


def readers(paths: Iterable[Path]) -> tuple[list[TraceReader], list[LogReader]]:
    """A reader for each trace file and each log."""
    found = list(paths)
    named = dict(zip(found, names(found), strict=True))
    logs = [LogReader(path, engine=named[path]) for path in found if is_log(path)]
    log_paths = {log.path for log in logs}
    return [TraceReader(path) for path in found if path not in log_paths], logs


def _is_trace(start: bytes) -> bool:
    start = start.removeprefix(_BOM).lstrip()
    return is_framed(start) or (start.startswith(b"{") and any(key in start for key in _TRACE))


def names(paths: Sequence[Path]) -> list[str]:
    """What to call the engine behind each log: the file's name, and its path where two files have the same."""
    known = [path.name for path in dict.fromkeys(paths)]
    return [str(path) if known.count(path.name) > 1 else path.name for path in paths]

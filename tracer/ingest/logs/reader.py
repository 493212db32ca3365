"""A log as a source of spans, read line by line, with the same face as a trace file's reader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from kvtrail.tracer.ingest import files
from kvtrail.tracer.ingest.files import STDIN
from kvtrail.tracer.ingest.logs.assemble import Assembler
from kvtrail.tracer.ingest.logs.export import span_of
from kvtrail.tracer.ingest.logs.lines import Lines, Record
from kvtrail.tracer.ingest.logs.lmcache import LMCACHE
from kvtrail.tracer.ingest.logs.readings import Reading
from kvtrail.tracer.ingest.logs.story import Stories
from kvtrail.tracer.ingest.logs.vllm import VLLM
from kvtrail.tracer.ingest.trace_file import TraceReader, UnusableTrace, is_framed
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.spans import Span

TABLES = (LMCACHE, VLLM)
_BOM = b"\xef\xbb\xbf"
_START = 1 << 16
_TRACE = (b'"resourceSpans"', b'"resource_spans"')
_REPORT_EVERY = 2000


def read(text: str) -> Reading | None:
    """What a message says, in whichever system's words."""
    for table in TABLES:
        if (reading := table.read(text)) is not None:
            return reading
    return None


class LogReader:
    """Reads one log; a line that says nothing about KV is counted, never fatal.

    Attributes:
        understood, unread: messages that were read, and that were not; blank lines are neither.
        bad_lines: where the file itself is damaged.
    """

    def __init__(
        self,
        path: Path,
        *,
        engine: str | None = None,
        on_unread: Callable[[Record], None] | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        """`on_bytes` hears how many bytes of the file, as it lies on the disk, were read since it was called last."""
        self.path = path
        self.understood = 0
        self.unread = 0
        self.bad_lines: list[tuple[int, str]] = []
        self._assembler = Assembler(engine or ("stdin" if path == STDIN else path.name))
        self._on_unread = on_unread
        self._on_bytes = on_bytes

    @property
    def stories(self) -> Stories:
        return self._assembler.stories

    @property
    def repeated(self) -> int:
        """Messages that were printed twice and count once."""
        return self._assembler.repeated

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
        number = 0
        try:
            with files.opened(self.path) as (raw, file, source):
                reported = 0
                file_ns = time.time_ns() if self.path == STDIN else self.path.stat().st_mtime_ns
                for record in Lines(file_ns=file_ns).records(file):
                    number = record.number
                    reading = read(record.text)
                    if reading is not None:
                        self.understood += 1
                        yield from self._assembler.enter(record, reading)
                    elif record.text:
                        self.unread += 1
                        if self._on_unread is not None:
                            self._on_unread(record)
                    if self._on_bytes is not None and (self.understood + self.unread) % _REPORT_EVERY == 0:
                        at = raw.tell()
                        self._on_bytes(at - reported)
                        reported = at
                if self._on_bytes is not None:
                    self._on_bytes(raw.tell() - reported)
                if source is not None and source.damage is not None:
                    if not self.understood:
                        raise UnusableTrace(f"{self.path}: {source.damage}")
                    self.bad_lines.append((number, source.damage))
        except OSError as error:
            raise UnusableTrace(f"{self.path}: {error.strerror or error}") from error
        yield from self._assembler.close()
        if not self.understood:
            what = f"none of its {self.unread} lines says anything" if self.unread else "the file is empty, nothing"
            raise UnusableTrace(f"{self.path}: {what} that kvtrail knows about KV offload in vLLM or LMCache")


def is_log(path: Path) -> bool:
    """Whether a file is a server's log and not OTLP JSON Lines: the first line that can be told decides. The
    standard input cannot be read twice, and is taken for a log."""
    if path == STDIN:
        return True
    try:
        with files.opened(path) as (_, file, _):
            if is_framed(file.peek(1)):
                return False
            lines = Lines(file_ns=path.stat().st_mtime_ns)
            number = 0
            while line := file.readline(1 << 16):
                number += 1
                if line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{") and any(key in line for key in _TRACE):
                    return False
                for record in lines.split(line.decode("utf-8", errors="replace"), number):
                    if record.logged or read(record.text) is not None:
                        return True
    except OSError:
        pass  # whoever opens the file next says what is wrong with it
    return False


def readers(
    paths: Iterable[Path], *, on_bytes: Callable[[int], None] | None = None
) -> tuple[list[TraceReader], list[LogReader], list[tuple[str, int, str]]]:
    """A reader for each trace file and each log, and what was skipped, as (file, line, reason). A folder means the trace
    files in it. Hidden files are ignored: somebody may still be writing them.

    Raises:
        UnusableTrace: a folder holds no trace file.
    """
    found: list[Path] = []
    skipped: list[tuple[str, int, str]] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        held = [file for file in sorted(path.iterdir()) if file.is_file() and not file.name.startswith(".")]
        traces = [file for file in held if is_trace(file)]
        if not traces:
            raise UnusableTrace(f"{path}: no trace file in this folder")
        found += traces
        skipped += [(str(file), 0, "it is not a trace file, and was skipped") for file in held if file not in traces]
    named = dict(zip(found, names(found), strict=True))
    logs = [LogReader(path, engine=named[path], on_bytes=on_bytes) for path in found if is_log(path)]
    log_paths = {log.path for log in logs}
    return [TraceReader(path, on_bytes=on_bytes) for path in found if path not in log_paths], logs, skipped


def is_trace(path: Path) -> bool:
    """Whether a file begins like a trace file."""
    try:
        with files.opened(path) as (_, file, _):
            start = file.read(_START).removeprefix(_BOM).lstrip()
    except OSError:
        return False
    return is_framed(start) or (start.startswith(b"{") and any(key in start for key in _TRACE))


def names(paths: Sequence[Path]) -> list[str]:
    """What to call the engine behind each log: the file's name, and its path where two files have the same."""
    known = [path.name for path in dict.fromkeys(paths)]
    return [str(path) if known.count(path.name) > 1 else path.name for path in paths]

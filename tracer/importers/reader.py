"""A log as a source of spans, read line by line, with the same face as a trace file's reader."""

from __future__ import annotations

import gzip
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from tracer.events import Event
from tracer.importers.assemble import Assembler
from tracer.importers.export import span_of
from tracer.importers.lines import Lines, Record
from tracer.importers.lmcache import LMCACHE
from tracer.importers.readings import Reading
from tracer.importers.story import Stories
from tracer.importers.vllm import VLLM
from tracer.spans import Span
from tracer.tracefile import TraceReader, UnusableTrace

TABLES = (LMCACHE, VLLM)
STDIN = Path("-")
_GZIP = b"\x1f\x8b"
_TRACE = (b'"resourceSpans"', b'"resource_spans"')
_TELL_EVERY = 2000


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
            with _opened(self.path) as (raw, file, file_ns):
                told = 0
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
                    if self._on_bytes is not None and (self.understood + self.unread) % _TELL_EVERY == 0:
                        at = raw.tell()
                        self._on_bytes(at - told)
                        told = at
                if self._on_bytes is not None:
                    self._on_bytes(raw.tell() - told)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if not self.understood:
                raise UnusableTrace(f"{self.path}: {error}") from error
            self.bad_lines.append((number, f"the file is damaged from here on: {error}"))
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
        with _opened(path) as (_, file, file_ns):
            lines = Lines(file_ns=file_ns)
            number = 0
            while line := file.readline(1 << 16):
                number += 1
                if line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{") and any(key in line for key in _TRACE):
                    return False
                for record in lines.split(line.decode("utf-8", errors="replace"), number):
                    if record.logged or read(record.text) is not None:
                        return True
    except (OSError, EOFError, zlib.error):
        pass  # whoever opens the file next says what is wrong with it
    return False


def readers(paths: Iterable[Path]) -> list[TraceReader | LogReader]:
    """A reader for each file. Logs come last: whoever gives up on what a log cannot hold must have read the traces."""
    paths = list(paths)
    called = dict(zip(paths, names(paths), strict=True))
    logs = [path for path in paths if is_log(path)]
    traces: list[TraceReader | LogReader] = [TraceReader(path) for path in paths if path not in logs]
    return traces + [LogReader(path, engine=called[path]) for path in logs]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes], int]]:
    """The file as it lies there, its text, and when it was last written; gzip is told by its first bytes."""
    if path == STDIN:
        raw = cast(IO[bytes], sys.stdin.buffer)
        yield raw, _text(raw), time.time_ns()
        return
    with path.open("rb") as raw:
        yield raw, _text(raw), path.stat().st_mtime_ns


def _text(raw: IO[bytes]) -> IO[bytes]:
    peek: Callable[[int], bytes] | None = getattr(raw, "peek", None)
    return cast(IO[bytes], gzip.open(raw)) if peek is not None and peek(2).startswith(_GZIP) else raw


def names(paths: Sequence[Path]) -> list[str]:
    """What to call the engine behind each log: the file's name, and its path where two files have the same."""
    known = [path.name for path in dict.fromkeys(paths)]
    return [str(path) if known.count(path.name) > 1 else path.name for path in paths]

"""Trace files: OTLP JSON Lines, as the OpenTelemetry Collector's file exporter writes them."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracer import otlp
from tracer.spans import Span


class UnusableTrace(ValueError):
    """A file that cannot be read as a trace; the text names the file and the reason."""


class TraceReader:
    """Reads the spans of one file; a line that is none is counted and told, never fatal.

    Attributes:
        bad_lines: (line number, reason) of the lines that could not be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bad_lines: list[tuple[int, str]] = []

    def spans(self) -> Iterator[Span]:
        """The spans, in the order of the file.

        Raises:
            UnusableTrace: the file cannot be opened, or holds no line that is OTLP.
        """
        good = 0
        try:
            with self._open() as lines:
                for number, line in enumerate(lines, start=1):
                    if not line.strip():
                        continue
                    try:
                        request = otlp.from_json(json.loads(line.decode("utf-8-sig")))
                    except (ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, no OTLP
                        self.bad_lines.append((number, str(error)))
                        continue
                    good += 1
                    yield from otlp.spans(request)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UnusableTrace(f"{self.path}: {reason}") from error
        if not good:
            why = f"line {self.bad_lines[0][0]}: {self.bad_lines[0][1]}" if self.bad_lines else "the file is empty"
            raise UnusableTrace(f"{self.path}: no OTLP JSON line in it ({why})")

    def _open(self) -> IO[bytes]:
        if self.path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(self.path, "rb"))
        return self.path.open("rb")


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


def _torn(path: Path) -> bool:
    """Whether a file ends within a line."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"

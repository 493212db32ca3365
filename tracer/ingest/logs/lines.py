"""From the bytes of a log to records: one message each, with its time and its process.

Logs may be pasted, coloured, prefixed by a process manager, joined by a progress bar, or wrapped by a terminal. A record
begins at a logger's header. Text before the header is the process's name, or is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import IO

from kvtrail.tracer.events.spans import LATEST_NS

MAX_BYTES = 1 << 20
"""Longer lines are read in pieces, so that a file without line ends cannot fill the memory."""
_DAY_NS = 86_400 * 10**9

_COLOUR = re.compile(r"(?:\x1b|\^\[|#033|\\x1b|\\033|\\u001[bB])\[[0-9;?]*[A-Za-z]|\ufffd?\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""Colour codes: with the escape character, with one of its spellings, or with the character lost or replaced."""
_ESCAPES = ("\x1b", "^[", "#033", "\\x1b", "\\033", "\\u001")
_LOST_ESCAPE = re.compile(r"\[\d{1,3}(?:;\d{1,3}){0,4}m")
_HEADER = re.compile(
    r"[\[DIWEC](?:(?<=\[)(?P<full>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)[,.](?P<fraction>\d{1,6})\]\s*LMCache\s+"
    r"(?P<level>[A-Z]+):\s*"
    r"|(?P<word>(?<=\bD)EBUG|(?<=\bI)NFO|(?<=\bW)ARNING|(?<=\bE)RROR|(?<=\bC)RITICAL)\s+"
    r"(?P<short>\d\d-\d\d \d\d:\d\d:\d\d)\s+\[?[\w./-]+:\d+\]\s*)"
)
"""A logger's header. It begins with a set of letters, which the engine finds much faster than two alternatives; so `word`
lacks its first letter."""
_DATED = re.compile(r"(?<!\d)(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?!\d)")
"""A time before a line without a header: from a container's runtime, or from a logger with another format."""
_DATE_FITS = 80
_RANK_AHEAD = re.compile(r"^\s*\[rank(\d{1,6})\]:?")
_NAMES = r"(?:\(?[\w.,:= -]*\bpid=\d+[\w.,:= -]*\)\s*)"
_BEFORE_HEADER = re.compile(_NAMES + r"{1,3}$")
_AHEAD = re.compile(r"(?:^|[\s:\]])" + r"((?:\([\w.,:= -]*\bpid=\d+[\w.,:= -]*\)\s*){1,3})")
_NAME = re.compile(r"([\w.,:= -]*)\bpid=(\d+)([\w.,:= -]*)\)")
_RANK = re.compile(r"TP(\d{1,6})|rank=(\d{1,6})")
_OPEN_END = re.compile(r"\bfor (?:unrecognized )?request\s*$")
"""A warning that was wrapped before the name of its request."""
_NAMES_FIT = 160


@dataclass(slots=True)
class Record:
    """One message. `process` identifies the process; it is empty if the process does not name itself. `precise` times have
    milliseconds, so that two equal messages at the same time are one message that was printed twice."""

    number: int
    text: str
    at_ns: int
    process: str = ""
    rank: int = 0
    precise: bool = False
    logged: bool = False
    """Whether it has its own time. Otherwise it has the time of the line before."""
    level: str = ""
    """The level in its own header, such as `WARNING`; empty without a header."""


class Lines:
    """Splits a log into records. Remembers the time and the process for lines that name none."""

    def __init__(self, *, file_ns: int) -> None:
        """`file_ns` is the time at which the file was last written, from which the year is guessed if no line has one."""
        self._file_ns = file_ns
        self._last_ns: int | None = None
        self._process, self._rank = "", 0

    def records(self, file: IO[bytes]) -> Iterator[Record]:
        """The records of a file, in its order; a warning that ends on the next line is one record."""
        number, torn = 0, False
        held: Record | None = None
        while line := file.readline(MAX_BYTES):
            number += not torn
            torn = not line.endswith(b"\n")
            for piece in line.decode("utf-8", errors="replace").rstrip("\r\n").split("\r"):  # a progress bar's returns
                for record in self.split(piece, number):
                    if held is not None and not record.logged:
                        held.text = f"{held.text} {record.text}"
                        yield held
                        held = None
                        continue
                    if held is not None:
                        yield held
                    held = record if _OPEN_END.search(record.text) else None
                    if held is None:
                        yield record
        if held is not None:
            yield held

    def split(self, line: str, number: int) -> Iterator[Record]:
        """The records of one line."""
        line = _without_colours(line.lstrip("\ufeff"))
        headers = list(_HEADER.finditer(line))
        if not headers:
            if line.strip():
                yield self._bare(line, number)
            return
        names = [
            _BEFORE_HEADER.search(line, max(before, header.start() - _NAMES_FIT), header.start())
            for before, header in zip([0, *(h.end() for h in headers)], headers, strict=False)
        ]
        ends = [*(n.start() if n else h.start() for n, h in zip(names, headers, strict=True)), len(line)][1:]
        for header, name, end in zip(headers, names, ends, strict=True):
            self._process, self._rank = _named(name[0]) if name else ("", 0)
            self._last_ns = self._time(header)
            text, precise = line[header.end() : end].strip(), header["full"] is not None
            level = header["level"] or header[0][0] + header["word"]
            yield Record(number, text, self._now(), self._process, self._rank, precise, True, level)

    def _bare(self, line: str, number: int) -> Record:
        """A line without a header. It has the time and the process of the line before, unless it has its own."""
        dated = False
        if date := _DATED.search(line[:_DATE_FITS]):
            seconds = _seconds(date[1].replace("T", " "))
            if seconds is not None:
                self._last_ns = seconds * 10**9 + int((date[2] or "0").ljust(9, "0"))
                dated = True
        names = _AHEAD.search(line[:_NAMES_FIT])
        process, rank = self._process, self._rank
        if names:
            process, rank = _named(names[1])
            line = line[names.end() :]
        elif own := _RANK_AHEAD.match(line):
            process, rank = f"rank{own[1]}", int(own[1])
            line = line[own.end() :]
        return Record(number, line.strip(), self._now(), process, rank, logged=dated)

    def _now(self) -> int:
        return self._file_ns if self._last_ns is None else self._last_ns

    def _time(self, header: re.Match[str]) -> int | None:
        if header["full"]:
            seconds = _seconds(header["full"].replace("T", " "))
            return self._last_ns if seconds is None else seconds * 10**9 + int(header["fraction"].ljust(9, "0"))
        return self._without_year(header["short"])

    def _without_year(self, text: str) -> int | None:
        """A time with a guessed year: nearest to the line before, or else not after the file's time. vLLM prints no year."""
        near = self._now()
        year = datetime.fromtimestamp(near / 1e9, UTC).year
        times = [s * 10**9 for y in (year - 1, year, year + 1) if (s := _seconds(f"{y:04}-{text}")) is not None]
        if self._last_ns is None:
            times = [t for t in times if t <= near + _DAY_NS][-1:]
        return min(times, key=lambda t: abs(t - near), default=self._last_ns)


def _without_colours(text: str) -> str:
    if any(escape in text for escape in _ESCAPES) or _LOST_ESCAPE.search(text) is not None:
        return _COLOUR.sub("", text)
    return text


@lru_cache(maxsize=64)
def _seconds(text: str) -> int | None:
    try:
        seconds = int(datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
    except ValueError:  # a damaged date
        return None
    return seconds if 0 <= seconds < LATEST_NS // 10**9 - 1 else None


def _named(names: str) -> tuple[str, int]:
    """The process's key and rank. The last name counts: a Ray worker's stands behind that of its engine. The key leaves
    out the name itself, with its beginning possibly truncated."""
    name = list(_NAME.finditer(names))[-1]
    rank = _RANK.search(name[0])
    return f"pid={name[2]}{name[3].rstrip()}", int(rank[1] or rank[2]) if rank else 0

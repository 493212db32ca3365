"""Reads plain and compressed files, including truncated ones.

A file's first bytes, not its name, determine its compression. The file of a killed writer ends within a compressed block, or
within a line: everything before that is read, and `Source.damage` describes the rest.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

STDIN = Path("-")
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = tuple(bytes((n, 0x2A, 0x4D, 0x18)) for n in range(0x50, 0x60))
_LONGEST_START = len(ZSTD)
_CHUNK = 1 << 16
_BUFFER = 1 << 18


class _Decompressor(Protocol):
    """The common interface of zlib's and zstandard's decompressors; each instance reads one member, or frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class Source(io.RawIOBase):
    """The text of a compressed file: its members or frames, one after the other.

    Attributes:
        damage: why the text ends before the file does; None if it does not.
    """

    def __init__(self, raw: IO[bytes], make: Callable[[], _Decompressor], starts: tuple[bytes, ...]) -> None:
        self.damage: str | None = None
        self._raw = raw
        self._make = make
        self._starts = starts
        self._decompressor: _Decompressor | None = None
        self._rest = b""
        self._text = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text and self.damage is None:
            data, self._rest = self._rest, b""
            if len(data) < _LONGEST_START:  # the beginning of a frame may lie across two chunks
                data += self._raw.read(_CHUNK)
            if not data:
                if self._decompressor is not None:
                    self.damage = "the file is damaged: it ends within a compressed block"
                break
            self._text = memoryview(self._decompressed(data))
        size = min(len(buffer), len(self._text))
        buffer[:size] = self._text[:size]
        self._text = self._text[size:]
        return size

    def _decompressed(self, data: bytes) -> bytes:
        """The text of some bytes of the file; empty if they are damaged."""
        if self._decompressor is None:
            if not data.startswith(self._starts):
                if data.strip(b"\0"):  # zeros are padding
                    self.damage = "the file is damaged: what follows a compressed block is none"
                return b""
            self._decompressor = self._make()
        try:
            text = self._decompressor.decompress(data)
        except Exception as error:  # zlib's and zstandard's errors have no base in common
            self.damage = f"the file is damaged: {error}"
            return b""
        if self._decompressor.eof:
            self._rest = self._decompressor.unused_data
            self._decompressor = None
        return text


class _File(io.FileIO):
    """A file on the disk that reports how many bytes each read gives."""

    def readinto(self, buffer: Any) -> int | None:
        size = super().readinto(buffer)
        for on_read in _watching:
            on_read(size or 0)
        return size


_watching: list[Callable[[int], object]] = []


@contextmanager
def watched(on_read: Callable[[int], object]) -> Iterator[None]:
    """A context in which `on_read` is called with the number of bytes of each read of a file."""
    _watching.append(on_read)
    try:
        yield
    finally:
        _watching.remove(on_read)


@contextmanager
def opened(path: Path) -> Iterator[tuple[io.BufferedReader, Source | None]]:
    """The text of a file, and its `Source` if it is compressed; `-` is the standard input.

    Raises:
        OSError: the file cannot be opened, or is a device.
    """
    if path == STDIN:
        yield _text(sys.stdin.buffer)
        return
    with io.BufferedReader(_File(path), _BUFFER) as file:
        if stat.S_ISCHR(os.fstat(file.fileno()).st_mode) and not file.raw.isatty():
            raise OSError("a device, which may never end")
        yield _text(file)


def _text(raw: Any) -> tuple[io.BufferedReader, Source | None]:
    begins = raw.peek(1)[:_LONGEST_START] if hasattr(raw, "peek") else b""  # a test's standard input has no `peek`
    if begins.startswith(GZIP):
        source = Source(raw, lambda: zlib.decompressobj(wbits=31), (GZIP,))
    elif begins == ZSTD or begins in _ZSTD_SKIPPABLE:
        source = Source(raw, zstd, (ZSTD, *_ZSTD_SKIPPABLE))
    else:
        return raw, None
    return io.BufferedReader(source, _BUFFER), source


def zstd() -> _Decompressor:
    """A decompressor of one zstd frame."""
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()

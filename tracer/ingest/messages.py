"""The messages of a trace file.

A message is a line of OTLP JSON; or, as the OpenTelemetry Collector's file exporter writes with `format: proto` or
`compression: zstd`, it stands behind its length in four bytes, the highest first, JSON or protobuf, compressed or not. The
bytes tell which, never the file's name.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from kvtrail.tracer.ingest import files

_NO_TEXT = b"\x08"
"""No text begins with a byte up to this one; the length of a message of less than 144 MiB does."""
_LENGTH_BYTES = 4
_LONGEST = 1 << 30
"""Bytes of a message: a longer one is taken for damage."""


def is_framed(start: bytes) -> bool:
    """Whether a file that begins so holds messages with their lengths."""
    return bool(start) and start[:1] <= _NO_TEXT


@dataclass(slots=True)
class Message:
    """One message as it lies in the file, without its length."""

    data: bytes
    is_json: bool
    damage: str | None = None

    @property
    def empty(self) -> bool:
        return len(self.data) <= len(b"\r\n") and not self.data.strip()

    def text(self) -> str:
        if self.damage is not None:
            raise ValueError(self.damage)
        return self.data.decode("utf-8-sig")


def messages(file: io.BufferedReader) -> Iterator[Message]:
    """The messages of a file. What is no message says so when it is read."""
    if not is_framed(file.peek(1)):
        for line in file:
            yield Message(line, is_json=True)
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
        except Exception as error:  # zstandard's error has no base that says what it is
            damage = f"a message is damaged: {error}"
    return Message(data, is_json=damage is not None or data.startswith(b"{"), damage=damage)

"""The few pieces of protobuf's wire format that OTLP spans need.

https://protobuf.dev/programming-guides/encoding/ and opentelemetry/proto/common/v1/common.proto.
"""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    """A protobuf varint; negative numbers as 64-bit two's complement."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(tag: int, payload: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(len(payload)) + payload


Value = bool | int | float | str | tuple[int, ...] | tuple[str, ...]


def _any_value(value: Value) -> bytes:
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value)
    if isinstance(value, float):
        return b"\x21" + struct.pack("<d", value)
    if isinstance(value, tuple):
        return field(5, b"".join(field(1, _any_value(item)) for item in value))
    return field(1, value.encode("utf-8", "replace"))


def key_value(key: str, value: Value) -> bytes:
    """The body of a `KeyValue` message."""
    return field(1, key.encode()) + field(2, _any_value(value))


def attribute(key: str, value: Value) -> bytes:
    """An attribute as a field of `Span`."""
    return field(9, key_value(key, value))

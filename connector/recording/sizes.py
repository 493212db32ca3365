"""What is too large for a span: a receiver may refuse it, and everything else goes on without."""

from __future__ import annotations

import hashlib
from itertools import compress
from typing import Any

from kvtrail.connector.recording.ring import MAY_BE_LARGE

MAX_ITEMS = 65_536
"""Items of a list: the blocks of a prompt of a million tokens."""
MAX_BYTES = 1 << 19
"""Of a byte string, and of all texts of a list: the hashes of as many blocks. kvtrail takes 1 MiB over gRPC."""
MAX_TEXT = 4096
"""Characters of a text; of a longer one the beginning is recorded, and a digest of all of it."""
_KEPT = 1024


def bounded(kind: str, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """The values of an event, with None for lists and bytes that are too large, and long texts cut; and whether anything is
    None for that."""
    small, left_out = list(values), False
    for n, value in compress(enumerate(values), MAY_BE_LARGE[kind]):
        if type(value) is str:
            small[n] = _cut(value)
        elif value is not None and _is_too_large(value):
            small[n], left_out = None, True
    return tuple(small), left_out


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{text[:_KEPT]}~{digest}"


def _is_too_large(value: Any) -> bool:
    try:
        if isinstance(value, bytes | bytearray | memoryview):
            return len(value) > MAX_BYTES
        return len(value) > MAX_ITEMS or (isinstance(value[0], str) and sum(map(len, value)) > MAX_BYTES)
    except Exception:  # an odd object: what it is, is found when it is encoded
        return False

"""JSON as SQLite takes it: what the store keeps and asks for in lists is text, into which SQLite can look."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
from_text = msgspec.json.Decoder().decode
"""The data of a text. Raises ValueError where it is no JSON."""


def to_text(data: Any) -> str:
    """The text of JSON-ready data."""
    return _encode(data).decode()

"""What a block holds that does not hold what was computed under its hash."""

from __future__ import annotations

from typing import NamedTuple

ZEROS, CONTAMINATED, UNKNOWN = "zeros", "poison", "unknown"
"""As they are recorded."""


class Origin(NamedTuple):
    """Where a content was computed: the request, the first token of the block in it or, of a recurrent state, the tokens that
    it has seen, what the request's KV and hashes depend on besides tokens, and the number of the KV cache group."""

    request_id: str
    token: int
    identity: str
    group: int = 0


class Mismatch(NamedTuple):
    """What a block holds instead of what was computed under its hash: zeros, what was computed after a mismatch, something
    unknown, or another block's content, by its origin. `layers` are the numbers of those that differ, where known."""

    holds: str | Origin
    layers: tuple[int, ...]


Match = Mismatch | bool | None
"""True for a block that holds what was computed under its hash, else what it holds instead; None where nobody knows."""

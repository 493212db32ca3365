"""What a block holds that does not hold what was computed under its hash."""

from __future__ import annotations

from typing import Literal, NamedTuple

ZEROS, CONTAMINATED, UNKNOWN = "zeros", "poison", "unknown"
"""As they are recorded."""


class Origin(NamedTuple):
    """Where a content was computed: the request, the first token of the block in it or, of a recurrent state, the tokens that
    it has seen, and the number of the KV cache group."""

    request_id: str
    token: int
    group: int = 0


Holds = str | Origin
"""What a mismatched block holds instead of what was computed under its hash: zeros, what was computed after a mismatch,
something unknown, or another block's content, by its origin."""
Match = Holds | Literal[True] | None
"""True for a block that holds what was computed under its hash, else what it holds instead; None where nobody knows."""

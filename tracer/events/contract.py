"""The arithmetic of a lookup. The rules use it to judge answers, and the connector's guard uses it to repair them.

Source: the docstring of `KVConnectorBase_V1.get_num_new_matched_tokens` in vLLM 0.32 ("beyond the
num_computed_tokens") and the scheduler that acts on the answer (`Scheduler.schedule`: local + external computed tokens
are asserted to be at most the request's; at least one token must be left to run in a synchronous step).

Symbols, all counting tokens: N of the request, c computed by vLLM, h matched in the store, e returned.
"""

from __future__ import annotations

from enum import Enum


class Breach(Enum):
    """The clause of the contract that an answer breaks."""

    NOT_NEW = "0 <= e <= max(0, min(h, N) - c)"
    NOTHING_TO_RUN = "c + e <= N - 1 for a synchronous load"


NOT_NEW, NOTHING_TO_RUN = Breach.NOT_NEW, Breach.NOTHING_TO_RUN
"""A name is looked up several times faster than a member of an enum."""


def new_at_most(total: int, computed: int, matched: int | None) -> int:
    """The largest number of tokens that can be new: max(0, min(h, N) - c), with h = N if the connector hides its match."""
    return max(0, (total if matched is None else min(matched, total)) - computed)


def breach(total: int, computed: int, matched: int | None, returned: int | None, is_async: bool) -> Breach | None:
    """The clause that the answer `returned` breaks, or None. An answer of None ("ask me later") breaks nothing.

    Too few tokens are legal: a connector need not load all that it holds.
    """
    if not returned:
        return None
    held = total if matched is None or matched > total else matched
    if returned < 0 or computed + returned > held:
        return NOT_NEW
    if not is_async and computed + returned >= total:
        return NOTHING_TO_RUN
    return None

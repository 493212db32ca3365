"""LMCache in a process of its own: its connector's tracker of a request says what matched, its metadata what is copied.

Known: the connector of LMCache 0.5.6, which counts tokens, and the one that vLLM 0.32 brings along, which counts blocks. One
that keeps its books in another way is left unseen, not guessed at.
"""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.probe import Planned, Probe, Seen

_FOREIGN = (AttributeError, TypeError)
"""What reading raises where a connector keeps its books in another way."""


class LMCacheMPProbe(Probe):
    """The scheduler's side; what a server moves is not seen."""

    def chunk_size(self, connector: Any) -> int | None:
        adapter = getattr(connector, "scheduler_adapter", None)  # a worker has none
        size = getattr(adapter, "lmcache_tokens_per_chunk", getattr(adapter, "chunk_size", None))
        return size if isinstance(size, int) else None

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """LMCache asks its server once for an admission, and says the same, subtracted anew, until then: no answer is
        remembered. Of a lookup that it does not carry out nothing is known."""
        try:
            tracker = connector.request_trackers[request.request_id]
            if hasattr(tracker, "num_lmcache_hit_tokens"):
                matched = tracker.num_lmcache_hit_tokens
            else:
                matched = tracker.num_lmcache_hit_blocks * connector.vllm_block_size
            return matched or None, None  # it is 0 as long as nothing is known
        except (*_FOREIGN, KeyError):
            return None, None

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        """The tokens that are copied. The first of a retrieval may be in vLLM's cache already, and are then skipped."""
        try:
            loads = [_planned(request) for request in metadata.requests if request.direction != "STORE"]
            stores = [_planned(request) for request in metadata.requests if request.direction == "STORE"]
        except _FOREIGN:
            return None
        return Seen(loads, stores) if loads or stores else None


def blocks_of(op: Any) -> tuple[int, ...] | None:
    """The blocks of a transfer; None if they are of several KV cache groups."""
    blocks = op.block_ids
    if blocks and not isinstance(blocks[0], int):
        return tuple(blocks[0]) if len(blocks) == 1 else None
    return tuple(blocks)


def _planned(request: Any) -> Planned:
    op = request.op
    return Planned(request.request_id, op.start, op.end - op.start, blocks_of(op))


PROBE = LMCacheMPProbe

"""LMCache in a separate process: the connector's tracker of a request shows the match, and its metadata shows the copies.

Known: the connector of LMCache 0.5.6, which counts tokens, and the one that comes with vLLM 0.32, which counts blocks. A
connector with another layout is handled as in `known.lmcache.probe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrail.connector.known.lmcache.probe import OTHER_LAYOUT, PlanReader
from kvtrail.connector.known.probe import Planned


class LMCacheMPProbe(PlanReader):
    """The scheduler's side. The server's copies cannot be observed."""

    def chunk_size(self, connector: Any) -> int | None:
        adapter = getattr(connector, "scheduler_adapter", None)  # a worker has none
        size = getattr(adapter, "lmcache_tokens_per_chunk", getattr(adapter, "chunk_size", None))
        return size if isinstance(size, int) else None

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """LMCache asks its server once for each admission and subtracts in every lookup until then, so no answer counts as
        remembered. A lookup that it does not carry out leaves no trace."""
        try:
            tracker = connector.request_trackers[request.request_id]
            if hasattr(tracker, "num_lmcache_hit_tokens"):
                matched = tracker.num_lmcache_hit_tokens
            else:
                matched = tracker.num_lmcache_hit_blocks * connector.vllm_block_size
            return matched or None, None  # 0 until the server has answered
        except (*OTHER_LAYOUT, KeyError):
            return None, None

    def plans(self, connector: Any, metadata: Any) -> tuple[Sequence[Planned], Sequence[Planned]]:
        """The copied tokens. The first tokens of a retrieval may already be in vLLM's cache; workers skip them."""
        loads = [_planned(request) for request in metadata.requests if request.direction != "STORE"]
        return loads, [_planned(request) for request in metadata.requests if request.direction == "STORE"]


def blocks_of(op: Any) -> tuple[int, ...] | None:
    """The blocks of a transfer; None if they are of several KV cache groups."""
    blocks = op.block_ids
    if blocks and not isinstance(blocks[0], int):
        return tuple(blocks[0]) if len(blocks) == 1 else None
    return tuple(blocks)


def _planned(request: Any) -> Planned:
    """The plan of a transfer. If its end precedes its start, it has no tokens."""
    op = request.op
    return Planned(request.request_id, op.start, max(0, op.end - op.start), blocks_of(op))


PROBE = LMCacheMPProbe

"""LMCache in a process of its own: the connector's tracker of a request shows what matched, its metadata what is copied.

Known: the connector of LMCache 0.5.6, which counts tokens, and the one that comes with vLLM 0.32, which counts blocks. For
one with another layout nothing is reported; nothing is guessed. But of one that was read before nothing is left out: what
looks wrong is reported as it is, and what cannot be read raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrail.connector.known.lmcache.probe import OTHER_LAYOUT, PlanReader
from kvtrail.connector.known.probe import Planned


class LMCacheMPProbe(PlanReader):
    """The scheduler's side. What the server moves cannot be seen."""

    def chunk_size(self, connector: Any) -> int | None:
        adapter = getattr(connector, "scheduler_adapter", None)  # a worker has none
        size = getattr(adapter, "lmcache_tokens_per_chunk", getattr(adapter, "chunk_size", None))
        return size if isinstance(size, int) else None

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """LMCache asks its server once for each admission and subtracts again in every lookup until then, so no answer counts
        as remembered. A lookup that it does not carry out shows nothing."""
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
        """The tokens that are copied. The first tokens of a retrieval may be in vLLM's cache already; workers skip them."""
        loads = [_planned(request) for request in metadata.requests if request.direction != "STORE"]
        return loads, [_planned(request) for request in metadata.requests if request.direction == "STORE"]


def blocks_of(op: Any) -> tuple[int, ...] | None:
    """The blocks of a transfer; None if they are of several KV cache groups."""
    blocks = op.block_ids
    if blocks and not isinstance(blocks[0], int):
        return tuple(blocks[0]) if len(blocks) == 1 else None
    return tuple(blocks)


def _planned(request: Any) -> Planned:
    """One that would end before it begins is one of no tokens."""
    op = request.op
    return Planned(request.request_id, op.start, max(0, op.end - op.start), blocks_of(op))


PROBE = LMCacheMPProbe

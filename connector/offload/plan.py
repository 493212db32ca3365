"""What the workers copy in one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between a request's KV blocks and a part of a chunk's slot.

    Attributes:
        request_id: the request with these tokens.
        start: position of the first token.
        count: tokens that the copy is for; the last block may hold one more (see `OffloadScheduler.admitted`).
        slot: the chunk's slot in host memory.
        first: which of the blocks that the slot has room for is the first one, of those of the group.
        blocks: the KV blocks, in the order of their tokens. None, if nothing of the chunk is at hand, or is needed.
        key: the chunk's key, shortened hex; for the probe.
        group: the KV cache group of the blocks.
    """

    request_id: str
    start: int
    count: int
    slot: int
    first: int
    blocks: tuple[int, ...]
    key: str
    group: int = 0


@dataclass
class OffloadPlan(KVConnectorMetadata):
    """The copies of one step, those of a chunk side by side. All loads come before the forward pass, all stores after it.
    `present` chunks were held already; of them only blocks are copied that they lacked. `refused` are the requests without
    room for their next chunk, and where that begins. With copies beside the steps, `given` are the blocks that vLLM gives
    to requests to be written: before that, the stores that read them must have ended."""

    loads: list[Copy] = field(default_factory=list)
    stores: list[Copy] = field(default_factory=list)
    present: list[Copy] = field(default_factory=list)
    refused: list[tuple[str, int]] = field(default_factory=list)
    given: set[int] = field(default_factory=set)

    def to_store(self) -> list[Copy]:
        """The copies into host memory, among them those of blocks that chunks lacked."""
        return self.stores + [copy for copy in self.present if copy.blocks]

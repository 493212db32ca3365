"""The workers' copies of one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between a request's KV blocks and a part of a chunk's slot.

    Attributes:
        request_id: the request with these tokens.
        start: position of the first token.
        count: number of tokens of the copy; the last block may hold one more (see `OffloadScheduler.admitted`).
        slot: the chunk's slot in host memory.
        first: position of the first block among the group's blocks in the slot.
        blocks: the KV blocks, in the order of their tokens; empty if no block of the chunk is available, or needed.
        key: the chunk's key as shortened hex, for the probe.
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
    """The copies of one step; copies of a chunk are adjacent. All loads run before the forward pass, all stores after it.
    `present` chunks were already held; only their missing blocks are copied. `refused` are the requests whose next chunk does
    not fit, with its first token. With concurrent copies, `given` are the blocks that vLLM allocates to requests for writing:
    stores that read them must end first."""

    loads: list[Copy] = field(default_factory=list)
    stores: list[Copy] = field(default_factory=list)
    present: list[Copy] = field(default_factory=list)
    refused: list[tuple[str, int]] = field(default_factory=list)
    given: set[int] = field(default_factory=set)

    def to_store(self) -> list[Copy]:
        """The copies into host memory, including copies of missing blocks."""
        return self.stores + [copy for copy in self.present if copy.blocks]

"""What the workers copy in one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between a request's KV blocks and a part of a chunk's slot.

    Attributes:
        request_id: whose tokens they are.
        start: position of the first token.
        count: tokens that the copy is for; the last block may hold one more (see `OffloadScheduler.admitted`).
        slot: the chunk's slot in host memory.
        first: number of the first block inside the chunk.
        blocks: the KV blocks, in the order of their tokens.
        key: the chunk's key, shortened hex; for the probe.
    """

    request_id: str
    start: int
    count: int
    slot: int
    first: int
    blocks: tuple[int, ...]
    key: str


@dataclass
class OffloadPlan(KVConnectorMetadata):
    """The copies of one step. All loads come before the forward pass, all stores after it. `present` chunks are stored
    already and are not copied. `refused` are the requests for whose next chunk there is no room, and where that begins."""

    loads: list[Copy] = field(default_factory=list)
    stores: list[Copy] = field(default_factory=list)
    present: list[Copy] = field(default_factory=list)
    refused: list[tuple[str, int]] = field(default_factory=list)

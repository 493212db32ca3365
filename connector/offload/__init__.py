"""OffloadConnector: real offload of KV blocks to host memory, correct by construction.

`scheduler` decides, `plan` carries the decision to the workers, `transfers` knows when to copy, and `host_memory` copies.
`config` is the validated configuration, `groups` describes the needs of each kind of layer. This file is vLLM's interface to
them and does not depend on tracing: `connector.OffloadConnector` is this class, traced like any other connector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from kvtrail.connector.offload.config import from_vllm
from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.offload.plan import Copy, OffloadPlan
from kvtrail.connector.offload.scheduler import OffloadScheduler
from kvtrail.connector.offload.transfers import Transfers

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # before 0.32 vLLM does not ask where a hit came from
    HIT_SOURCE: Any = None
else:
    HIT_SOURCE = CacheHitSource.HOST


class UntracedOffloadConnector(KVConnectorBase_V1, SupportsHMA):
    """Chunks of KV in host memory, looked up by the longest stored prefix and saved as soon as they are computed."""

    _cache_hit_source = HIT_SOURCE
    answered_from_memory = False
    """Whether the last lookup was answered from memory: only with an injected fault."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = config = from_vllm(vllm_config, kv_cache_config)
        self.chunk_size = config.chunk_size
        """Tokens per chunk."""
        self._load_async = config.load_async
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = OffloadScheduler(config, drafts=vllm_config.speculative_config is not None)
        else:
            self._memory = HostMemory(config, num_blocks=kv_cache_config.num_blocks)
        self._transfers: Transfers | None = None
        """A worker's, once its KV caches are registered."""

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: a lost store only causes a later miss

    # Scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tokens = self._scheduler.new_tokens(request, num_computed_tokens)
        return tokens, self._load_async and tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tables = blocks.get_block_ids()
        if not any(tables) and (manager := getattr(self, "_kv_cache_manager", None)) is not None:
            tables = manager.get_block_ids(request.request_id)  # a MultiConnector shows them to the child that loads
        self._scheduler.admitted(request, num_external_tokens, tables)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return self._scheduler.end_step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        if blocks := connector_output.invalid_block_ids:
            self._scheduler.load_failed(blocks)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0])

    def reset_cache(self) -> bool:
        self._scheduler.reset()
        return True

    # Worker's side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._memory.register(kv_caches)
        self._transfers = Transfers(self._memory, beside=self._load_async)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        if self._transfers is not None and isinstance(kv_connector_metadata, OffloadPlan):
            self._transfers.wait_for_blocks(kv_connector_metadata.given)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.handle_preemptions(connector_metadata)  # an older vLLM calls this only in some steps

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if copies := self._bound_plan().loads:
            self.load_chunks(copies)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All layers are loaded before the forward pass begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """All layers are stored when the forward pass has ended."""

    def wait_for_save(self) -> None:
        if copies := self._bound_plan().to_store():
            self.store_chunks(copies)

    def load_chunks(self, copies: Sequence[Copy]) -> None:
        """Copy from host memory into KV blocks, or start to."""
        self._copying().load(copies)

    def store_chunks(self, copies: Sequence[Copy]) -> None:
        """Copy from KV blocks into host memory, or start to."""
        self._copying().store(copies)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, (self._transfers.take_loaded() or None) if self._transfers is not None else None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self._transfers is None else self._transfers.take_failed()

    def shutdown(self) -> None:
        if self._transfers is not None:
            self._transfers.close()

    def _copying(self) -> Transfers:
        assert self._transfers is not None, "vLLM registers the KV caches before it runs a step"
        return self._transfers

    # State for a probe.

    @property
    def last_matched(self) -> int:
        """Tokens of the stored prefix that the last lookup matched."""
        return self._scheduler.last_matched

    def in_groups(self, copies: Sequence[Copy]) -> list[tuple[tuple[int, ...], int]]:
        """For each KV cache group, the blocks that the copies of one chunk name, and the first token of the first one."""
        found: list[tuple[tuple[int, ...], int]] = [((), 0)] * len(self._config.groups)
        for copy in copies:
            first = self._config.chunk_end(copy.start, copy.group) - self._config.rows[copy.group] + copy.first
            found[copy.group] = copy.blocks, first * self._config.groups[copy.group].block_size
        return found

    @property
    def has_groups(self) -> bool:
        """Whether there are several KV cache groups."""
        return len(self._config.groups) > 1

    def hashes_of(self, copy: Copy) -> list[bytes]:
        """vLLM's hashes of the blocks that a copy stores; for a group with chunks that are stored completely, the last
        block's hash."""
        group, end = self._config.groups[copy.group], self._config.chunk_end(copy.start, copy.group)
        first = end - self._config.rows[copy.group] + copy.first
        places = [end - 1] if group.is_whole else range(first, first + len(copy.blocks))
        hashes = self._scheduler.hashes_of(copy.request_id)
        per_block = group.block_size // self._config.hash_size
        return [hashes[(place + 1) * per_block - 1] for place in places]

    def take_evicted(self) -> list[tuple[str, int, int, str | None]]:
        """The chunks that left host memory since the last call: key, tokens and bytes of each, and the request that pushed it
        out."""
        return self._scheduler.take_evicted()

    def bytes_of(self, copy: Copy) -> int:
        """Bytes that a copy of a plan moves on this worker."""
        return self._memory.bytes_of(copy)

    def _bound_plan(self) -> OffloadPlan:
        return cast(OffloadPlan, self._get_connector_metadata())

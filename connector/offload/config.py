"""The OffloadConnector's configuration, checked at start-up: an error is one sentence, before a model loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_CHUNK_SIZE = 256
DEFAULT_HOST_BYTES = 4 * 1024**3
KEYS = ("chunk_size", "cpu_bytes_to_use")
SHARED_KEYS = ("kvtrail",)
"""Read by `kvtrail.connector.settings`."""


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """What the scheduler and the worker must agree on.

    Attributes:
        chunk_size: tokens that are stored, found and evicted together.
        block_size: tokens per KV block.
        block_bytes: bytes of one KV block over all layers, on one worker.
        slots: chunks that fit into the budget, on each worker.
    """

    chunk_size: int
    block_size: int
    block_bytes: int
    slots: int

    @property
    def blocks_per_chunk(self) -> int:
        return self.chunk_size // self.block_size

    @property
    def chunk_bytes(self) -> int:
        return self.blocks_per_chunk * self.block_bytes

    @classmethod
    def read(cls, given: Mapping[str, Any], *, block_size: int, block_bytes: int) -> OffloadConfig:
        """Check `kv_connector_extra_config` against the KV cache's layout.

        Raises:
            ValueError: an unknown key, a value that is not a positive integer, a chunk that is not a multiple of a block,
                or a budget that holds no chunk; one sentence names the key, the value and the reason.
        """
        if unknown := sorted(set(given) - {*KEYS, *SHARED_KEYS}):
            raise ValueError(f"OffloadConnector: unknown key {unknown[0]!r}; known: {', '.join((*KEYS, *SHARED_KEYS))}")
        chunk_size = _positive(given, "chunk_size", DEFAULT_CHUNK_SIZE)
        budget = _positive(given, "cpu_bytes_to_use", DEFAULT_HOST_BYTES)
        if chunk_size % block_size:
            raise ValueError(
                f"OffloadConnector: chunk_size is {chunk_size}, which is not a multiple of vLLM's block size {block_size}"
            )
        chunk_bytes = chunk_size // block_size * block_bytes
        if budget < chunk_bytes:
            raise ValueError(
                f"OffloadConnector: cpu_bytes_to_use is {budget}, which is less than one chunk of {chunk_size} tokens"
                f" ({chunk_bytes} bytes on each worker)"
            )
        return cls(chunk_size, block_size, block_bytes, slots=budget // chunk_bytes)


def _positive(given: Mapping[str, Any], key: str, default: int) -> int:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"OffloadConnector: {key} is {value!r}; it must be a whole number above 0")
    return value


def from_vllm(vllm_config: Any, kv_cache_config: Any) -> OffloadConfig:
    """The configuration for this engine.

    Raises:
        ValueError: bad keys (see `OffloadConfig.read`), or an engine whose KV cache this connector cannot offload.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups) or "none"
        raise ValueError(f"OffloadConnector: it offloads one group of full-attention layers; this model has: {kinds}")
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ValueError("OffloadConnector: context parallelism spreads a block over ranks, which it does not support")
    return OffloadConfig.read(
        vllm_config.kv_transfer_config.kv_connector_extra_config or {},
        block_size=vllm_config.cache_config.block_size,
        block_bytes=groups[0].kv_cache_spec.page_size_bytes * len(groups[0].layer_names),
    )

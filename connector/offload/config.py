"""The OffloadConnector's configuration, validated at start-up: an error is one sentence, before a model loads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvtrail.connector.kv_layout import hash_size
from kvtrail.connector.offload.groups import Group, group_of
from kvtrail.tracer.events.cache_groups import FULL, MAMBA

DEFAULT_CHUNK_SIZE = 256
DEFAULT_HOST_BYTES = 4 * 1024**3
KEYS = ("chunk_size", "cpu_bytes_to_use", "load_async")
SHARED_KEYS = ("kvtrail",)
"""Read by `kvtrail.connector.settings`."""


@dataclass(frozen=True)
class OffloadConfig:
    """The settings that the scheduler and the worker share.

    Attributes:
        chunk_size: number of tokens that are stored, found and evicted together.
        hash_size: number of tokens of each of vLLM's block hashes.
        groups: the KV cache groups, in vLLM's order.
        slots: number of chunks that fit into the budget, on each worker.
        load_async: whether copies run concurrently with the steps, and requests wait for their loads between steps.
    """

    chunk_size: int
    hash_size: int
    groups: tuple[Group, ...]
    slots: int
    load_async: bool = False

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """For each group, the number of blocks in a slot: those at the end of its chunk."""
        return tuple(group.rows(self.chunk_size) for group in self.groups)

    @cached_property
    def chunk_bytes(self) -> int:
        return _chunk_bytes(self.chunk_size, self.groups)

    def chunk_end(self, token: int, group: int) -> int:
        """The blocks of a group from a request's first token to the end of the chunk that holds this token."""
        return (token // self.chunk_size + 1) * self.chunk_size // self.groups[group].block_size

    @cached_property
    def sees_all(self) -> bool:
        """Whether all layers see all tokens. If not, a hit ends with a chunk."""
        return all(group.cache.kind == FULL for group in self.groups)

    @classmethod
    def read(cls, given: Mapping[str, Any], *, hash_size: int, groups: Sequence[Group]) -> OffloadConfig:
        """Check `kv_connector_extra_config` against the KV cache's layout.

        Raises:
            ValueError: an unknown key, a value of the wrong type, a chunk that is not a multiple of all groups' blocks, a
                budget that holds no chunk, or loads within the step that would come too late; one sentence names the key,
                the value and the reason.
        """
        if unknown := sorted(set(given) - {*KEYS, *SHARED_KEYS}):
            raise ValueError(f"OffloadConnector: unknown key {unknown[0]!r}; known: {', '.join((*KEYS, *SHARED_KEYS))}")
        blocks = math.lcm(hash_size, *(group.block_size for group in groups))
        chunk_size = _positive(given, "chunk_size", _default_chunk_size(blocks, groups))
        budget = _positive(given, "cpu_bytes_to_use", DEFAULT_HOST_BYTES)
        if chunk_size % blocks:
            raise ValueError(
                f"OffloadConnector: chunk_size is {chunk_size}, which is not a multiple of vLLM's block size {blocks}"
            )
        chunk_bytes = _chunk_bytes(chunk_size, groups)
        if budget < chunk_bytes:
            raise ValueError(
                f"OffloadConnector: cpu_bytes_to_use is {budget}, which is less than one chunk of {chunk_size} tokens"
                f" ({chunk_bytes} bytes on each worker)"
            )
        has_states = any(group.cache.kind == MAMBA for group in groups)
        load_async = given.get("load_async", has_states)
        if not isinstance(load_async, bool):
            raise ValueError(f"OffloadConnector: load_async is {load_async!r}; it must be true or false")
        if has_states and not load_async:
            raise ValueError(
                "OffloadConnector: load_async is False, and vLLM reads recurrent states (MambaSpec) before a load within the"
                " step can bring them"
            )
        return cls(chunk_size, hash_size, tuple(groups), slots=budget // chunk_bytes, load_async=load_async)


def _chunk_bytes(chunk_size: int, groups: Sequence[Group]) -> int:
    return sum(group.rows(chunk_size) * group.block_bytes for group in groups)


def _default_chunk_size(blocks: int, groups: Sequence[Group]) -> int:
    """A recurrent state is available where a step ends, which vLLM makes a block's end: the smallest chunks include the most
    states."""
    if any(group.has_few_states for group in groups):
        return blocks
    return -(-DEFAULT_CHUNK_SIZE // blocks) * blocks


def _positive(given: Mapping[str, Any], key: str, default: int) -> int:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"OffloadConnector: {key} is {value!r}; it must be a whole number above 0")
    return value


def from_vllm(vllm_config: Any, kv_cache_config: Any) -> OffloadConfig:
    """The configuration for this engine.

    Raises:
        ValueError: bad keys (see `OffloadConfig.read`), or an engine with a KV cache that this connector cannot offload.
    """
    given = kv_cache_config.kv_cache_groups
    groups = [group_of(group.kv_cache_spec, group.layer_names) for group in given]
    known = [group for group in groups if group is not None]
    if len(known) != len(groups) or not known:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in given) or "none"
        raise ValueError(
            "OffloadConnector: it offloads layers with full attention, sliding windows, local attention, and recurrent states"
            f" where vLLM caches their prefixes; this model has: {kinds}"
        )
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ValueError("OffloadConnector: context parallelism spreads a block over ranks, which it does not support")
    if vllm_config.speculative_config is not None and any(group.cache.kind == MAMBA for group in known):
        raise ValueError(
            "OffloadConnector: it does not support speculative tokens together with recurrent states (MambaSpec)"
        )
    return OffloadConfig.read(
        vllm_config.kv_transfer_config.kv_connector_extra_config or {},
        hash_size=hash_size(vllm_config, kv_cache_config),
        groups=known,
    )

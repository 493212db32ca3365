"""A KV connector to copy from: vLLM's KV blocks in host memory, found again by vLLM's own block hashes.

The scheduler's side keeps the names of the blocks that host memory holds, and writes a plan for each step. The workers' side
keeps the blocks themselves, and carries the plan out: first it loads, then it drops, then it stores. Because a block that is
loaded in a step is read before anything else in that step changes host memory, nothing has to be pinned.

`kvtrail check my_connector:MyConnector` runs it on vLLM's real scheduler.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole

STEPS_AHEAD = 2
"""vLLM may schedule the next step before it has seen what the workers say of this one."""


@dataclass
class Plan(KVConnectorMetadata):
    """What the workers copy in a step. Host memory is a dictionary, so a block is named by its key: vLLM's hash of all tokens
    up to its end, with the adapter and the salt.

    Attributes:
        loads: by request, the keys to load and the blocks that they go into.
        drops: the keys that leave host memory.
        stores: the keys that enter it, and the blocks that they come from.
    """

    loads: dict[str, list[tuple[bytes, int]]] = field(default_factory=dict)
    drops: list[bytes] = field(default_factory=list)
    stores: dict[bytes, int] = field(default_factory=dict)


@dataclass
class Tracked:
    """A live request: vLLM's object, the tokens that vLLM had at the last lookup, and its blocks as of its last step."""

    request: Any
    computed: int
    table: list[int] = field(default_factory=list)


class MyConnector(KVConnectorBase_V1):
    """Settings: `capacity`, in blocks, and `load_async`, whether requests wait for their loads between steps."""

    kvtrail_check_settings: ClassVar[dict[str, Any]] = {"capacity": (12, 40, 400), "load_async": (True, False)}
    """What `kvtrail` draws from, where a run gives no settings. A small capacity, so that host memory is full at times."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.capacity: int = extra.get("capacity", 4096)
        self.load_async: bool = extra.get("load_async", True)
        self.block_size: int = vllm_config.cache_config.block_size
        self.num_blocks: int = kv_cache_config.num_blocks
        # Scheduler's side.
        self.held: OrderedDict[bytes, None] = OrderedDict()  # the keys in host memory, least recently used first
        self.tracked: dict[str, Tracked] = {}
        self.plan = Plan()
        self.latest: deque[list[bytes]] = deque(maxlen=STEPS_AHEAD)  # what the latest steps have stored
        # Workers' side.
        self.caches: list[torch.Tensor] = []
        self.host: dict[bytes, list[torch.Tensor]] = {}
        self.received: set[str] = set()

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: a store that is lost is a later miss

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self.tracked[request.request_id] = Tracked(request, num_computed_tokens)
        matched = 0
        for key in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:  # the last token is computed
            if key not in self.held:
                break
            matched += self.block_size
        new = max(0, matched - num_computed_tokens)
        return new, self.load_async and new > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:  # nothing to load, or the second call for a load between steps
            return
        (table,) = blocks.get_block_ids()
        first = self.tracked[request.request_id].computed // self.block_size
        last = first + num_external_tokens // self.block_size
        keys = request.block_hashes[:last]
        self.use(keys)
        self.plan.loads[request.request_id] = list(zip(keys[first:], table[first:last], strict=True))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        before = {}
        for new in scheduler_output.scheduled_new_reqs:
            (table,) = new.block_ids
            self.tracked[new.req_id].table = list(table)
            before[new.req_id] = new.num_computed_tokens
        running = scheduler_output.scheduled_cached_reqs
        for request_id, added, computed in zip(
            running.req_ids, running.new_block_ids, running.num_computed_tokens, strict=True
        ):
            if request_id in running.resumed_req_ids:  # preempted before, it has other blocks now
                self.tracked[request_id].table = []
            if added:
                self.tracked[request_id].table += added[0]
            before[request_id] = computed
        for request_id, scheduled in scheduler_output.num_scheduled_tokens.items():
            after = before[request_id] + scheduled
            if after // self.block_size > before[request_id] // self.block_size:  # this step fills a block
                self.store(self.tracked[request_id], after // self.block_size)
        plan, self.plan = self.plan, Plan()
        self.latest.append(list(plan.stores))
        return plan

    def store(self, tracked: Tracked, blocks: int) -> None:
        """Plan the stores of those of a request's first blocks that host memory lacks. vLLM has hashes of blocks with tokens
        that are certain, so a block with a speculative token comes later."""
        keys = tracked.request.block_hashes[:blocks]
        mine = set(keys)
        for key, block in zip(keys, tracked.table, strict=False):
            if key in self.held:
                continue
            if len(self.held) == self.capacity:
                oldest = next((each for each in self.held if each not in mine), None)
                if oldest is None:
                    break  # a block without those before it would never be found
                self.drop(oldest)
            self.held[key] = None
            self.plan.stores[key] = block
        self.use([key for key in keys if key in self.held])

    def use(self, keys: list[bytes]) -> None:
        """These are the most recently used keys; the ends of prefixes are dropped before their beginnings."""
        for key in reversed(keys):
            self.held.move_to_end(key)

    def drop(self, key: bytes) -> None:
        """Forget a block, whether it is in host memory or would get there in this step."""
        del self.held[key]
        if self.plan.stores.pop(key, None) is None:
            self.plan.drops.append(key)

    def update_connector_output(self, connector_output: Any) -> None:
        if connector_output.invalid_block_ids:  # what was stored since then may rest on a load that failed
            for stored in self.latest:
                for key in stored:
                    if key in self.held:  # a block that was stored twice is dropped once
                        self.drop(key)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self.tracked.pop(request.request_id, None)
        return False, None  # all stores of a step end within it, so vLLM may free the blocks

    def reset_cache(self) -> bool:
        for key in list(self.held):
            self.drop(key)
        return True

    # The workers' side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        for cache in kv_caches.values():  # keys and values may lie in one tensor, before the blocks or after
            self.caches.append(cache.movedim(cache.shape.index(self.num_blocks), 0))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        for copies in plan.loads.values():
            for key, block in copies:
                for cache, held in zip(self.caches, self.host[key], strict=True):
                    cache[block].copy_(held)
        if self.load_async:
            self.received |= plan.loads.keys()

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass  # all layers are loaded before the first one runs

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass  # all layers are stored when the last one has run

    def wait_for_save(self) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        for key in plan.drops:
            del self.host[key]
        for key, block in plan.stores.items():
            self.host[key] = [cache[block].to("cpu", copy=True) for cache in self.caches]

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks of loads that failed: copies within this process do not, but `kvtrail check` makes some fail."""
        return set()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        received, self.received = self.received, set()
        return None, received

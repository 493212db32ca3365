"""A connector that stores blocks of all KV cache groups in this process: what a request with a window or with recurrent
states needs, and nothing else. Loads end between steps, since a step moves states before it loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from kvtrail.connector.fingerprints.plan import Group
from kvtrail.connector.kv_layout import blocks_first, tensors_of
from kvtrail.connector.tracing.block_checks import groups_of

Key = tuple[int, bytes]
"""The number of a KV cache group, and a hash."""


class Copy(NamedTuple):
    """A block of a request to be loaded or stored; `token` is its first one, or the tokens that a state has seen."""

    request_id: str
    group: int
    token: int
    block: int
    key: Key


@dataclass
class Copies(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is not typed here
    """What a worker is to copy in a step."""

    loads: list[Copy] = field(default_factory=list)
    stores: list[Copy] = field(default_factory=list)


class GroupStoreConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Both sides of it. `contents` is the store, which both share: pieces of memory, by key."""

    contents: ClassVar[dict[Key, list[Any]]] = {}

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.groups = groups_of(vllm_config, kv_cache_config)
        self._unit, self._hash_size = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        self._kv_cache_config = kv_cache_config
        self._stored: set[Key] = set()
        """As far as the scheduler's side knows, which stores nothing twice."""
        self._requests: dict[str, tuple[Any, list[list[int]]]] = {}
        """With their tables."""
        self.finished: dict[str, list[bytes]] = {}
        """Block hashes of requests that have ended."""
        self._matched: dict[str, int] = {}
        self._plan = Copies()
        self.views: dict[int, list[Any]] = {}
        """By group; the first dimension counts blocks."""
        self._ended: set[str] = set()

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        last = (request.num_tokens - 1) // self._unit * self._unit
        for end in range(last, num_computed_tokens, -self._unit):
            if all(key in self._stored for group in self.groups for *_, key in self._needed(group, request, 0, end)):
                self._matched[request.request_id] = num_computed_tokens
                return end - num_computed_tokens, True
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tables = [list(table) for table in blocks.get_block_ids()]
        self._requests[request.request_id] = request, tables
        if num_external_tokens:
            computed = self._matched.pop(request.request_id)
            end = computed + num_external_tokens
            self._plan.loads += [
                each for group in self.groups for each in self._copies(group, request, tables, computed, end)
            ]

    def build_connector_meta(self, scheduler_output: Any) -> Copies:
        running, ends = scheduler_output.scheduled_cached_reqs, {}
        for new in scheduler_output.scheduled_new_reqs:
            self._requests[new.req_id] = self._requests[new.req_id][0], [list(table) for table in new.block_ids]
            ends[new.req_id] = new.num_computed_tokens
        for request_id, computed, added in zip(
            running.req_ids, running.num_computed_tokens, running.new_block_ids, strict=True
        ):
            ends[request_id] = computed
            for n, blocks in enumerate(added or ()):
                table = self._requests[request_id][1][n]
                table[:] = [*([] if request_id in running.resumed_req_ids else table), *blocks]
        for request_id, computed in ends.items():
            end = computed + scheduler_output.num_scheduled_tokens[request_id]
            for group in self.groups:
                for each in self._copies(group, *self._requests[request_id], computed, end, stores=True):
                    if each.key not in self._stored:
                        self._stored.add(each.key)
                        self._plan.stores.append(each)
        plan, self._plan = self._plan, Copies()
        return plan

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        self._requests.pop(request.request_id, None)
        self.finished[request.request_id.rpartition("-")[0]] = [*request.block_hashes]
        return False, None

    def reset_cache(self) -> bool:
        self._stored.clear()
        self.contents.clear()
        return True

    def _needed(self, group: Group, request: Any, computed: int, end: int) -> Iterator[tuple[int, int, Key]]:
        """What a request that goes on at `end` needs of a group: the token of each block, its place in the table, and key."""
        hashes, each = request.block_hashes, group.unit // self._hash_size
        if group.boundary:
            yield end, (end - 1) // group.block_size, (group.number, hashes[end // self._hash_size - 1])
            return
        first = max(group.first_kept(end), computed // group.block_size)
        for number in range(first, end // group.block_size):
            yield number * group.block_size, number, (group.number, hashes[(number + 1) * each - 1])

    def _copies(
        self, group: Group, request: Any, tables: list[list[int]], computed: int, end: int, *, stores: bool = False
    ) -> Iterator[Copy]:
        """Those blocks; of a step, only states at the boundary where it ends."""
        known = len(request.block_hashes) * self._hash_size
        if stores and group.boundary and (end % group.unit or end > known):
            return
        if stores and not group.boundary:
            end = min(end, known)
        for token, place, key in self._needed(group, request, computed, end):
            table = tables[group.number]
            if place < len(table) and table[place]:
                yield Copy(request.request_id, group.number, token, table[place], key)

    # A worker's side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        groups, count = self._kv_cache_config.kv_cache_groups, self._kv_cache_config.num_blocks
        self.views = {
            number: [
                view
                for name in group.layer_names
                for tensor in tensors_of(kv_caches[name])
                for view in blocks_first(name, tensor, count)
            ]
            for number, group in enumerate(groups)
        }

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        loads = self._bound().loads
        self.load(loads)
        self._ended |= {copy.request_id for copy in loads}

    def load(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            for view, piece in zip(self.views[copy.group], self.contents[copy.key], strict=True):
                view[copy.block] = piece

    def wait_for_save(self) -> None:
        for copy in self._bound().stores:
            self.contents[copy.key] = [view[copy.block].clone() for view in self.views[copy.group]]

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        ended, self._ended = self._ended, set()
        return None, ended or None

    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def _bound(self) -> Copies:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Copies)
        return plan

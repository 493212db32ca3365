"""A third small host cache, of one block per slot: it leases at a lookup, keeps block tables of its own, and stores and loads
some steps late if configured to. It is correct; `shelf_bugs` breaks it. No name in it says what is temporary."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole

from planted.whole_steps import WholeSteps

Copies = list[tuple[int, int]]
"""Slots, each with a block of the KV cache."""


@dataclass
class Plan(KVConnectorMetadata):
    """A step's work: loads by request, stores by key (request, slot, block), stores that are called off, requests that have
    ended with stores to come, and whether blocks of a preempted request are still to be read."""

    loads: dict[str, Copies] = field(default_factory=dict)
    stores: dict[bytes, tuple[str, int, int]] = field(default_factory=dict)
    called_off: list[bytes] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    fence: bool = False


@dataclass
class Known:
    """A live request: its blocks, how many of them are on the shelf, its lease, the tokens computed at its last lookup, and
    the step of its last store."""

    request: Any
    table: list[int] = field(default_factory=list)
    mark: int = 0
    lease: list[bytes] = field(default_factory=list)
    asked: int = 0
    loads: bool = False
    stored_at: int = -99


class Shelf(WholeSteps):
    """`slots`: blocks that it holds. `between`: loads run between steps. `delay`: steps by which stores are late; such loads
    are twice as late."""

    kvtrail_check_settings = {"slots": (12, 40, 300), "between": (True, False), "delay": (0, 2)}  # noqa: RUF012

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.block: int = vllm_config.cache_config.block_size
        self.slots: int = extra.get("slots", 40)
        self.between: bool = extra.get("between", True)
        self.delay: int = extra.get("delay", 0)
        self.step = 0
        # The scheduler's side.
        self.index: OrderedDict[bytes, int] = OrderedDict()
        self.since: dict[bytes, int] = {}
        self.empty = list(range(self.slots))
        self.users: Counter[bytes] = Counter()
        self.known: dict[str, Known] = {}
        self.leaving: dict[str, list[bytes]] = {}
        self.plan = Plan()
        self.latest: dict[str, list[bytes]] = {}
        # The workers' side.
        self.caches: list[torch.Tensor] = []
        self.shelf: list[torch.Tensor] = []
        self.to_load: list[tuple[int, str, Copies]] = []
        self.to_store: list[tuple[int, bytes, str, int, int]] = []
        self.arrived: set[str] = set()
        self.ended: set[str] = set()

    # The scheduler's side.

    def of(self, request: Any) -> Known:
        if request.request_id not in self.known:
            self.known[request.request_id] = Known(request)
        return self.known[request.request_id]

    def found(self, request: Any) -> int:
        """Blocks that can be loaded, of those before the last token."""
        keys = request.block_hashes[: (request.num_tokens - 1) // self.block]
        return next((n for n, key in enumerate(keys) if not self.is_ready(key)), len(keys))

    def is_ready(self, key: bytes) -> bool:
        return key in self.index and self.step > self.since[key] + self.delay

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        known, end = self.of(request), self.found(request)
        self.release(known)
        known.asked = num_computed_tokens
        new = max(0, end * self.block - num_computed_tokens)
        if new:
            self.take_lease(known, request.block_hashes[num_computed_tokens // self.block : end])
        return new, bool(new) and self.between

    def take_lease(self, known: Known, keys: list[bytes]) -> None:
        known.lease = list(keys)
        self.users.update(keys)

    def release(self, known: Known) -> None:
        self.give_back(known.lease)
        known.lease = []

    def give_back(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.users[key] -= 1
            if self.users[key] <= 0:
                del self.users[key]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        known = self.of(request)
        if not num_external_tokens:
            if not known.loads:
                self.release(known)
            return
        (table,) = blocks.get_block_ids()
        first, last = known.asked // self.block, (known.asked + num_external_tokens) // self.block
        places = [self.index.get(key, 0) for key in request.block_hashes[first:last]]
        self.plan.loads[request.request_id] = list(zip(places, table[first:last], strict=True))
        known.loads, known.mark = True, last
        self.touch(request.block_hashes[:last])

    def touch(self, keys: Iterable[bytes]) -> None:
        for key in reversed(list(keys)):
            if key in self.index:
                self.index.move_to_end(key)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        output, self.latest = scheduler_output, {}
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for new in output.scheduled_new_reqs:
            self.known[new.req_id].table = list(new.block_ids[0])
        running = output.scheduled_cached_reqs
        computed |= dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
        for request_id, added in zip(running.req_ids, running.new_block_ids, strict=True):
            if request_id in running.resumed_req_ids:
                self.resume(self.known[request_id], list(added[0]), computed[request_id] // self.block)
            elif added is not None:
                self.known[request_id].table += added[0]
        for request_id, scheduled in output.num_scheduled_tokens.items():
            self.store(self.known[request_id], (computed[request_id] + scheduled) // self.block)
        plan, self.plan = self.plan, Plan()
        plan.fence = bool(output.preempted_req_ids)
        self.step += 1
        return plan

    def resume(self, known: Known, table: list[int], computed: int) -> None:
        known.table, known.mark = table, 0

    def store(self, known: Known, end: int) -> None:
        keys = known.request.block_hashes[:end]
        for n in range(known.mark, len(keys)):
            if not self.put(known, n, keys):
                break
            known.mark = n + 1
        self.touch(keys)

    def put(self, known: Known, n: int, keys: list[bytes]) -> bool:
        """Whether the n-th block is on the shelf, or will be."""
        if keys[n] in self.index:
            return True
        if not self.empty and not self.evict(set(keys)):
            return False
        slot = self.empty.pop()
        self.index[keys[n]], self.since[keys[n]] = slot, self.step
        self.plan.stores[keys[n]] = known.request.request_id, slot, known.table[n]
        self.latest.setdefault(known.request.request_id, []).append(keys[n])
        known.stored_at = self.step
        return True

    def evict(self, mine: set[bytes]) -> bool:
        for key in self.index:
            if not self.users[key] and self.is_ready(key) and key not in mine:
                self.empty.append(self.index.pop(key))
                return True
        return False

    def update_connector_output(self, connector_output: Any) -> None:
        if connector_output.invalid_block_ids:
            self.failed(connector_output.invalid_block_ids)
        for request_id in connector_output.finished_recving or ():
            self.give_back(self.leaving.pop(request_id, ()))
            if request_id in self.known:
                self.loaded(self.known[request_id])
        if not self.between:
            for known in self.known.values():
                if known.loads:
                    self.loaded(known)

    def loaded(self, known: Known) -> None:
        known.loads = False
        self.release(known)

    def failed(self, blocks: set[int]) -> None:
        """What a step has computed of blocks that were not loaded is no KV."""
        for request_id, keys in self.latest.items():
            known = self.known.get(request_id)
            if known is not None and blocks.intersection(known.table):
                self.forget(keys)
                known.mark = 0

    def forget(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if key in self.index and self.since[key] == self.step - 1:
                self.empty.append(self.index.pop(key))
                self.plan.called_off.append(key)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        known = self.known.pop(request.request_id, None)
        if known is None:
            return False, None
        if known.loads and self.between:
            self.leaving[request.request_id] = known.lease
        else:
            self.release(known)
        if request.status.name == "FINISHED_ERROR":  # its load has failed in this step
            self.forget(self.latest.get(request.request_id, ()))
        keeps = self.step <= known.stored_at + self.delay
        if keeps:
            self.plan.ended.add(request.request_id)
        return keeps, None

    def reset_cache(self) -> bool:
        loads = self.leaving or any(known.loads for known in self.known.values())
        if loads or not all(map(self.is_ready, self.index)):
            return False
        self.empty += self.index.values()
        self.index.clear()
        self.drop_leases()
        for known in self.known.values():
            known.mark = 0
        return True

    def drop_leases(self) -> None:
        for known in self.known.values():
            self.release(known)

    # The workers' side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.caches = list(kv_caches.values())
        self.shelf = [torch.zeros((self.slots, *each.shape[1:]), dtype=each.dtype) for each in self.caches]

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        if kv_connector_metadata.fence:
            self.run_stores(until=self.step)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        self.to_store = [each for each in self.to_store if each[1] not in plan.called_off]
        due = self.step + (2 * self.delay if self.between else 0)
        self.to_load += [(due, request_id, copies) for request_id, copies in plan.loads.items()]
        for _, request_id, copies in [each for each in self.to_load if each[0] <= self.step]:
            for slot, block in copies:
                for cache, shelf in zip(self.caches, self.shelf, strict=True):
                    cache[block] = shelf[slot]
            if self.between:
                self.arrived.add(request_id)
        self.to_load = [each for each in self.to_load if each[0] > self.step]
        self.ended |= plan.ended

    def wait_for_save(self) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        self.to_store += [(self.step, key, *where) for key, where in plan.stores.items()]
        self.run_stores(until=self.step - self.delay)
        self.step += 1

    def run_stores(self, until: int) -> None:
        for since, _, _, slot, block in self.to_store:
            if since <= until:
                for cache, shelf in zip(self.caches, self.shelf, strict=True):
                    shelf[slot] = cache[block]
        self.to_store = [each for each in self.to_store if each[0] > until]

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Its copies do not fail, but kvtrail makes some fail."""
        return set()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent = self.ended - {request_id for _, _, request_id, _, _ in self.to_store}
        self.ended -= sent
        arrived, self.arrived = self.arrived, set()
        return sent, arrived

"""Connectors that break a requirement which no fault and no planted bug breaks alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from planted.reporting import Reporting
from planted.shelf import Plan, Shelf
from planted.store_bugs import SlotLostByTwins
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector, NixlPushConnector

sys.path.append(str(Path(__file__).parents[4] / "docs" / "conformance"))

from my_connector import MyConnector  # type: ignore[import-not-found]


class _Remembers(Shelf):
    """It remembers requests in a certain state, also when they are aborted in it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.remembered: set[str] = set()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if request.status.name != "FINISHED_ABORTED":
            self.remembered.discard(request.request_id)
        return super().request_finished(request, block_ids)


class RemembersTheRunning(_Remembers):
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        self.remembered |= scheduler_output.num_scheduled_tokens.keys()
        self.remembered -= scheduler_output.preempted_req_ids or set()
        return super().build_connector_meta(scheduler_output)


class RemembersThePreempted(_Remembers):
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        self.remembered |= scheduler_output.preempted_req_ids or set()
        self.remembered -= scheduler_output.num_scheduled_tokens.keys()
        return super().build_connector_meta(scheduler_output)


class RemembersTheWaiting(_Remembers):
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self.remembered.add(request.request_id)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.remembered.discard(request.request_id)
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class LoadOfTheAbortedNotSaid(Shelf):
    """The end of a load is not reported when its request was aborted before."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gone: set[str] = set()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if request.status.name == "FINISHED_ABORTED":
            self.plan.__dict__.setdefault("gone", set()).add(request.request_id)
        return super().request_finished(request, block_ids)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        self.gone |= self._get_connector_metadata().__dict__.get("gone", set())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent, arrived = super().get_finished(finished_req_ids)
        return sent, (arrived or set()) - self.gone


class ResetDuringALoad(Shelf):
    """A reset frees the slots from which a load is under way."""

    def reset_cache(self) -> bool:
        for key in filter(self.is_ready, list(self.index)):
            self.empty.append(self.index.pop(key))
        self.users.clear()
        for known in self.known.values():
            known.mark, known.lease = 0, []
        return not self.index


class AnswersLater(Shelf):
    """A hit is answered “ask me later” for some lookups, and then with what was right at the first."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        known = self.of(request)
        later = known.__dict__.setdefault("later", [])
        if not later:
            answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
            if not answer[0]:
                return answer
            later += [answer, *9 * [(None, False)]]
        count, between = later.pop()
        return count, between


class TouchesABlock(MyConnector):  # type: ignore[misc]
    """The first block that it loads into is never free again."""

    touched = False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens and not self.touched:
            self.touched = True
            manager: Any = self._kv_cache_manager
            manager.block_pool.touch(blocks.blocks[0][-1:])


class FailedAndNotSaid(Shelf):
    """Every third load between steps fails; its blocks are reported, and never its end."""

    begun = 0

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        self.errors: set[int] = set()
        for request_id in list(plan.loads):
            self.begun += 1
            if self.begun % 3 == 0:
                self.errors |= {block for _, block in plan.loads.pop(request_id)}
        super().start_load_kv(forward_context, **kwargs)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.errors


class ByLayer(MyConnector):  # type: ignore[misc]
    """Each layer is loaded before it runs, and saved when it has run."""

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        super().register_kv_caches(kv_caches)
        self.layers = list(kv_caches)
        self.saved: dict[bytes, list[torch.Tensor]] = {}
        self.to_load: list[tuple[bytes, int]] = []

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.to_load = []
        if self.load_async:
            super().start_load_kv(forward_context, **kwargs)
        else:
            plan: Any = self._get_connector_metadata()
            self.to_load = [copy for copies in plan.loads.values() for copy in copies]
            self.read = {key: self.host[key] for key, _ in self.to_load}

    def wait_for_layer_load(self, layer_name: str) -> None:
        self.load_layer(self.layers.index(layer_name))

    def load_layer(self, layer: int) -> None:
        for key, block in self.to_load:
            self.caches[layer][block].copy_(self.read[key][layer])

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        layer = self.layers.index(layer_name)
        plan: Any = self._get_connector_metadata()
        for key, block in plan.stores.items():
            self.saved.setdefault(key, []).append(self.caches[layer][block].clone())

    def wait_for_save(self) -> None:
        plan: Any = self._get_connector_metadata()
        for key in plan.drops:
            del self.host[key]
        self.host |= self.saved
        self.saved = {}


class LayerLoadedTooLate(ByLayer):
    """A layer is loaded when the next one waits for its load."""

    def load_layer(self, layer: int) -> None:
        if layer:
            super().load_layer(layer - 1)


class LayerSavedTwice(ByLayer):
    """The second layer is saved as the first one was."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        super().save_kv_layer(self.layers[0] if layer_name == self.layers[1] else layer_name, kv_layer, attn_metadata)


class ReportsAndLosesSlots(SlotLostByTwins, Reporting):
    """A bug of the store beside events that are right."""


class NamesAll(NixlPullConnector):
    """All that is handed on has one name."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        keeps, said = super().request_finished_all_groups(request, block_ids)
        return keeps, said and {**said, "remote_request_id": "the-request"}


class LeasesEndAtOnce(NixlPullConnector):
    """Blocks are kept no longer than until the next step."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata: Any = self._get_connector_metadata()
        metadata.reqs_to_send = dict.fromkeys(metadata.reqs_to_send, 0.0)
        super().start_load_kv(forward_context, **kwargs)


class FailsOnceAndForAll(NixlPullConnector):
    """When a read has failed, the next ones count as ended before they are."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        worker: Any = self.connector_worker
        if worker is not None:
            self.state, self.failed = worker.nixl_wrapper.check_xfer_state, False
            worker.nixl_wrapper.check_xfer_state = self.after_a_failure

    def after_a_failure(self, handle: Any) -> str:
        state: str = self.state(handle)
        early = self.failed and state == "PROC"
        self.failed |= state == "ERR"
        return "DONE" if early else state


class PushesBackwards(NixlPushConnector):
    """It writes the blocks in the opposite order."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        worker: Any = self.connector_worker
        if worker is not None:
            plain = worker._as_grouped_block_ids
            worker._as_grouped_block_ids = lambda ids: tuple(list(group)[::-1] for group in plain(ids))


class PushesWhatItFreed(NixlPushConnector):
    """The blocks that are to be written are not kept."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        return False, super().request_finished_all_groups(request, block_ids)[1]


class PushBeatsForEver(NixlPushConnector):
    """Its heartbeats go on when a request has loaded."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        scheduler: Any = self.connector_scheduler
        if scheduler is not None:
            scheduler._stop_heartbeat = lambda request_id: None

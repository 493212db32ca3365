"""Correct connectors that make requests wait, as those of slow stores and slow peers do."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from kvtrail.tracer.events.patience import Patience


class LaterOnce(OffloadingConnector):  # type: ignore[misc]  # vLLM is not typed here
    """Its lookup takes a moment: the first answer for each admission of a request is 'ask me later'."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked: set[tuple[str, int]] = set()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        admission = (request.request_id, request.num_preemptions)
        if admission not in self._asked:
            self._asked.add(admission)
            return None, False
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return answer


class SlowPeer(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM is not typed here
    """Another engine computes each prompt and pushes its KV, after a queue of minutes. What this engine computes is kept for
    a third one to read. It declares how long it waits. The workers are those of the simulator."""

    kvtrail_patience = Patience(load_s=600.0, keep_s=1800.0)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pushed: set[str] = set()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        coming = request.num_tokens - 1 - num_computed_tokens
        if request.request_id in self._pushed or coming <= 0:
            return 0, False
        return coming, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self._pushed.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        self._pushed.discard(request.request_id)
        return request.status.name != "FINISHED_ABORTED", None

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...

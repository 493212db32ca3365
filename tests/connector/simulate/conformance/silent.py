"""Connectors of the tests: each has its own way of proving nothing, or of claiming too much."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


class Metadata(KVConnectorMetadata):
    """Nothing to do."""


class FindsNothing(KVConnectorBase_V1):
    """It stores nothing, and each lookup is a miss."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return Metadata()


class FindsEverything(FindsNothing):
    """It claims that it holds the second half of each prompt."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return max(0, (request.num_tokens - 1 - num_computed_tokens) // 32 * 32), False


class SaysLater(FindsNothing):
    """Each lookup is answered “ask me later”."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return None, False


class DiesAtOnce(FindsNothing):
    """The first step ends the engine."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        raise RuntimeError("not today")

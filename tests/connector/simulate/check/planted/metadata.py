"""Host caches that remember who has stores, until they hear of their ends: one by its workers' metadata, one by nobody."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from planted.host_cache import HostCache


class NeverHeard(HostCache):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.jobs: dict[str, int] = {}

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        for request_id in scheduler_output.num_scheduled_tokens:
            if len(self.jobs) < 3:  # no memory of the latest requests
                self.jobs[request_id] = 1
        return super().build_connector_meta(scheduler_output)


class HeardByMetadata(NeverHeard):
    def build_connector_worker_meta(self) -> None:
        """What its workers have stored, which is nothing; a fake never asks."""

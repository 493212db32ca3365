"""vLLM's native OffloadingConnector: its scheduler's side keeps the store's books, so its own planning fills them. How much
room there was is not recorded."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.environment import Environment

ROOM = 1 << 30
"""Bytes of host memory that are assumed, for a made-up model whose blocks have a few KiB."""


class OffloadingEnvironment(Environment):
    """The OffloadingConnector, with plenty of room in its store: how much there was is not recorded."""

    def settings(self) -> dict[str, Any]:
        self.unsure = "how many blocks its store had room for is not recorded"
        return {"cpu_bytes_to_use": ROOM}

    def before_report(self, ended: list[int], output: Any) -> str:
        """Jobs are counted from 0 by every such connector, so they have their recorded numbers."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        output.kv_connector_worker_meta = OffloadingWorkerMetadata()
        for number in ended:
            output.kv_connector_worker_meta.mark_completed(number)
        return ""


ENVIRONMENT = OffloadingEnvironment

"""vLLM's native OffloadingConnector: its scheduler's side knows what the store holds, so its own planning restores it. How
much room there was is not recorded."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.known.environment import Environment

ROOM = 1 << 30
"""Bytes of host memory that are assumed; blocks of the tiny model have a few KiB."""


class OffloadingEnvironment(Environment):
    """The OffloadingConnector, with plenty of room in its store."""

    def settings(self) -> dict[str, Any]:
        self.unsure = "how many blocks its store had room for is not recorded"
        return {"cpu_bytes_to_use": ROOM}

    def before_report(self, ended: list[int], output: Any) -> str:
        """Each connector object counts its jobs from 0, so the recorded numbers are its own."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        output.kv_connector_worker_meta = OffloadingWorkerMetadata()
        for number in ended:
            output.kv_connector_worker_meta.mark_completed(number)
        return ""


ENVIRONMENT = OffloadingEnvironment

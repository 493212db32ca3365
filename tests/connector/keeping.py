"""A correct connector that keeps the blocks of finished requests for a while."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.offload import UntracedOffloadConnector


class KeepingConnector(UntracedOffloadConnector):
    """`request_finished` -> True; the made-up worker reports `finished_sending` some steps later."""

    keeps_blocks = True

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        super().request_finished_all_groups(request, block_ids)
        return True, None

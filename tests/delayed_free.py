"""A correct connector that delays the free of a finished request's blocks."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.offload import UntracedOffloadConnector


class DelayedFreeConnector(UntracedOffloadConnector):
    """`request_finished` returns True; its workers report `finished_sending`, the fake ones some steps later."""

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        super().request_finished_all_groups(request, block_ids)
        return True, None

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], None]:
        return finished_req_ids, None

"""vLLM's NIXL connector with a bug, of each kind that an author of a connector for two engines may write."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector


class ReadsFromTheHead(NixlPullConnector):
    """If a prompt's beginning is in vLLM's prefix cache, it reads the first blocks of the other engine, not the last."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        worker: Any = self.connector_worker
        if worker is not None:
            worker._apply_prefix_caching = self._from_the_head

    def _from_the_head(self, decode_block_ids: Any, prefill_block_ids: Any, **_: Any) -> Any:
        both = zip(decode_block_ids, prefill_block_ids, strict=True)
        return decode_block_ids, [theirs[: len(mine)] for mine, theirs in both]


class ReportsBeforeTheEnd(NixlPullConnector):
    """It takes a read for done as soon as it is asked about it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        worker: Any = self.connector_worker
        if worker is not None:
            worker.nixl_wrapper.check_xfer_state = lambda handle: "DONE"


class ReadsWithoutAReport(NixlPullConnector):
    """It reports no read to the other engine."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        worker: Any = self.connector_worker
        if worker is not None:
            plain = worker.nixl_wrapper.make_prepped_xfer
            worker.nixl_wrapper.make_prepped_xfer = lambda *places, notif_msg: plain(*places)


class BeatsForEver(NixlPullConnector):
    """Its heartbeats go on when a request has loaded."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        scheduler: Any = self.connector_scheduler
        if scheduler is not None:
            scheduler._stop_heartbeat = lambda request_id: None


BUGS = {
    "ReadsFromTheHead": "bytes: a request has read KV that is not its own",
    "ReportsBeforeTheEnd": "bytes: a request has read KV that is not its own",
    "ReadsWithoutAReport": "rule: unacknowledged-handoff",
    "BeatsForEver": (
        "rest: decode scheduler: BeatsForEver.connector_scheduler._heartbeat_by_engine.req_ids remembers ended requests"
    ),
}
"""By class, the failure that is reported."""

"""Faults of what one engine hands over to another, for connectors that use `kv_transfer_params` as vLLM's NixlConnector does.
Each is injected into one engine of a pair."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.faults.base import BLOCK_SIZE, Fault


class _Taking(Fault):
    """A fault of the engine that decodes: it mixes up the parameters that its requests come with."""

    def prepare(self) -> None:
        self._before: Any = None

    def on_new_request(self, request: Any) -> None:
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill"):
            before, self._before = self._before, dict(params)
            self.mix_up(params, before)
        super().on_new_request(request)

    def mix_up(self, params: dict[str, Any], before: dict[str, Any] | None) -> None:
        """Change the parameters of a request; `before` are those that the request before it came with."""


class CrossedHandoff(_Taking):
    """vLLM #52234: a reference is used for another request than it was made for. Every second request gets that of the one
    before."""

    def mix_up(self, params: dict[str, Any], before: dict[str, Any] | None) -> None:
        if before is not None:
            params.update(before)
            self._before = None


class SecondHandoff(CrossedHandoff):
    """vLLM #38900: the sequences of one prompt share its parameters."""


class _Giving(Fault):
    """A fault of the engine that prefills: the parameters that it returns are wrong."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, Any]:
        kept, params = super().request_finished_all_groups(request, block_ids)
        if kept and params:
            self.spoil(params)
        return kept, params

    def spoil(self, params: dict[str, Any]) -> None:
        """Change the parameters of a request that has ended."""


class ShortHandoff(_Giving):
    """vLLM #50558: the other engine reads beyond what was computed here."""

    def spoil(self, params: dict[str, Any]) -> None:
        params["remote_num_tokens"] -= BLOCK_SIZE


class StaleHandoff(Fault):
    """vLLM #21570: the lease ends before the other engine reads. Here it ends at once."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        leases = self.connector_worker._reqs_to_send
        for request_id in leases:
            leases[request_id] = 0.0
        return super().get_transfer_results(finished_req_ids)


class UnacknowledgedHandoff(Fault):
    """vLLM #43541: the report of a read names a request that the other engine does not know."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for meta in self._get_connector_metadata().reqs_to_recv.values():
            meta.remote.request_id = f"{meta.remote.request_id}-of-here"
        super().start_load_kv(forward_context, **kwargs)

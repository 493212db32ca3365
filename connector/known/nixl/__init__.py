"""vLLM's NIXL connectors."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.patience import NIXL_S, Patience


def _patience(settings: Mapping[str, Any]) -> Patience:
    """`load_s` is the time for which the decode engine keeps blocks, and the limit of a push's registrations. `keep_s` is at
    least that: heartbeats of the decode engine extend the lease of a prefill."""
    kept_s = float(settings.get("decoder_kv_blocks_ttl", NIXL_S))
    return Patience(kept_s, max(kept_s, float(settings.get("kv_lease_duration", 0.0))))


def _lease(connector: Any, request_id: str) -> float | None:
    """The remaining lease in seconds. The scheduler's side stores the end of each lease, by `time.perf_counter`."""
    ends_s = getattr(getattr(connector, "connector_scheduler", None), "_reqs_need_send", {}).get(request_id)
    return None if ends_s is None else float(ends_s) - perf_counter()


CONNECTOR = KnownConnector(
    __name__,
    classes=("NixlConnector", "NixlPullConnector", "NixlPushConnector"),
    capabilities=frozenset({Capability.HANDS_ON, Capability.RECEIVES_ONCE, Capability.REPORTS_LEASES}),
    compared_by_name=True,
    other_writers=True,
    hands_over=True,
    patience=_patience,
    lease=_lease,
)

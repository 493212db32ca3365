"""vLLM's MooncakeConnector, which hands requests over to another engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.patience import MOONCAKE_S, Patience


def _limit_s() -> float:
    """Seconds for which the prefill engine waits for a request of the decode engine, and the decode engine for the blocks."""
    from vllm import envs

    return float(getattr(envs, "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", MOONCAKE_S))


def _patience(settings: Mapping[str, Any]) -> Patience:
    return Patience(_limit_s(), _limit_s())


def _lease(connector: Any, request_id: str) -> float | None:
    """The lease in seconds: the same for every request. The workers measure it."""
    return _limit_s()


CONNECTOR = KnownConnector(
    __name__,
    classes=("MooncakeConnector",),
    capabilities=frozenset({Capability.HANDS_ON, Capability.RECEIVES_ONCE, Capability.REPORTS_LEASES}),
    compared_by_name=True,
    patience=_patience,
    lease=_lease,
)

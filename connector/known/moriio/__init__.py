"""vLLM's MoRIIO connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.patience import Patience


def _patience(settings: Mapping[str, Any]) -> Patience:
    return Patience(float(settings.get("recv_abort_timeout", 120.0)), float(settings.get("defer_timeout", 60.0)))


CONNECTOR = KnownConnector(
    __name__,
    classes=("MoRIIOConnector",),
    capabilities=frozenset({Capability.RECEIVES_ONCE}),
    compared_by_name=True,
    patience=_patience,
)

"""The rows and columns of the conformance matrix: each connector that can be made on a CPU, as its users configure it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import matrix

LMCACHES = (
    "0.3.10", "0.3.11", "0.3.12", "0.3.13", "0.3.14", "0.3.15", "0.4.1", "0.4.2", "0.4.3", "0.4.4", "0.4.5", "0.4.6", "0.4.7",
    "0.5.0", "0.5.1", "0.5.2", "0.5.3", "0.5.4", "0.5.5", "0.5.6",
)  # fmt: skip
WITH_VLLM = "0.32.0"
"""The vLLM of the columns of LMCache; the columns of vLLM have the last LMCache."""
VLLMS = matrix.VERSIONS[1:]  # the first is too old
LMCACHE_V1 = "LMCacheConnectorV1"
TIERS = {"cpu_bytes_to_use": 4_000_000, "secondary_tiers": [{"type": "example"}]}


@dataclass(frozen=True, slots=True)
class Row:
    """A connector of the matrix.

    Attributes:
        id: the name in the table, and of its reports' files.
        connector: as for `kvtrail conformance`.
        config: its `kv_connector_extra_config`; None lets the suite draw it.
        of_lmcache: it needs LMCache, so it has a column for each version of LMCache, too.
        environment: variables that choose this variant.
        level: of the suite: all of it for a connector that hands over, since the core never comes to its loads.
    """

    id: str
    connector: str
    config: Mapping[str, Any] | None = None
    of_lmcache: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    level: str = "core"


ROWS = (
    Row("OffloadConnector", "OffloadConnector"),
    Row("OffloadingConnector", "OffloadingConnector"),
    Row("OffloadingConnector-tiers", "OffloadingConnector", TIERS),
    Row("SimpleCPUOffloadConnector", "SimpleCPUOffloadConnector"),
    Row("ExampleConnector", "ExampleConnector"),
    Row("DecodeBenchConnector", "DecodeBenchConnector"),
    Row("MultiConnector", "MultiConnector"),
    Row("NixlConnector", "NixlConnector", level="all"),
    Row("NixlPushConnector", "NixlPushConnector", level="all"),
    Row("MooncakeConnector", "MooncakeConnector", level="all"),
    Row(LMCACHE_V1, LMCACHE_V1, of_lmcache=True),
    Row("LMCacheConnectorV1-native", LMCACHE_V1, {"use_native": True, "lmcache.chunk_size": 64}, of_lmcache=True),
    Row(
        "LMCacheConnectorV1Dynamic",
        "lmcache.integration.vllm.lmcache_connector_v1:LMCacheConnectorV1Dynamic",
        of_lmcache=True,
    ),
    Row("LMCacheMPConnector", "LMCacheMPConnector", of_lmcache=True),
    Row(
        "LMCacheMPConnector-vllm",
        "LMCacheMPConnector",
        of_lmcache=True,
        environment={"LMCACHE_USE_UPSTREAM_MP": "1"},
    ),
)

"""The connector under test: how vLLM is asked for it, and what may be done to it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtrail.connector.known.backend import SETTINGS
from kvtrail.connector.registration import configuration


@dataclass(frozen=True, slots=True)
class Subject:
    """A connector, traced.

    Attributes:
        name: as the user gave it: of vLLM's registry, `module:Class`, or `Faulty:<fault>:<connector>`.
        extra: its `kv_connector_extra_config`, where the user gave one.
        beside: in a MultiConnector, after our OffloadConnector.
        may_reset_running: whether vLLM's cache may be reset while requests run; not where loads run between steps, which
            vLLM does not support.
    """

    name: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    beside: bool = False
    may_reset_running: bool = True

    def configuration(self) -> dict[str, Any]:
        """The `kv_transfer_config`."""
        own = configuration(self.name, self.extra)
        if "connectors" in self.extra:
            return {key: value for key, value in own.items() if key != "kv_connector_module_path"}  # its children tell
        if not self.beside:
            return own
        first = configuration("OffloadConnector", {"chunk_size": 64, "cpu_bytes_to_use": 50_000_000})
        return {
            "kv_connector": "MultiConnector",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [first, own]},
        }


def varied(name: str, rng: random.Random) -> dict[str, Any]:
    """A configuration for a connector that we know, drawn at random; nothing for others."""
    plain = name.rpartition(":")[2].removeprefix("Traced")
    if plain == "OffloadConnector":
        return {
            "chunk_size": rng.choice([32, 64, 64, 128, 256]),
            "cpu_bytes_to_use": rng.choice([4_000_000, 50_000_000, 50_000_000]),
        }
    if plain in ("OffloadingConnector", "SimpleCPUOffloadConnector"):
        return {"cpu_bytes_to_use": rng.choice([4_000_000, 50_000_000])}
    if plain == "MultiConnector":
        offload = ("OffloadConnector", "OffloadingConnector")
        return {"connectors": [configuration(each, varied(each, rng)) for each in rng.sample(offload, k=2)]}
    if plain == "LMCacheConnectorV1":
        return {"lmcache.chunk_size": rng.choice([64, 128, 256])}
    if plain == "LMCacheMPConnector":
        return {SETTINGS: {"chunk_size": rng.choice([64, 128, 256]), "answers_after": rng.choice([0, 0, 1, 3])}}
    return {}

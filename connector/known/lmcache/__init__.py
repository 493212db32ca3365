"""LMCache in vLLM's process."""

from importlib.metadata import PackageNotFoundError, version

from kvtrail.connector.known import KnownConnector
from kvtrail.tracer.events.capabilities import Capability

ENDS_THE_ENGINE = "0.3.11"
"""This version appends recomputed tokens to its list a second time, and `wait_for_save` fails with `assert
len(slot_mapping) == len(token_ids)`. 0.5.6 does not."""


def _unrecoverable() -> str | None:
    try:
        is_known_to_die = version("lmcache") == ENDS_THE_ENGINE
    except PackageNotFoundError:
        return None
    return f"LMCache {ENDS_THE_ENGINE} ends the engine when tokens are computed again" if is_known_to_die else None


CONNECTOR = KnownConnector(
    __name__,
    classes=("LMCacheConnectorV1", "LMCacheConnectorV1Dynamic"),
    unrecoverable=_unrecoverable,
    capabilities=frozenset({Capability.REPORTS_ALL_STORES}),
    check_settings={"lmcache.chunk_size": (64, 128, 256)},
)

"""A connector's version that ends the engine when vLLM computes again what it loaded: the guard leaves that to nobody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector import known
from kvtrail.connector.known import lmcache
from kvtrail.connector.tracing import block_checks

HEALABLE = (
    SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy="recompute")),
    SimpleNamespace(kv_cache_groups=[None]),
)


@pytest.mark.parametrize(
    ("version", "is_healed"), [("0.3.10", True), ("0.3.11", False), ("0.3.15", True), ("0.5.6", True)]
)
@pytest.mark.parametrize("is_child", [False, True])
def test_wrong_bytes_are_healed_unless_that_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch, version: str, is_healed: bool, is_child: bool
) -> None:
    monkeypatch.setattr(lmcache, "version", lambda _: version)
    monkeypatch.setattr(block_checks, "groups_of", lambda *_: [])
    connector: Any = type("LMCacheConnectorV1", (), {})()
    if is_child:
        children = known.by_name("MultiConnector").children  # type: ignore[union-attr]
        connector = type("MultiConnector", (), {str(children): [connector]})()
    reason = block_checks.unhealable(connector, *HEALABLE)
    assert (reason is None) is is_healed
    assert is_healed or "0.3.11" in str(reason)

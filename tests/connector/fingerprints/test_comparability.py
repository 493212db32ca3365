"""Whether others write to a connector's store, by its configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector.fingerprints.comparability import is_own
from kvtrail.connector.tracing.block_checks import _receives


@pytest.mark.parametrize(
    ("extra", "environment", "own"),
    [
        ({"cpu_bytes_to_use": 1 << 30}, {}, True),
        ({"kvtrail": {"level": "basic"}, "lmcache.local_disk": False}, {"LMCACHE_LOCAL_CPU": "True"}, True),
        ({"lmcache.mp.host": "tcp://127.0.0.1"}, {}, False),
        ({"shared_storage_path": "kv"}, {}, False),
        ({"connectors": [{"kv_connector_extra_config": {"remote_url": "redis://r"}}]}, {}, False),
        ({"connectors": [{"kv_connector_module_path": "kvtrail.connector"}]}, {}, True),
        ({}, {"LMCACHE_REMOTE_URL": "redis://r"}, False),
        ({}, {"LMCACHE_CONFIG_FILE": "lmcache.yaml"}, False),
        ({}, {"HOSTNAME": "h"}, True),
    ],
)
def test_a_place_outside_of_the_engine_is_others_store(
    extra: dict[str, Any], environment: dict[str, str], own: bool
) -> None:
    transfer = SimpleNamespace(kv_role="kv_both", kv_connector_extra_config=extra)
    assert is_own(transfer, environment) is own
    transfer.kv_role = "kv_consumer"
    assert not is_own(transfer, environment)


@pytest.mark.parametrize(
    ("name", "children", "receives"),
    [
        ("NixlConnector", (), True),
        ("TracedMooncakeConnector", (), True),
        ("OffloadConnector", (), False),
        ("NotKnownConnector", (), False),
        ("MultiConnector", ("OffloadConnector", "NixlConnector"), True),
        ("MultiConnector", ("OffloadConnector", "OffloadingConnector"), False),
    ],
)
def test_what_another_engine_hands_over_is_not_the_engines_own(
    name: str, children: tuple[str, ...], receives: bool
) -> None:
    extra = {"connectors": [{"kv_connector": child} for child in children]}
    assert _receives(SimpleNamespace(kv_connector=name, kv_connector_extra_config=extra)) is receives

"""What is read of vLLM's objects."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

from kvtrail.connector.tracing.reading import hit_sources


class Source(Enum):
    HOST = "host"
    DISK = "disk"


def test_where_hits_come_from_is_the_connectors_own_account() -> None:
    connector = SimpleNamespace(
        get_external_cache_hit_sources=lambda request, external: {Source.HOST: external - 64, Source.DISK: 64}
    )
    assert hit_sources(connector, None, 256) == ("host:192", "disk:64")
    assert hit_sources(SimpleNamespace(), None, 256) is None, "an older vLLM does not say"

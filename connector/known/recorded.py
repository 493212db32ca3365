"""A connector's store as a recording shows it.

The `recorded.py` of a known connector derives a configuration from it. With this configuration, the recorded load finds the
same store when it is driven again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.events.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStore:
    """The store of one recorded connector.

    Attributes:
        settings: the recorded numbers of the connector's configuration; empty if another connector was recorded.
        same_connector: whether the recorded connector is the one that is driven, in any version.
        chunk_size: tokens per chunk; None where unknown.
        block_size: tokens per KV block.
        block_bytes: bytes of a KV block of the model that replaces the recorded one.
        events: the events of the recorded connector, in order.
        matched: for each request, by its id in the scenario, the number of tokens that the store held at each lookup.
        notes: assumptions about facts that were not recorded, in sentences.
    """

    settings: Mapping[str, Any]
    same_connector: bool
    chunk_size: int | None
    block_size: int
    block_bytes: int
    events: Sequence[Event]
    matched: Mapping[str, Sequence[int]]
    notes: list[str] = field(default_factory=list)

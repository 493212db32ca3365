"""What a recording shows of a connector's store.

From it a known connector's `recorded.py` derives the configuration with which the recorded load finds the same store when it
is driven again.
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
        same_connector: whether the recorded connector is the one that is driven, in whichever version.
        chunk_size: tokens per chunk; None where unknown.
        block_size: tokens per KV block.
        block_bytes: bytes of a KV block of the model that stands in for the recorded one.
        events: of the recorded connector, in order.
        matched: for each request, by its id in the scenario, how many tokens the store held at each lookup that asked it.
        notes: what is not recorded and had to be assumed, in sentences.
    """

    settings: Mapping[str, Any]
    same_connector: bool
    chunk_size: int | None
    block_size: int
    block_bytes: int
    events: Sequence[Event]
    matched: Mapping[str, Sequence[int]]
    notes: list[str] = field(default_factory=list)

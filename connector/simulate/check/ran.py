"""What is kept of each run of a session: what it has reached, who has looked at it, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvtrail.tracer.model.findings import Verdict


@dataclass(frozen=True, slots=True)
class Ran:
    """A run.

    Attributes:
        reached: how often each of the `points` was reached.
        checks: how often each rule gave each verdict to the connector.
        hits: lookups that answered with tokens.
        loads_read: loads that were looked at byte by byte.
        blocks_compared: blocks that were compared byte by byte before a step that reads them.
        room_compared: whether the room of a full store was compared with that of a new one.
        failures: the ids of what failed.
    """

    reached: Counter[str]
    checks: Mapping[tuple[str, Verdict], int]
    hits: int
    loads_read: int
    blocks_compared: int
    room_compared: bool = False
    failures: frozenset[str] = frozenset()

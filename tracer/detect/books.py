"""What rules need of a request beyond its account: the events behind its numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.model.events import (
    Alloc,
    Event,
    Free,
    Load,
    Lock,
    Lookup,
    Plan,
    RankLookup,
    Received,
    RequestEnd,
    Schedule,
    Sent,
    Stats,
)

REMEMBERED_LOOKUPS = 16
"""Distinct lookups kept per request as witnesses; repeated ones with the same numbers count as one."""


@dataclass(slots=True)
class Books:
    """Emptied when a new epoch begins, but for what is told there."""

    recent_lookups: deque[Lookup] = field(default_factory=lambda: deque(maxlen=REMEMBERED_LOOKUPS))
    """Over all epochs."""
    connectors: set[str] = field(default_factory=set)
    """Those that were asked about the request, over all epochs: children of a MultiConnector, and itself if traced."""
    repeated_hits: int = 0
    """Lookups with a hit in the epoch, before the last allocation that took one."""
    allocs: dict[str, Alloc] = field(default_factory=dict)
    """The last allocation of the epoch, by connector."""
    schedule: Schedule | None = None
    """The last step of the epoch."""
    blocks: list[int] | None = None
    """The block table, as allocations and steps published it; None where they did not."""
    has_groups: bool = False
    """Whether the engine has several KV cache groups, of which the block table is the first one's alone; over all epochs."""
    loading: Alloc | None = None
    """The allocation whose asynchronous load has not been received."""
    received: Received | None = None
    """The last completed asynchronous load of the epoch."""
    received_by: set[str] = field(default_factory=set)
    """The connectors that reported the epoch's last asynchronous load: a MultiConnector's children all hear of it."""
    sent_by: set[str] = field(default_factory=set)
    """The same of the blocks that were kept after the end."""
    stored_end: int = 0
    """End of what the epoch's plans or workers have stored, without a hole from its beginning."""
    store: Event | None = None
    """The store that ended there."""
    jobs: dict[int, Plan] = field(default_factory=dict)
    """Open asynchronous transfers by their number, over all epochs."""
    ended_jobs: set[int] = field(default_factory=set)
    """Numbers of those that are over, over all epochs."""
    short: Load | None = None
    """A load that brought less than it was meant to, and of which no error has been reported yet."""
    load_failed: bool = False
    """Whether a load of the epoch was reported as failed."""
    locks: int = 0
    """Chunks locked for the request, over all epochs."""
    locked_ever: int = 0
    """Chunks that were ever locked for it."""
    freed: Free | None = None
    """When its blocks were given back after its end, where that was told."""
    lock: Lock | None = None
    """The last lock, while any are held."""
    rank_lookups: list[RankLookup] = field(default_factory=list)
    """What the ranks answered since the last lookup."""
    stats: Stats | None = None
    """The last statistics of the epoch."""
    end: RequestEnd | None = None
    """The end, while its blocks are kept."""
    sent: Sent | None = None
    """The first completed asynchronous store after the end."""

    def begin_epoch(self) -> None:
        """Forget what a preemption makes void."""
        self.repeated_hits, self.stored_end, self.load_failed = 0, 0, False
        self.schedule = self.loading = self.received = self.store = self.stats = self.blocks = self.short = None
        self.allocs.clear()
        self.received_by.clear()


def grown(table: list[int] | None, added: Sequence[int]) -> list[int]:
    """A block table after a step that added blocks to it; without a table, they are the table. Several connectors may tell
    the same step."""
    if table is None:
        return list(added)
    if grows(table, added):
        table.extend(added)
    return table


def grows(table: Sequence[int], added: Sequence[int]) -> bool:
    """Whether blocks that a step adds are new to a table."""
    return bool(added) and (not table or table[-1] != added[-1])

"""Typed events.

An event is a kvtrail span read back: who recorded it, when, about which request, and the numbers of its kind. A field
that the recorder could not know is None. Foreign spans (vLLM's `llm_request`, a gateway's) are no events; they are
stored and shown beside them.

They are structs of msgspec, which are made twice as fast as dataclasses, and hold nothing that the garbage collector must
look through.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.capabilities import Capability, of_connector
from kvtrail.tracer.model.semconv import Kind


class Event(msgspec.Struct, kw_only=True, gc=False):
    """What all events share. Times are Unix nanoseconds; `sequence` counts the recorder's events from 0, and
    `request_sequence` those of them that concern this request."""

    kind: ClassVar[Kind]

    engine: str
    recorder: str
    sequence: int
    connector: str
    connector_id: str = ""
    role: str
    rank: int
    start_ns: int
    end_ns: int
    span_id: str = ""
    trace_id: str = ""
    request: str | None = None
    external: str | None = None
    request_sequence: int = 0
    epoch: int = 0
    error: str | None = None
    block_size: int | None = None
    """Tokens per KV block of the engine, where its recorder says so."""
    chunk_size: int | None = None
    capabilities: str | None = None
    """What its recorder declares about connectors: the value of `semconv.CAPABILITIES`."""

    def has(self, capability: Capability) -> bool:
        """Whether the connector of this event has a capability."""
        return capability in of_connector(self.connector, self.capabilities)

    def numbers(self) -> dict[str, Any]:
        """The fields of this event's kind that are known."""
        pairs = ((a.field, getattr(self, a.field)) for a in semconv.FIELDS[self.kind])
        return {name: value for name, value in pairs if value is not None}


class RequestStart(Event, kw_only=True, gc=False):
    kind = Kind.REQUEST_START
    total: int | None = None
    limit: int | None = None
    scheduler_step: int | None = None
    request_priority: int | None = None
    block_hashes: str | None = None


class RequestEnd(Event, kw_only=True, gc=False):
    kind = Kind.REQUEST
    total: int | None = None
    output: int | None = None
    computed: int | None = None
    outcome: str | None = None
    free_delayed: bool | None = None
    blocks_ids: tuple[int, ...] | None = None
    scheduler_step: int | None = None
    block_hashes: str | None = None
    """Of the blocks that were filled after its start."""


class Lookup(Event, kw_only=True, gc=False):
    kind = Kind.LOOKUP
    total: int
    computed: int
    matched: int | None = None
    returned: int | None = None
    is_async: bool = False
    cached: bool | None = None
    refused: int | None = None
    chunk_keys: tuple[str, ...] | None = None

    @property
    def answer(self) -> int | None:
        """What the connector said, before a guard replaced it."""
        return self.returned if self.refused is None else self.refused


class Alloc(Event, kw_only=True, gc=False):
    kind = Kind.ALLOC
    total: int | None = None
    allocated: int
    blocks_count: int | None = None
    blocks_ids: tuple[int, ...] | None = None
    computed: int | None = None
    """With `matched`: what a connector that refused the allocation said it had expected; read from logs."""
    matched: int | None = None
    hit_sources: tuple[str, ...] | None = None


class Schedule(Event, kw_only=True, gc=False):
    kind = Kind.SCHEDULE
    computed: int
    scheduled: int
    resumed: bool = False
    drafted: int | None = None
    blocks_ids: tuple[int, ...] | None = None
    """The blocks that the step adds to the request's table; all of them on the first step."""


class Preempt(Event, kw_only=True, gc=False):
    kind = Kind.PREEMPT
    blocks_free: int | None = None


class Transfer(Event, kw_only=True, gc=False):
    start: int
    count: int
    blocks_count: int | None = None
    bytes: int | None = None
    expected: int | None = None
    blocks_ids: tuple[int, ...] | None = None


class Load(Transfer, kw_only=True, gc=False):
    kind = Kind.LOAD


class Store(Transfer, kw_only=True, gc=False):
    kind = Kind.STORE


class Received(Event, kw_only=True, gc=False):
    kind = Kind.RECEIVED
    failed: bool = False
    scheduler_step: int | None = None


class Sent(Event, kw_only=True, gc=False):
    kind = Kind.SENT
    scheduler_step: int | None = None


class Plan(Event, kw_only=True, gc=False):
    start: int | None = None
    """None where the connector names blocks, but not whose tokens they are."""
    count: int
    blocks_ids: tuple[int, ...] | None = None
    chunk_keys: tuple[str, ...] | None = None
    transfer_id: int | None = None


class LoadPlan(Plan, kw_only=True, gc=False):
    kind = Kind.LOAD_PLAN


class StorePlan(Plan, kw_only=True, gc=False):
    kind = Kind.STORE_PLAN
    chunk_present: bool | None = None


class TransferEnd(Event, kw_only=True, gc=False):
    kind = Kind.TRANSFER_END
    transfer_id: int
    failed: bool = False
    scheduler_step: int | None = None


class Flush(Event, kw_only=True, gc=False):
    kind = Kind.FLUSH
    transfer_id: int


class LoadError(Event, kw_only=True, gc=False):
    kind = Kind.LOAD_ERROR
    blocks_ids: tuple[int, ...] = ()


class RankLookup(Event, kw_only=True, gc=False):
    kind = Kind.RANK_LOOKUP
    total: int | None = None
    matched: int


class Prefetch(Event, kw_only=True, gc=False):
    kind = Kind.PREFETCH
    start: int
    count: int


class Lock(Event, kw_only=True, gc=False):
    kind = Kind.LOCK
    locks: int


class Unlock(Event, kw_only=True, gc=False):
    kind = Kind.UNLOCK
    locks: int


class Refcount(Event, kw_only=True, gc=False):
    kind = Kind.REFCOUNT
    chunk_key: str | None = None
    refs: int | None = None
    pins: int | None = None


class Free(Event, kw_only=True, gc=False):
    kind = Kind.FREE
    blocks_count: int | None = None
    lease_expired: bool | None = None


class Read(Event, kw_only=True, gc=False):
    kind = Kind.READ
    blocks_count: int | None = None


class Stats(Event, kw_only=True, gc=False):
    kind = Kind.STATS
    total: int | None = None
    reported: int | None = None
    from_connector: int | None = None
    queried: int | None = None


class Key(Event, kw_only=True, gc=False):
    kind = Kind.KEY
    chunk_key: str
    chunk_parent: str | None = None
    chunk_content: str | None = None


class Pool(Event, kw_only=True, gc=False):
    kind = Kind.POOL
    pool_tier: str = ""
    pool_used: int | None = None
    pool_free: int | None = None
    pool_total: int | None = None


class Index(Event, kw_only=True, gc=False):
    kind = Kind.INDEX
    index_published: int | None = None
    index_applied: int | None = None
    index_declined: int | None = None


class Evict(Event, kw_only=True, gc=False):
    kind = Kind.EVICT
    chunk_key: str | None = None
    count: int | None = None
    bytes: int | None = None


class Reset(Event, kw_only=True, gc=False):
    kind = Kind.RESET
    succeeded: bool | None = None
    scheduler_step: int | None = None


class CacheReset(Event, kw_only=True, gc=False):
    kind = Kind.CACHE_RESET
    scheduler_step: int | None = None


class Heartbeat(Event, kw_only=True, gc=False):
    kind = Kind.HEARTBEAT
    recorder_recorded: int = 0
    recorder_dropped: int = 0
    recorder_closed: bool = False


CLASSES: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RequestStart, RequestEnd, Lookup, Alloc, Schedule, Preempt, Load, Store, Received, Sent, LoadPlan, StorePlan,
        TransferEnd, Flush, LoadError, RankLookup, Prefetch, Lock, Unlock, Refcount, Free, Read, Stats, Key, Pool, Index,
        Evict, Reset, CacheReset, Heartbeat,
    )
}  # fmt: skip

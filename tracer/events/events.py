"""Typed events.

An event is a kvtrail span read back: who recorded it, when, about which request, and the numbers of its kind. A field
that the recorder could not know is None. Foreign spans (vLLM's `llm_request`, a gateway's) are no events; they are
stored and shown beside them.

These structs are also the table by which spans are decoded. `msgspec.convert` fills a struct from a span's attributes, whose
names `semconv` gives to the fields, and checks each value by the field's type. A constructor checks nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.capabilities import Capability, of_connector
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.spans import LATEST_NS

MOST = 2**50
"""A count beyond this is taken for damage, so that sums of counts fit into 64 bits."""
MOST_EVENTS = 2**40
"""A recorder's number beyond this is taken for damage: 10,000 events a second reach it in three years."""
LONGEST_NAME = 1_000
LONGEST_ID = 65_536
"""Characters. Ids of requests are the callers', who may send as much as an HTTP header holds."""
LONGEST_NS = 400 * 86_400 * 10**9
"""An event that lasted longer is taken for damage: one of its times is wrong."""
Count = Annotated[int, Meta(ge=0, le=MOST)]
Number = Annotated[int, Meta(ge=0, le=MOST_EVENTS)]
AnyCount = Annotated[int, Meta(ge=-MOST, le=MOST)]
"""What a connector or an engine reports about itself is recorded as it is, however wrong: it may be negative."""
Time = Annotated[int, Meta(ge=0, lt=LATEST_NS)]
"""Unix nanoseconds."""
Offset = Annotated[int, Meta(gt=-LATEST_NS, lt=LATEST_NS)]
"""Nanoseconds from one clock to another."""
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Id = Annotated[str, Meta(max_length=LONGEST_ID)]
Blocks = tuple[Count, ...]
Keys = tuple[str, ...]
Fingerprints = tuple[Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)], ...]
"""Digests of 64 bits, as signed numbers."""

_KEYS = {
    attribute.field: attribute.key
    for attributes in (
        (
            semconv.ENGINE_ID,
            semconv.RECORDER_ID,
            semconv.BLOCK_SIZE,
            semconv.CAPABILITIES,
            semconv.PATIENCE,
            semconv.ASYNC_SCHEDULING,
            semconv.SAMPLED_ONLY,
            semconv.LAUNCH,
            semconv.LACKS,
            semconv.CACHE_IDENTITY,
        ),
        semconv.COMMON,
        *semconv.FIELDS.values(),
    )
    for attribute in attributes
}


def _key(field: str) -> str:
    """A field's name on the wire."""
    return _KEYS.get(field, field)


class Event(Struct, kw_only=True, gc=False, rename=_key, forbid_unknown_fields=True):
    """What all events share. Times are Unix nanoseconds; `sequence` counts the recorder's events from 0, and
    `request_sequence` those of them that concern this request."""

    kind: ClassVar[Kind]

    engine: Name
    recorder: Name
    sequence: Number
    connector: Name = ""
    connector_id: Name = ""
    role: Name = ""
    rank: Count = 0
    start_ns: Time
    end_ns: Time
    span_id: Annotated[str, Meta(min_length=1)] = ""
    trace_id: str = ""
    request: Id | None = None
    external: Id | None = None
    request_sequence: Number = 0
    epoch: Count = 0
    error: str | None = None
    block_size: Count | None = None
    """Tokens per KV block of the engine, where its recorder says so."""
    chunk_size: Count | None = None
    capabilities: str | None = None
    """What its recorder declares about connectors: the value of `semconv.CAPABILITIES`."""
    patience: str | None = None
    """For how long its recorder declares that connectors wait for another engine: the value of `semconv.PATIENCE`."""
    scheduler_async: bool | None = None
    """True where its recorder says that a step is scheduled before the one before it has ended."""
    sampled: bool | None = None
    """False where OpenTelemetry's sampler left the request out."""
    sampled_only: bool | None = None
    """True where its recorder leaves out the requests that are not sampled."""
    launch: str | None = None
    """The launch of the engine, where its recorder says so."""
    lacks: str | None = None
    """What the engine does not show: the value of `semconv.LACKS`."""
    cache_identity: str | None = None
    """What its KV and the hashes of its blocks depend on besides the tokens, where its recorder says so."""

    def has(self, capability: Capability) -> bool:
        """Whether the connector of this event has a capability."""
        return capability in of_connector(self.connector, self.capabilities)

    def numbers(self) -> dict[str, Any]:
        """The fields of this event's kind that are known; hashes in hexadecimal digits."""
        pairs = ((a.field, getattr(self, a.field)) for a in semconv.FIELDS[self.kind])
        return {n: value.hex() if type(value) is bytes else value for n, value in pairs if value is not None}


class RequestStart(Event, kw_only=True, gc=False):
    kind = Kind.REQUEST_START
    total: Count | None = None
    limit: Count | None = None
    scheduler_step: Count | None = None
    request_priority: AnyCount | None = None
    block_hashes: bytes | None = None
    """Those that were not told before; `chains` has the whole chain."""
    block_first: Count | None = None
    block_after: bytes | None = None
    identity: str | None = None
    block_seen: Count | None = None
    adapter_version: str | None = None


class RequestEnd(Event, kw_only=True, gc=False):
    kind = Kind.REQUEST
    total: Count | None = None
    output: Count | None = None
    computed: Count | None = None
    outcome: str | None = None
    free_delayed: bool | None = None
    blocks_ids: Blocks | None = None
    scheduler_step: Count | None = None
    block_hashes: bytes | None = None
    """Of the blocks that were filled since its last ones were told."""
    block_first: Count | None = None
    handoff: bool | None = None
    lease_s: Count | None = None
    prompt: Count | None = None
    cache_read: Count | None = None


class CutOff(Event, kw_only=True, gc=False):
    kind = Kind.CUT_OFF
    outcome: str | None = None
    prompt: Count | None = None


class Lookup(Event, kw_only=True, gc=False):
    kind = Kind.LOOKUP
    total: Count
    computed: Count
    matched: Count | None = None
    returned: AnyCount | None = None
    is_async: bool = False
    cached: bool | None = None
    refused: AnyCount | None = None
    chunk_keys: Keys | None = None
    scheduler_step: Count | None = None
    block_hashes: bytes | None = None
    """Of the blocks that its output has filled since its last ones were told."""
    block_first: Count | None = None

    @property
    def answer(self) -> int | None:
        """What the connector said, before a guard replaced it."""
        return self.returned if self.refused is None else self.refused


class Alloc(Event, kw_only=True, gc=False):
    kind = Kind.ALLOC
    total: Count | None = None
    allocated: Count
    blocks_count: Count | None = None
    blocks_ids: Blocks | None = None
    computed: Count | None = None
    """With `matched`: what a connector that refused the allocation said it had expected; read from logs."""
    matched: Count | None = None
    hit_sources: Keys | None = None
    scheduler_step: Count | None = None


class Schedule(Event, kw_only=True, gc=False):
    kind = Kind.SCHEDULE
    computed: Count
    scheduled: Count
    resumed: bool = False
    drafted: Count | None = None
    blocks_ids: Blocks | None = None
    """The blocks that the step adds to the request's table; all of them on the first step, and with `blocks_whole`."""
    blocks_whole: bool = False
    scheduler_step: Count | None = None
    scheduler_tokens: Count | None = None
    """Tokens of all requests in this step."""


class Preempt(Event, kw_only=True, gc=False):
    kind = Kind.PREEMPT
    blocks_free: Count | None = None
    scheduler_step: Count | None = None
    computed: Count | None = None
    """What it had computed, all of which is taken from it."""


class Transfer(Event, kw_only=True, gc=False):
    start: Count
    count: Count
    blocks_count: Count | None = None
    bytes: Count | None = None
    expected: Count | None = None
    blocks_ids: Blocks | None = None


class Load(Transfer, kw_only=True, gc=False):
    kind = Kind.LOAD


class Store(Transfer, kw_only=True, gc=False):
    kind = Kind.STORE


class Received(Event, kw_only=True, gc=False):
    kind = Kind.RECEIVED
    failed: bool = False
    scheduler_step: Count | None = None


class Sent(Event, kw_only=True, gc=False):
    kind = Kind.SENT
    scheduler_step: Count | None = None


class Plan(Event, kw_only=True, gc=False):
    start: Count | None = None
    """None where the connector names blocks, but not whose tokens they are."""
    count: Count
    blocks_ids: Blocks | None = None
    chunk_keys: Keys | None = None
    transfer_id: Count | None = None
    computed: Count | None = None
    """With `scheduled` and `drafted`: what the step that builds the plan runs of the request; None where it does not run it,
    or where that was not recorded."""
    scheduled: Count | None = None
    drafted: Count | None = None


class LoadPlan(Plan, kw_only=True, gc=False):
    kind = Kind.LOAD_PLAN


class StorePlan(Plan, kw_only=True, gc=False):
    kind = Kind.STORE_PLAN
    chunk_present: bool | None = None


class TransferEnd(Event, kw_only=True, gc=False):
    kind = Kind.TRANSFER_END
    transfer_id: Count
    failed: bool = False
    scheduler_step: Count | None = None


class Flush(Event, kw_only=True, gc=False):
    kind = Kind.FLUSH
    transfer_id: Count


class LoadError(Event, kw_only=True, gc=False):
    kind = Kind.LOAD_ERROR
    blocks_ids: Blocks = ()


class RankLookup(Event, kw_only=True, gc=False):
    kind = Kind.RANK_LOOKUP
    total: Count | None = None
    matched: Count
    group: Count | None = None
    boundaries: tuple[Count, ...] | None = None


class Prefetch(Event, kw_only=True, gc=False):
    kind = Kind.PREFETCH
    start: Count
    count: Count
    chunk_keys: Keys | None = None


class Lock(Event, kw_only=True, gc=False):
    kind = Kind.LOCK
    locks: Count


class Unlock(Event, kw_only=True, gc=False):
    kind = Kind.UNLOCK
    locks: Count


class Refcount(Event, kw_only=True, gc=False):
    kind = Kind.REFCOUNT
    chunk_key: str | None = None
    refs: AnyCount | None = None
    pins: AnyCount | None = None


class Free(Event, kw_only=True, gc=False):
    kind = Kind.FREE
    blocks_count: Count | None = None
    lease_expired: bool | None = None


class Read(Event, kw_only=True, gc=False):
    kind = Kind.READ
    blocks_count: Count | None = None


class Stats(Event, kw_only=True, gc=False):
    kind = Kind.STATS
    total: Count | None = None
    reported: AnyCount | None = None
    from_connector: AnyCount | None = None
    queried: Count | None = None


class Key(Event, kw_only=True, gc=False):
    kind = Kind.KEY
    chunk_key: str
    chunk_parent: str | None = None
    chunk_content: str | None = None


class Pool(Event, kw_only=True, gc=False):
    kind = Kind.POOL
    pool_tier: str = ""
    pool_used: AnyCount | None = None
    pool_free: AnyCount | None = None
    pool_total: Count | None = None


class Index(Event, kw_only=True, gc=False):
    kind = Kind.INDEX
    index_published: Count | None = None
    index_applied: Count | None = None
    index_declined: Count | None = None


class Evict(Event, kw_only=True, gc=False):
    kind = Kind.EVICT
    chunk_key: str | None = None
    count: Count | None = None
    bytes: Count | None = None
    pool_tier: Name | None = None
    pushed_by: Id | None = None


class Reset(Event, kw_only=True, gc=False):
    kind = Kind.RESET
    succeeded: bool | None = None
    scheduler_step: Count | None = None


class CacheReset(Event, kw_only=True, gc=False):
    kind = Kind.CACHE_RESET
    scheduler_step: Count | None = None


class PrefixCache(Event, kw_only=True, gc=False):
    kind = Kind.PREFIX_CACHE
    cache_changes: tuple[AnyCount, ...] = ()
    block_hashes: bytes = b""
    group: Count | None = None
    scheduler_step: Count | None = None
    cache_whole: bool = False
    pool_tier: str | None = None
    pushed_by: str | None = None


class Holdings(Event, kw_only=True, gc=False):
    kind = Kind.HOLDINGS
    chunk_keys: Keys = ()
    holdings_first: bool = False
    holdings_last: bool = False


class BlockCheck(Event, kw_only=True, gc=False):
    """Names and numbers about a block have one place in each of the arrays."""

    kind = Kind.BLOCK_CHECK
    check_look: Name
    check_blocks: Count
    check_unknown: Count = 0
    check_hashes: Keys = ()
    check_fingerprints: Fingerprints = ()
    check_tokens: Blocks = ()
    check_wrong_kinds: Keys = ()
    check_wrong_blocks: Blocks = ()
    check_wrong_tokens: Blocks = ()
    check_wrong_hashes: Keys = ()
    check_wrong_layers: Keys = ()
    check_wrong_holds: Keys = ()
    check_wrong_from: Keys = ()
    check_wrong_more: Count = 0
    check_healed: bool = False
    group: Count | None = None
    scheduler_step: Count | None = None
    identity: str | None = None
    check_slim: bytes = b""

    @property
    def wrong(self) -> int:
        """How many blocks were wrong, those that are not listed included."""
        return len(self.check_wrong_kinds) + self.check_wrong_more

    @property
    def looked(self) -> int:
        """How many blocks were looked at: a recorder may have counted wrong ones before it told them."""
        return max(self.check_blocks, self.check_unknown + self.wrong)

    def numbers(self) -> dict[str, Any]:
        """Without what is told for other engines, which is much and says nothing to a person."""
        told = super().numbers().items()
        return {name: value for name, value in told if name not in _FOR_OTHER_ENGINES and value not in ((), "")}


_FOR_OTHER_ENGINES = frozenset({"check_hashes", "check_fingerprints", "check_tokens", "check_slim"})


class Failure(Event, kw_only=True, gc=False):
    kind = Kind.FAILURE
    call: str = ""


class Heartbeat(Event, kw_only=True, gc=False):
    kind = Kind.HEARTBEAT
    recorder_recorded: Count = 0
    recorder_dropped: Count = 0
    recorder_closed: bool = False
    recorder_clock_offset: Offset | None = None
    scheduler_step: Count | None = None
    recorder_untold: Keys | None = None
    recorder_probes_off: Keys | None = None
    idle_requests: Keys | None = None
    idle_events: tuple[Number, ...] | None = None
    recorder_ended_by: str | None = None
    held_bytes: Count | None = None
    scheduler_spare_ns: Count | None = None
    scheduler_paused: bool | None = None
    recorder_dropped_by: Keys | None = None


UNFAMILIAR = "kv.unfamiliar"
"""The kind of `Unfamiliar`, which no span has."""


class Unfamiliar(Event, kw_only=True, gc=False):
    """Stands for an event that only another version of kvtrail understands: it has its numbers, so that none is missing, and
    whatever it may have changed is not known any more."""

    kind = UNFAMILIAR  # type: ignore[assignment]  # no recorder's vocabulary has it

    def numbers(self) -> dict[str, Any]:
        return {}


CLASSES: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RequestStart, RequestEnd, CutOff, Lookup, Alloc, Schedule, Preempt, Load, Store, Received, Sent, LoadPlan, StorePlan,
        TransferEnd, Flush, LoadError, RankLookup, Prefetch, Lock, Unlock, Refcount, Free, Read, Stats, Key, Pool, Index,
        Evict, Reset, CacheReset, PrefixCache, Holdings, BlockCheck, Failure, Heartbeat,
    )
}  # fmt: skip

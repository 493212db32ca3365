"""Typed events: the only declaration of each kind.

An event is a decoded kvtrail span: its recorder, its time, its request, and the numbers of its kind. A field that the
recorder could not know is None. Foreign spans (vLLM's `llm_request`, a gateway's) are not events; they are stored and shown
beside them.

Each class is a kind of event. Its docstring says what the event means, and its fields are the kind's attributes: type with
unit and bounds, name on the wire, and meaning. Everything else is derived from them. A recorder's tuple holds the values in
the order of the fields (`FIELDS`), and the encoder takes names and types from there. `msgspec.convert` fills a struct from a
span's attributes and checks each value by the field's type; a constructor checks nothing. `docs/spans.md` is generated from
the classes.

Annotations are evaluated when a class is made, without `from __future__ import annotations`: `_key` needs the names in them.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from inspect import get_annotations
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, final, get_args, get_origin

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.capabilities import Capability, of_connector
from kvtrail.tracer.events.semconv import Attribute, Kind
from kvtrail.tracer.events.spans import LATEST_NS
from kvtrail.tracer.events.structs import Meta, Struct

MOST = 2**50
"""A larger count is treated as damage, so that sums of counts fit into 64 bits."""
MAX_EVENTS = 2**40
"""A larger sequence number is treated as damage: a recorder of 10,000 events/s reaches this one after three years."""
LONGEST_NAME = 1_000
LONGEST_ID = 65_536
"""Maximum length of an id in characters. Callers choose the ids of requests and may send as much as an HTTP header holds."""
LONGEST_REASON = 500
"""Maximum length of a recorded reason in characters."""
LONGEST_NS = 400 * 86_400 * 10**9
"""A longer event is treated as damage: one of its times is wrong."""

Count = Annotated[int, Meta(ge=0, le=MOST)]
Tokens = Count
Bytes = Count
Seconds = Count
Nanoseconds = Count
AnyCount = Annotated[int, Meta(ge=-MOST, le=MOST)]
"""A count that a connector or an engine reports about itself. It is recorded unchanged, even if wrong or negative."""
AnyTokens = AnyCount
Number = Annotated[int, Meta(ge=0, le=MAX_EVENTS)]
Time = Annotated[int, Meta(ge=0, lt=LATEST_NS)]
"""Unix nanoseconds."""
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Id = Annotated[str, Meta(max_length=LONGEST_ID)]
Ids = tuple[Count, ...]
Keys = tuple[str, ...]

KEYS = {attribute.field: attribute.key for attribute in (*semconv.COMMON, *semconv.RESOURCE)}
"""Each field's name on the wire."""


def _on_wire(key: str, brief: str, field: str = "") -> Attribute:
    """The attribute of a field: its name on the wire, and its meaning in one sentence. The field's annotation gives the type.
    Unless it is given, the field's name is derived from the key."""
    attribute = Attribute(key, object, brief, field)
    KEYS[attribute.field] = key
    return attribute


Total = Annotated[
    Tokens,
    _on_wire(
        "kvtrail.tokens.total",
        "Number of tokens of the request at this time: the prompt, and after a preemption also its output so far.",
    ),
]
Computed = Annotated[
    Tokens,
    _on_wire(
        "kvtrail.tokens.computed",
        "Number of tokens that vLLM has computed: the argument of the lookup, or the position at which a step begins.",
    ),
]
Matched = Annotated[
    Tokens,
    _on_wire(
        "kvtrail.tokens.matched",
        "Length in tokens of the prefix that the connector's store holds; absent if the connector hides it.",
    ),
]
Scheduled = Annotated[
    Tokens, _on_wire("kvtrail.tokens.scheduled", "Number of tokens that the scheduler runs in this step.")
]
Drafted = Annotated[
    Tokens, _on_wire("kvtrail.tokens.drafted", "Number of speculative tokens among the scheduled ones.")
]
TransferStart = Annotated[Tokens, _on_wire("kvtrail.tokens.start", "First token position of a transfer.")]
TransferTokens = Annotated[Tokens, _on_wire("kvtrail.tokens.count", "Number of tokens in a transfer.")]
Step = Annotated[
    Count,
    _on_wire(
        "kvtrail.scheduler.step", "Number of scheduling steps that had begun before the event: the scheduler's time."
    ),
]
Hashes = Annotated[
    bytes,
    _on_wire(
        "kvtrail.block.hashes",
        "The last 8 bytes of vLLM's hash of each full block, in the order of the tokens. Each hash is reported once; later"
        " events refer to it.",
    ),
]
FirstBlock = Annotated[
    Count, _on_wire("kvtrail.block.first", "Index of the block with the first hash; absent if it is 0.")
]
BlocksCount = Annotated[Count, _on_wire("kvtrail.blocks.count", "Number of KV blocks.")]
BlockIds = Annotated[
    Ids,
    _on_wire(
        "kvtrail.blocks.ids",
        "KV block ids, in the order of their tokens. With several KV cache groups: the ids of the first group, then those of"
        " the next. 0 is vLLM's null block: a position without KV.",
    ),
]
BlocksByGroup = Annotated[
    Ids,
    _on_wire(
        "kvtrail.blocks.by_group", "Number of block ids in each KV cache group; absent if there is only one group."
    ),
]
ChunkKeys = Annotated[
    Keys,
    _on_wire("kvtrail.chunk.keys", "Keys of chunks in the order of their tokens, as shortened hexadecimal digits."),
]
PushedBy = Annotated[
    Id,
    _on_wire(
        "kvtrail.chunk.pushed_by",
        "The request whose store took the chunk's place, or that stored the chunk; absent if it is unknown.",
        "pushed_by",
    ),
]
TransferId = Annotated[Count, _on_wire("kvtrail.transfer.id", "The connector's number for an asynchronous transfer.")]
Tier = Annotated[Name, _on_wire("kvtrail.pool.tier", "The pool's name: gpu, cpu, disk, ...")]
TransferBytes = Annotated[Bytes, _on_wire("kvtrail.bytes", "Number of bytes copied or freed.")]
ChunkKey = Annotated[
    str, _on_wire("kvtrail.chunk.key", "Key of a chunk in the connector's store, as shortened hexadecimal digits.")
]
Outcome = Annotated[str, _on_wire("kvtrail.outcome", "How the request ended: vLLM's finish status in lower case.")]
Failed = Annotated[bool, _on_wire("kvtrail.failed", "The transfer failed.")]
Prompt = Annotated[Tokens, _on_wire("gen_ai.usage.input_tokens", "Number of tokens in the request's prompt.", "prompt")]
Group = Annotated[
    Count,
    _on_wire("kvtrail.group", "Index of the KV cache group, if there are several and the event concerns one of them."),
]
LeaseSeconds = Annotated[
    Seconds,
    _on_wire(
        "kvtrail.lease.s", "Maximum time in seconds for which the connector keeps the blocks, from this event on."
    ),
]
Peer = Annotated[
    Name,
    _on_wire("kvtrail.peer", "The other engine: its connector's id, or its worker's name, if known."),
]
PeerRank = Annotated[Count, _on_wire("kvtrail.peer.rank", "The rank of the other engine's worker.")]
PeerRequest = Annotated[Id, _on_wire("kvtrail.peer.request", "The other engine's id of the request.")]
NotificationsExpected = Annotated[
    Count,
    _on_wire(
        "kvtrail.notifications.expected",
        "Number of equal notifications to expect, according to the sender: one from each rank that reads or writes.",
    ),
]
Reason = Annotated[str, _on_wire("kvtrail.reason", "The reason of the failure, as the connector reports it.")]
Identity = Annotated[
    str,
    _on_wire(
        "kvtrail.request.identity",
        "A digest of the adapter's name and the cache salt, on which the KV depends besides the tokens; `plain` if the"
        " request has neither.",
        "identity",
    ),
]


def _key(field: str) -> str:
    return KEYS.get(field, field)


class Event(Struct, kw_only=True, gc=False, rename=_key, forbid_unknown_fields=True):
    """The fields that all events share. Times are Unix nanoseconds. `sequence` counts the recorder's events from 0, and
    `request_sequence` counts its events of this request.

    The classes of the kinds are final, so `type(event) is Lookup` is equivalent to `isinstance`, which takes seven times as
    long if the result is False."""

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
    """Tokens per KV block of the engine; None if its recorder does not say."""
    chunk_size: Count | None = None
    capabilities: str | None = None
    """The connector capabilities that its recorder declares: the value of `semconv.CAPABILITIES`."""
    patience: str | None = None
    """The declared time that connectors wait for another engine: the value of `semconv.PATIENCE`."""
    scheduler_async: bool | None = None
    """True if its recorder says that a step is scheduled before the previous step has ended."""
    sampled: bool | None = None
    """False if OpenTelemetry's sampler left the request out."""
    sampled_only: bool | None = None
    """True if its recorder leaves out the requests that are not sampled."""
    launch: str | None = None
    """The launch of the engine; None if its recorder does not say."""
    lacks: str | None = None
    """The features that the engine does not show: the value of `semconv.LACKS`."""
    cache_identity: str | None = None
    """Digests of everything that KV and block hashes depend on besides the tokens; None if its recorder does not say."""
    groups: str | None = None
    """The engine's KV cache groups: the value of `semconv.GROUPS`."""

    def has(self, capability: Capability) -> bool:
        """Whether the connector of this event has a capability."""
        return capability in of_connector(self.connector, self.capabilities)

    def numbers(self) -> dict[str, Any]:
        """The fields of this event's kind that are known; hashes in hexadecimal digits."""
        pairs = ((name, getattr(self, name)) for name in _NAMES[self.kind])
        return {n: value.hex() if type(value) is bytes else value for n, value in pairs if value is not None}


@final
class RequestStart(Event, kw_only=True, gc=False):
    """A request reached the scheduler: announces the root span, which ends only with the request."""

    kind = Kind.REQUEST_START
    total: Total | None = None
    limit: Annotated[
        Tokens | None, _on_wire("kvtrail.tokens.limit", "Maximum number of tokens that the request may generate.")
    ] = None
    scheduler_step: Step | None = None
    request_priority: Annotated[
        AnyCount | None, _on_wire("kvtrail.request.priority", "The request's priority; absent if it has none.")
    ] = None
    block_hashes: Hashes | None = None
    """The hashes that were not reported before; `chains` has the whole chain."""
    block_first: FirstBlock | None = None
    block_after: Annotated[
        bytes | None,
        _on_wire(
            "kvtrail.block.after", "The hash of the block before the first one; other requests have reported its chain."
        ),
    ] = None
    identity: Identity | None = None
    block_seen: Annotated[
        Count | None,
        _on_wire(
            "kvtrail.block.seen",
            "Number of blocks at the beginning of the prompt that an earlier request of this launch may have had; no earlier"
            " request had the blocks after them. Absent if the recorder does not know.",
        ),
    ] = None
    adapter_version: Annotated[
        str | None,
        _on_wire(
            "kvtrail.adapter.version",
            "A digest of parts of the weights of the request's adapter; without weights, of its path.",
        ),
    ] = None


@final
class RequestEnd(Event, kw_only=True, gc=False):
    """Root of a request's KV trace, from its arrival to its end."""

    kind = Kind.REQUEST
    total: Total | None = None
    output: Annotated[
        Tokens | None, _on_wire("kvtrail.tokens.output", "Number of generated tokens when the request finished.")
    ] = None
    computed: Computed | None = None
    outcome: Outcome | None = None
    free_delayed: Annotated[
        bool | None, _on_wire("kvtrail.free.delayed", "The connector keeps the blocks after the request has finished.")
    ] = None
    blocks_ids: BlockIds | None = None
    blocks_by_group: BlocksByGroup | None = None
    scheduler_step: Step | None = None
    block_hashes: Hashes | None = None
    """The hashes of the blocks that were filled since its last report."""
    block_first: FirstBlock | None = None
    handoff: Annotated[
        bool | None,
        _on_wire("kvtrail.handoff", "The caller asked for a hand-off to another engine: `do_remote_decode`."),
    ] = None
    lease_s: LeaseSeconds | None = None
    prompt: Prompt | None = None
    cache_read: Annotated[
        Tokens | None,
        _on_wire(
            "gen_ai.usage.cache_read.input_tokens",
            "Number of prompt tokens that were not computed at the first admission, because vLLM's own prefix cache or the"
            " connector had them.",
            "cache_read",
        ),
    ] = None


@final
class CutOff(Event, kw_only=True, gc=False):
    """Root of a request that was open when its engine ended: the span is a `kv.request` with status ERROR and the
    outcome `cut_off`. The engine sends it at shutdown; if the engine cannot, the export process sends it, as it outlives the
    engine. It does not say how the request would have ended, and no rule judges it."""

    kind = Kind.CUT_OFF
    outcome: Outcome | None = None
    prompt: Prompt | None = None


@final
class Lookup(Event, kw_only=True, gc=False):
    """`get_num_new_matched_tokens`: the scheduler asks what the connector could load."""

    kind = Kind.LOOKUP
    total: Total
    computed: Computed
    matched: Matched | None = None
    returned: Annotated[
        AnyTokens | None,
        _on_wire(
            "kvtrail.tokens.returned",
            "The answer to the scheduler: the number of tokens beyond the computed ones; absent for 'ask me later'.",
        ),
    ] = None
    is_async: Annotated[bool, _on_wire("kvtrail.async", "The load runs between scheduler steps.")] = False
    cached: Annotated[
        bool | None, _on_wire("kvtrail.cached", "Whether the answer was cached from an earlier lookup.")
    ] = None
    refused: Annotated[
        AnyTokens | None,
        _on_wire(
            "kvtrail.tokens.refused",
            "The connector's own answer, if the guard replaced it by `kvtrail.tokens.returned`.",
        ),
    ] = None
    chunk_keys: ChunkKeys | None = None
    scheduler_step: Step | None = None
    block_hashes: Hashes | None = None
    """The hashes of the blocks that its output has filled since its last report."""
    block_first: FirstBlock | None = None

    @property
    def answer(self) -> int | None:
        """The connector's own answer, before a guard replaced it."""
        return self.returned if self.refused is None else self.refused


@final
class Alloc(Event, kw_only=True, gc=False):
    """`update_state_after_alloc`: blocks were allocated, and this number of external tokens is to be loaded."""

    kind = Kind.ALLOC
    total: Total | None = None
    allocated: Annotated[
        AnyTokens,
        _on_wire("kvtrail.tokens.allocated", "Number of external tokens for which the scheduler allocated blocks."),
    ]
    blocks_count: BlocksCount | None = None
    blocks_ids: BlockIds | None = None
    blocks_by_group: BlocksByGroup | None = None
    computed: Computed | None = None
    """With `matched`: the numbers that a connector expected when it refused the allocation; read from logs."""
    matched: Matched | None = None
    hit_sources: Annotated[
        Keys | None,
        _on_wire(
            "kvtrail.hit.sources",
            "The sources of the external tokens, as vLLM will count them: `host:256`, `disk:64`, ...",
        ),
    ] = None
    scheduler_step: Step | None = None


@final
class Schedule(Event, kw_only=True, gc=False):
    """A step of a request: the first after its admission or resumption. At level `detailed`, also each later step with new
    information; these arrive as rows of `kv.step`."""

    kind = Kind.SCHEDULE
    computed: Computed
    scheduled: Scheduled
    resumed: Annotated[bool, _on_wire("kvtrail.resumed", "The request runs again after a preemption.")] = False
    drafted: Drafted | None = None
    blocks_ids: BlockIds | None = None
    """The blocks that the step adds to the request's table. The first step, and one with `blocks_whole`, has all blocks."""
    blocks_by_group: BlocksByGroup | None = None
    blocks_whole: Annotated[
        bool,
        _on_wire(
            "kvtrail.blocks.whole", "The blocks are the request's whole table, not only those that the step adds."
        ),
    ] = False
    scheduler_step: Step | None = None
    scheduler_tokens: Annotated[
        Tokens | None, _on_wire("kvtrail.scheduler.tokens", "Number of tokens that the step runs, of all requests.")
    ] = None
    """Tokens of all requests in this step."""


@final
class Preempt(Event, kw_only=True, gc=False):
    """The scheduler took the request's blocks away; its computed tokens are 0 again."""

    kind = Kind.PREEMPT
    blocks_free: Annotated[
        Count | None,
        _on_wire(
            "kvtrail.blocks.free", "Number of free KV blocks after the preemptions of a step, before the step used any."
        ),
    ] = None
    scheduler_step: Step | None = None
    computed: Computed | None = None
    """The tokens that it had computed; it loses all of them."""


class Transfer(Event, kw_only=True, gc=False):
    start: TransferStart
    count: TransferTokens
    blocks_count: BlocksCount | None = None
    bytes: TransferBytes | None = None
    expected: Annotated[
        Tokens | None,
        _on_wire("kvtrail.tokens.expected", "Number of tokens that the transfer should have moved; absent if unknown."),
    ] = None
    blocks_ids: BlockIds | None = None


@final
class Load(Transfer, kw_only=True, gc=False):
    """Tokens were copied from the connector's store into KV blocks."""

    kind = Kind.LOAD


@final
class Store(Transfer, kw_only=True, gc=False):
    """Tokens were copied from KV blocks into the connector's store."""

    kind = Kind.STORE


@final
class Received(Event, kw_only=True, gc=False):
    """The workers reported an asynchronous load as finished."""

    kind = Kind.RECEIVED
    failed: Failed = False
    scheduler_step: Step | None = None


@final
class Sent(Event, kw_only=True, gc=False):
    """The workers reported an asynchronous store as finished."""

    kind = Kind.SENT
    scheduler_step: Step | None = None


Job = tuple[str, int]
"""An asynchronous transfer: the connector's id, and its number of the transfer. Each connector counts for itself."""


class Plan(Event, kw_only=True, gc=False):
    start: TransferStart | None = None
    """None where the connector names blocks, but not their tokens."""
    count: TransferTokens
    blocks_ids: BlockIds | None = None
    blocks_by_group: BlocksByGroup | None = None
    group_starts: Annotated[
        tuple[Tokens, ...] | None,
        _on_wire(
            "kvtrail.tokens.starts",
            "First token position of each KV cache group's blocks in a plan; absent if there is only one group, or the"
            " connector does not report it.",
            "group_starts",
        ),
    ] = None
    chunk_keys: ChunkKeys | None = None
    transfer_id: TransferId | None = None
    computed: Computed | None = None
    """With `scheduled` and `drafted`: the part of the request that the step with this plan runs. None if the step does not
    run the request, or if this was not recorded."""
    scheduled: Scheduled | None = None
    drafted: Drafted | None = None

    @property
    def job(self) -> Job | None:
        """None where the connector does not number its transfers."""
        return None if self.transfer_id is None else (self.connector_id, self.transfer_id)


@final
class LoadPlan(Plan, kw_only=True, gc=False):
    """A load that the scheduler's side of the connector assigns to its workers, read from its metadata."""

    kind = Kind.LOAD_PLAN


@final
class StorePlan(Plan, kw_only=True, gc=False):
    """A store that the scheduler's side of the connector assigns to its workers, read from its metadata."""

    kind = Kind.STORE_PLAN
    chunk_present: Annotated[
        bool | None, _on_wire("kvtrail.chunk.present", "The store already held the chunk, so nothing is copied.")
    ] = None


@final
class TransferEnd(Event, kw_only=True, gc=False):
    """The connector's workers reported that an asynchronous transfer of a plan has ended."""

    kind = Kind.TRANSFER_END
    transfer_id: TransferId
    failed: Failed = False
    scheduler_step: Step | None = None

    @property
    def job(self) -> Job:
        return self.connector_id, self.transfer_id


@final
class Flush(Event, kw_only=True, gc=False):
    """The workers must wait for a transfer before they run the step, because its blocks are given to other requests."""

    kind = Kind.FLUSH
    transfer_id: TransferId

    @property
    def job(self) -> Job:
        return self.connector_id, self.transfer_id


@final
class LoadError(Event, kw_only=True, gc=False):
    """Blocks that failed to load, as the workers reported them to the scheduler."""

    kind = Kind.LOAD_ERROR
    blocks_ids: BlockIds = ()
    blocks_by_group: BlocksByGroup | None = None


@final
class RankLookup(Event, kw_only=True, gc=False):
    """The answer to a lookup from the store of one rank, or of one KV cache group."""

    kind = Kind.RANK_LOOKUP
    total: Total | None = None
    matched: Matched
    group: Group | None = None
    boundaries: Annotated[
        tuple[Tokens, ...] | None,
        _on_wire(
            "kvtrail.tokens.boundaries", "Lengths in tokens of the request's prefixes for which an object is held."
        ),
    ] = None


@final
class Prefetch(Event, kw_only=True, gc=False):
    """Tokens were fetched into a nearer tier of the store because of a lookup."""

    kind = Kind.PREFETCH
    start: TransferStart
    count: TransferTokens
    chunk_keys: ChunkKeys | None = None


@final
class Refcount(Event, kw_only=True, gc=False):
    """The connector's own count of references or pins of a stored chunk."""

    kind = Kind.REFCOUNT
    chunk_key: ChunkKey | None = None
    refs: Annotated[
        AnyCount | None,
        _on_wire("kvtrail.refs", "Number of references to a stored chunk, as the connector counts them."),
    ] = None
    pins: Annotated[
        AnyCount | None, _on_wire("kvtrail.pins", "Number of pins of a stored chunk, as the connector counts them.")
    ] = None


@final
class Free(Event, kw_only=True, gc=False):
    """KV blocks that were kept for a request after its end were freed."""

    kind = Kind.FREE
    blocks_count: BlocksCount | None = None
    lease_expired: Annotated[
        bool | None, _on_wire("kvtrail.lease.expired", "The blocks were freed because their lease expired.")
    ] = None


@final
class Read(Event, kw_only=True, gc=False):
    """Another instance sent a notification that it has read a request's KV blocks, or that it needs none of them."""

    kind = Kind.READ
    blocks_count: BlocksCount | None = None
    peer: Peer | None = None
    notifications_expected: NotificationsExpected | None = None


@final
class Lease(Event, kw_only=True, gc=False):
    """Another engine asked to keep a request's KV blocks for longer, until it has read them."""

    kind = Kind.LEASE
    lease_s: LeaseSeconds | None = None


class XferOp(StrEnum):
    """The operation that moves the bytes. It determines which engine performs the transfer."""

    READ = "read"
    """The receiving engine reads them."""
    WRITE = "write"
    """The sending engine writes them."""


class XferState(StrEnum):
    """The state of a transfer between engines, as the worker that moves the bytes knows it."""

    POSTED = "posted"
    DONE = "done"
    FAILED = "failed"


@final
class Xfer(Event, kw_only=True, gc=False):
    """A worker reads KV blocks of another engine's worker, or writes to them: one event when the transfer is posted, and one
    when it has ended. Its request is that of the worker that reads or writes. If one worker reads several times for one
    request, each read is from a different rank of the other engine."""

    kind = Kind.XFER
    xfer_op: Annotated[Name, _on_wire("kvtrail.xfer.op", "`read` or `write`.")]
    xfer_state: Annotated[
        Name, _on_wire("kvtrail.xfer.state", "`posted`, `done` or `failed`. A transfer may fail without being posted.")
    ]
    peer: Peer | None = None
    peer_rank: PeerRank | None = None
    peer_request: PeerRequest | None = None
    notifications_expected: NotificationsExpected | None = None
    blocks_count: BlocksCount | None = None
    blocks_ids: BlockIds | None = None
    blocks_by_group: BlocksByGroup | None = None
    peer_blocks_ids: Annotated[
        Ids | None,
        _on_wire("kvtrail.peer.blocks.ids", "The other engine's block for each of `kvtrail.blocks.ids`."),
    ] = None
    reason: Reason | None = None


class Direction(StrEnum):
    """The direction of a notification."""

    SENT = "sent"
    RECEIVED = "received"


class Notice(StrEnum):
    """The kind of a notification between engines. Connectors may have other kinds, under their own names."""

    HANDSHAKE = "handshake"
    """The engines exchange their metadata; recorded if this fails."""
    DONE = "done"
    """The bytes have arrived, or none are needed."""
    REGISTRATION = "registration"
    """The receiving engine names the blocks to which the other engine writes."""
    REFUSAL = "refusal"
    """The requested KV is not there, or no longer there."""
    UNKNOWN = "unknown"
    """The receiver does not know the kind, or the request."""


@final
class Notification(Event, kw_only=True, gc=False):
    """A message between workers or schedulers of two engines, recorded by its sender or its receiver. A received message that
    extends a lease is a `kv.lease`, and a received report of a reader is a `kv.read`. If a transfer carries a report with it,
    the sender records only the transfer."""

    kind = Kind.NOTIFICATION
    notification: Annotated[
        Name,
        _on_wire(
            "kvtrail.notification",
            "The kind of notification: `handshake` (a failed one), `done`, `registration`, `refusal`, `unknown`, or a"
            " connector's own name.",
        ),
    ]
    direction: Annotated[Name, _on_wire("kvtrail.notification.direction", "`sent` or `received`.", "direction")]
    peer: Peer | None = None
    peer_rank: PeerRank | None = None
    peer_request: PeerRequest | None = None
    notifications_expected: NotificationsExpected | None = None
    blocks_count: BlocksCount | None = None
    reason: Reason | None = None
    """The reason why it could not be sent; None if it was sent."""


class Side(StrEnum):
    """The role of an engine in a hand-off."""

    GIVES = "gives"
    """It computed the KV, and keeps it until it is read."""
    TAKES = "takes"
    """It reads the KV."""
    DECLINES = "declines"
    """It should have read the KV, and releases it: its server refused the request, or the client disconnected, before the
    request was scheduled."""


STAND_IN_DIGEST = "ca08ea5bca49cc18"
"""The digest of the prompt `[0]`."""


@final
class Handoff(Event, kw_only=True, gc=False):
    """One engine's side of a hand-off, from its `kv_transfer_params`. The sending engine records it when its request ends,
    the receiving engine when its request begins."""

    kind = Kind.HANDOFF
    handoff_side: Annotated[
        Name,
        _on_wire(
            "kvtrail.handoff.side",
            "`gives`: the engine keeps the KV for another one; `takes`: it will read the KV; `declines`: it should have read"
            " the KV, but its server refused the request, or the client disconnected, before it was scheduled.",
        ),
    ]
    handoff_keys: Annotated[
        Keys,
        _on_wire(
            "kvtrail.handoff.keys",
            "The names of the hand-off in both engines, each with the parameter's name: `remote_request_id:ENGINE/REQUEST`,"
            " `transfer_id:ID`, `kv_request_id:ID`.",
        ),
    ] = ()
    handoff_peer: Annotated[
        Name | None, _on_wire("kvtrail.handoff.peer", "The giving engine, if the taking one knows it.")
    ] = None
    handoff_tokens: Annotated[
        Tokens | None,
        _on_wire(
            "kvtrail.handoff.tokens", "Number of tokens whose KV is handed over: `remote_num_tokens`, if it is set."
        ),
    ] = None
    handoff_mode: Annotated[
        Name | None, _on_wire("kvtrail.handoff.mode", "`pull` or `push`, if the connector names it.")
    ] = None
    prompt: Prompt | None = None
    digest: Annotated[
        str | None,
        _on_wire(
            "kvtrail.handoff.digest",
            "A digest of the first `kvtrail.handoff.digest.tokens` token ids of the prompt. Equal tokens have equal digests"
            " in both engines.",
            "digest",
        ),
    ] = None
    digest_tokens: Annotated[
        Tokens | None,
        _on_wire("kvtrail.handoff.digest.tokens", "Number of token ids that the digest covers.", "digest_tokens"),
    ] = None
    blocks_ids: BlockIds | None = None
    blocks_by_group: BlocksByGroup | None = None

    @property
    def takes(self) -> bool:
        """Whether the request reads the KV that is handed over."""
        return self.handoff_side == Side.TAKES and not self.declines

    @property
    def declines(self) -> bool:
        """Whether the request stands in for one that never reached the scheduler.

        vLLM gives it the same parameters and the prompt `[0]`, and aborts it at once, so that the sending engine frees its
        blocks (`AsyncLLM.notify_kv_transfer_request_rejected`).
        """
        stands_in = self.prompt == 1 and self.digest == STAND_IN_DIGEST
        return self.handoff_side == Side.DECLINES or (self.handoff_side == Side.TAKES and stands_in)


@final
class Stats(Event, kw_only=True, gc=False):
    """The engine's own statistics of a request's prefill."""

    kind = Kind.STATS
    total: Total | None = None
    reported: Annotated[
        AnyTokens | None,
        _on_wire(
            "kvtrail.tokens.reported",
            "Number of cached tokens, local and external, according to the engine's statistics.",
        ),
    ] = None
    from_connector: Annotated[
        AnyTokens | None,
        _on_wire(
            "kvtrail.tokens.from_connector",
            "Number of tokens from the connector, according to the engine's statistics.",
        ),
    ] = None
    queried: Annotated[
        Tokens | None,
        _on_wire(
            "kvtrail.tokens.queried",
            "Number of tokens that the engine requested from the connector, according to its statistics.",
        ),
    ] = None


@final
class Key(Event, kw_only=True, gc=False):
    """A chunk's key was computed."""

    kind = Kind.KEY
    chunk_key: ChunkKey
    chunk_parent: Annotated[str | None, _on_wire("kvtrail.chunk.parent", "Key of the chunk before it.")] = None
    chunk_content: Annotated[
        str | None,
        _on_wire("kvtrail.chunk.content", "A digest of the tokens, salt and adapter that the key stands for."),
    ] = None


@final
class Evict(Event, kw_only=True, gc=False):
    """A chunk left the connector's store: it was evicted to make room, or it can no longer be loaded."""

    kind = Kind.EVICT
    chunk_key: ChunkKey | None = None
    count: TransferTokens | None = None
    bytes: TransferBytes | None = None
    pool_tier: Tier | None = None
    pushed_by: PushedBy | None = None


@final
class Reset(Event, kw_only=True, gc=False):
    """`reset_cache`: the connector was asked to drop all that it holds."""

    kind = Kind.RESET
    succeeded: Annotated[
        bool | None,
        _on_wire("kvtrail.succeeded", "The result of a reset, as the connector reports it; absent if it reports none."),
    ] = None
    scheduler_step: Step | None = None


@final
class CacheReset(Event, kw_only=True, gc=False):
    """vLLM cleared its own prefix cache before this step. The connector's store keeps its contents."""

    kind = Kind.CACHE_RESET
    scheduler_step: Step | None = None


@final
class PrefixCache(Event, kw_only=True, gc=False):
    """The blocks that vLLM's own prefix cache stored and removed since the last event of this kind, in order. The recorder
    sends it before each lookup and each allocation, and otherwise within a second. So changes that are reported between a
    lookup and its allocation were made by that allocation. With several KV cache groups, the changes of each group are in
    order, and so are the removals of all groups together. A block may have been stored for one group after a removal for
    another group that is reported later. An event with a tier has changes of that tier: the connector's store."""

    kind = Kind.PREFIX_CACHE
    cache_changes: Annotated[
        tuple[AnyCount, ...],
        _on_wire(
            "kvtrail.cache.changes",
            "The changes in order: n means that the next n hashes were stored, -n that the next n were removed, 0 that all"
            " were removed. For a block with copies, only the first stored and the last removed copy count. If both this and"
            " `kvtrail.cache.whole` are absent, changes are no longer reported.",
        ),
    ] = ()
    block_hashes: Hashes = b""
    group: Group | None = None
    scheduler_step: Step | None = None
    cache_whole: Annotated[
        bool,
        _on_wire(
            "kvtrail.cache.whole",
            "The whole contents of the cache are reported again, in this event and the following ones with the same time."
            " The cache holds nothing else.",
        ),
    ] = False
    pool_tier: Tier | None = None
    pushed_by: PushedBy | None = None


@final
class Holdings(Event, kw_only=True, gc=False):
    """A part of the list of all chunks in the connector's store. It is reported repeatedly, so that the store's contents are
    known again after a gap."""

    kind = Kind.HOLDINGS
    chunk_keys: ChunkKeys = ()
    holdings_first: Annotated[
        bool, _on_wire("kvtrail.holdings.first", "This is the first part of a list of all chunks in the store.")
    ] = False
    holdings_last: Annotated[bool, _on_wire("kvtrail.holdings.last", "This is the last part of that list.")] = False


@final
class BlockCheck(Event, kw_only=True, gc=False):
    """A worker compared the contents of a request's KV blocks with the contents that were computed under their hashes. Up to
    64 wrong blocks are listed. Right blocks are only counted, and reported occasionally."""

    kind = Kind.BLOCK_CHECK
    # A block has the same index in each of the arrays.
    check_look: Annotated[
        Name,
        _on_wire(
            "kvtrail.check.look",
            "Reason of the check: the blocks were `computed`, `loaded`, or `admitted` from vLLM's prefix cache, or they are"
            " `held`.",
        ),
    ]
    check_blocks: Annotated[
        Count,
        _on_wire(
            "kvtrail.check.blocks", "Number of checked blocks of the request since its last event with this reason."
        ),
    ]
    check_unknown: Annotated[
        Count, _on_wire("kvtrail.check.unknown", "Number of these blocks with a hash whose content is unknown.")
    ] = 0
    check_fingerprints: Annotated[
        bytes,
        _on_wire(
            "kvtrail.check.fingerprints",
            "Fingerprints for other engines, 20 bytes per block, big-endian: the last 64 bits of the hash, the fingerprint"
            " (64 bits), and the block's first token in the request (32 bits). They are sent for blocks that the request"
            " `computed` before it met a wrong block, and for the unknown ones among blocks that it `loaded` or `admitted`.",
        ),
    ] = b""
    check_slice: Annotated[
        Name | None,
        _on_wire(
            "kvtrail.check.slice",
            "For fingerprints of a rank's first head: an id that engines with equal KV under equal hashes share, whatever"
            " their tensor-parallel size, then `/` and the index of that head.",
        ),
    ] = None
    check_wrong_kinds: Annotated[
        Keys,
        _on_wire(
            "kvtrail.check.wrong.kinds",
            "The fault of each wrong block. `drift`: its content was not computed under its hash. `early`: it was wrong when"
            " it was read, and right afterwards. `rot`: it was right, and changed although nothing wrote to it.",
        ),
    ] = ()
    check_wrong_blocks: Annotated[Ids, _on_wire("kvtrail.check.wrong.blocks", "The ids of the wrong blocks.")] = ()
    check_wrong_tokens: Annotated[
        tuple[Tokens, ...],
        _on_wire("kvtrail.check.wrong.tokens", "The first token of each wrong block in the request."),
    ] = ()
    check_wrong_hashes: Annotated[
        Keys, _on_wire("kvtrail.check.wrong.hashes", "The last 16 hexadecimal digits of each wrong block's hash.")
    ] = ()
    check_wrong_holds: Annotated[
        Keys,
        _on_wire(
            "kvtrail.check.wrong.holds",
            "The content of each wrong block: `zeros`; `REQUEST@TOKEN` for the KV of that request from TOKEN on, followed by"
            " `/GROUP` if it belongs to another KV cache group; `poison` for KV computed after a wrong block; or `unknown`.",
        ),
    ] = ()
    check_wrong_from: Annotated[
        Keys,
        _on_wire(
            "kvtrail.check.wrong.from",
            "The request whose load or step left the wrong content; empty if it is this request.",
        ),
    ] = ()
    check_wrong_more: Annotated[
        Count, _on_wire("kvtrail.check.wrong.more", "Number of wrong blocks that are not listed.")
    ] = 0
    check_healed: Annotated[
        bool,
        _on_wire(
            "kvtrail.check.healed", "The wrong blocks were reported to vLLM as not loaded, so that it recomputes them."
        ),
    ] = False
    group: Group | None = None
    scheduler_step: Step | None = None
    identity: Identity | None = None

    @property
    def wrong(self) -> int:
        """The number of wrong blocks, including those that are not listed."""
        return len(self.check_wrong_kinds) + self.check_wrong_more

    @property
    def looked(self) -> int:
        """The number of compared blocks: a recorder may have counted wrong ones before it reported them."""
        return max(self.check_blocks, self.check_unknown + self.wrong)

    def numbers(self) -> dict[str, Any]:
        """As in `Event`, without the fields for other engines, which are long and tell a person nothing."""
        reported = super().numbers().items()
        return {name: value for name, value in reported if name not in _FOR_OTHER_ENGINES and value not in ((), "")}


_FOR_OTHER_ENGINES = frozenset({"check_fingerprints", "check_slice"})


@final
class Failure(Event, kw_only=True, gc=False):
    """A call of the connector raised an exception; the span's status has the message. Lookups and allocations that raised are
    spans of their own kinds."""

    kind = Kind.FAILURE
    call: Annotated[str, _on_wire("kvtrail.call", "The connector's method that was called.")] = ""


@final
class Heartbeat(Event, kw_only=True, gc=False):
    """A recorder's heartbeat, with its own losses."""

    kind = Kind.HEARTBEAT
    recorder_recorded: Annotated[
        Count,
        _on_wire(
            "kvtrail.recorder.recorded", "Number of events recorded since this recorder began, including dropped ones."
        ),
    ] = 0
    recorder_dropped: Annotated[
        Count, _on_wire("kvtrail.recorder.dropped", "Number of events dropped since this recorder began.")
    ] = 0
    recorder_closed: Annotated[
        bool, _on_wire("kvtrail.recorder.closed", "This is the last heartbeat of the recorder.")
    ] = False
    scheduler_step: Step | None = None
    recorder_unrecorded: Annotated[
        Keys | None,
        _on_wire(
            "kvtrail.recorder.unrecorded",
            "Number of events that could not be recorded since this recorder began, by kind: `kv.lookup:3`. If such an event"
            " is missing, its sequence number is missing too. `probe.<question>`: questions that a connector's probe could"
            " not answer.",
        ),
    ] = None
    recorder_probes_off: Annotated[
        Keys | None,
        _on_wire(
            "kvtrail.recorder.probes_off",
            "Connectors with a probe that failed too often and was switched off. Facts that only the probe sees are then"
            " absent.",
        ),
    ] = None
    idle_requests: Annotated[
        Keys | None,
        _on_wire(
            "kvtrail.idle.requests",
            "Open requests, and ended ones with kept blocks, that had no event since the last heartbeat. Requests that do"
            " not fit are named in the next heartbeats.",
        ),
    ] = None
    idle_events: Annotated[
        tuple[Number, ...] | None,
        _on_wire(
            "kvtrail.idle.events", "Number of events of each of these requests, by which a lost event is noticed."
        ),
    ] = None
    recorder_ended_by: Annotated[
        str | None,
        _on_wire(
            "kvtrail.recorder.ended_by",
            "In the last heartbeat: the exception that ended the engine, as its class and the beginning of its text; absent"
            " if the engine shut down normally.",
        ),
    ] = None
    held_bytes: Annotated[
        Bytes | None,
        _on_wire(
            "kvtrail.held.bytes",
            "Bytes of KV that the connectors of this process hold in the host memory of each worker, according to their"
            " probes; absent if no probe can tell.",
        ),
    ] = None
    scheduler_spare_ns: Annotated[
        Nanoseconds | None,
        _on_wire(
            "kvtrail.scheduler.spare.ns",
            "Time in nanoseconds, since this recorder began, in which the scheduler could have run one more request: it had a"
            " slot, tokens left in the step, and blocks for all waiting requests; or nothing ran, loaded or held blocks."
            " Absent if it is not observed.",
        ),
    ] = None
    scheduler_paused: Annotated[
        bool | None,
        _on_wire("kvtrail.scheduler.paused", "The scheduler is paused, for example for an update of the weights."),
    ] = None
    recorder_dropped_by: Annotated[
        Keys | None,
        _on_wire(
            "kvtrail.recorder.dropped_by", "Number of dropped events by reason: `queue_bytes:3` (docs/limits.md)."
        ),
    ] = None
    scheduler_running: Annotated[
        Count | None,
        _on_wire(
            "kvtrail.scheduler.running",
            "Number of requests that the scheduler runs at this time; absent if it is not observed.",
        ),
    ] = None


CLASSES: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Event) and hasattr(cls, "kind")
}
"""The class of each kind, in the order of declaration."""


def _attributes(cls: type[Event]) -> Iterator[Attribute]:
    """The attributes of a kind in the order of declaration, beginning with those of its base class."""
    for declaring in reversed(cls.__mro__[: cls.__mro__.index(Event)]):
        for name, hint in get_annotations(declaring).items():
            attribute = next(_declared(hint), None)
            if attribute is None or attribute.field != name:
                raise TypeError(f"{cls.__name__}.{name} must be declared as the attribute of this name: {attribute}")
            yield replace(attribute, type=_plain(hint))


def _declared(hint: Any) -> Iterator[Attribute]:
    """The attribute in an annotation: `Annotated[int, attribute]`, perhaps `| None`."""
    for each in (hint, *get_args(hint)):
        yield from (metadata for metadata in getattr(each, "__metadata__", ()) if isinstance(metadata, Attribute))


def _plain(hint: Any) -> type:
    """`int` of `Annotated[int, Meta(ge=0)] | None`, and `tuple` of `tuple[str, ...]`."""
    origin = get_origin(hint)
    if origin in (Annotated, Union, UnionType):
        return _plain(hint.__origin__ if origin is Annotated else get_args(hint)[0])
    return origin or hint  # type: ignore[no-any-return]  # an annotation is anything to the type checker


FIELDS: dict[Kind, tuple[Attribute, ...]] = {cls.kind: tuple(_attributes(cls)) for cls in CLASSES.values()}
"""The attributes of each kind, in the order in which the recorder's tuples hold them."""
_NAMES = {kind: tuple(attribute.field for attribute in attributes) for kind, attributes in FIELDS.items()}
"""The names of these attributes in events; `Attribute.field` would build them each time."""
IN_BYTES = frozenset(a.key for attributes in FIELDS.values() for a in attributes if a.type is bytes)
"""The attributes whose values are bytes; a `Span` has them in base64."""


def place(kind: Kind, field: str) -> int:
    """The index of a field's value in the recorder's tuples of this kind."""
    return [attribute.field for attribute in FIELDS[kind]].index(field)


STEP_FIELDS: tuple[Attribute, ...] = (
    *semconv.ROWS,
    *(FIELDS[Kind.SCHEDULE][place(Kind.SCHEDULE, field)] for field in ("scheduler_step", "scheduler_tokens")),
)
"""The attributes of `semconv.STEP_SPAN`, in the order in which the recorder's tuple holds them."""


UNFAMILIAR = "kv.unfamiliar"
"""The kind of `Unfamiliar`, which no span has."""


@final
class Unfamiliar(Event, kw_only=True, gc=False):
    """Placeholder for an event that only another version of kvtrail understands. It has the event's sequence numbers, so that
    none is missing. Any state that the event may have changed becomes unknown."""

    kind = UNFAMILIAR  # type: ignore[assignment]  # no recorder's vocabulary has it

    def numbers(self) -> dict[str, Any]:
        return {}

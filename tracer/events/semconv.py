"""The one vocabulary: every span and attribute that kvtrail writes or reads.

The recorder encodes from these tables, the tracer decodes with them, and `docs/spans.md` is generated from them
(`python -m kvtrail.tracer.events.semconv`), so a name exists exactly once.

Units: tokens and blocks are counts, bytes are bytes, span times are Unix nanoseconds: a recorder's monotonic clock, and what
the wall clock showed beyond it when the recorder began.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SCOPE = "kvtrail"
"""Instrumentation scope of every span that a kvtrail recorder writes."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its `key` on the wire, its Python `type`, and its meaning in one sentence. `name` is that of its field,
    where this does not follow from the key."""

    key: str
    type: type
    brief: str
    name: str = ""

    @property
    def field(self) -> str:
        """The attribute's name in events and in the api: `kvtrail.tokens.returned` is `returned`."""
        if self.name:
            return self.name
        name = self.key.removeprefix("kvtrail.").removeprefix("tokens.").replace(".", "_")
        return "is_async" if name == "async" else name  # `async` is a keyword


class Level(StrEnum):
    """How much is recorded."""

    BASIC = "basic"
    """Every lookup, allocation, first step, preemption, plan, transfer and end, with their counts."""
    DETAILED = "detailed"
    """Also the later steps that say something new, block ids and hashes, the keys that lookups claim, and now and then what
    a store holds."""


class Kind(StrEnum):
    """The span names; each is also the kind of an event."""

    REQUEST_START = "kv.request.start"
    REQUEST = "kv.request"
    CUT_OFF = "kv.request.cut_off"
    """Its span is a `kv.request`, too; see `span_name`."""
    LOOKUP = "kv.lookup"
    ALLOC = "kv.alloc"
    SCHEDULE = "kv.schedule"
    PREEMPT = "kv.preempt"
    LOAD = "kv.load"
    STORE = "kv.store"
    RECEIVED = "kv.received"
    SENT = "kv.sent"
    LOAD_PLAN = "kv.load.plan"
    STORE_PLAN = "kv.store.plan"
    TRANSFER_END = "kv.transfer.end"
    FLUSH = "kv.transfer.flush"
    LOAD_ERROR = "kv.load.error"
    RANK_LOOKUP = "kv.lookup.rank"
    PREFETCH = "kv.prefetch"
    LOCK = "kv.lock"
    UNLOCK = "kv.unlock"
    REFCOUNT = "kv.refcount"
    FREE = "kv.free"
    READ = "kv.read"
    STATS = "kv.stats"
    KEY = "kv.key"
    POOL = "kv.pool"
    INDEX = "kv.index"
    EVICT = "kv.evict"
    RESET = "kv.reset"
    CACHE_RESET = "kv.cache.reset"
    PREFIX_CACHE = "kv.cache"
    HOLDINGS = "kv.holdings"
    BLOCK_CHECK = "kv.block_check"
    FAILURE = "kv.failure"
    HEARTBEAT = "kv.recorder"


def _tokens(name: str, brief: str) -> Attribute:
    return Attribute(f"kvtrail.tokens.{name}", int, brief)


def _check(name: str, type_: type, brief: str) -> Attribute:
    return Attribute(f"kvtrail.check.{name}", type_, brief)


TOTAL = _tokens("total", "Tokens of the request at this moment: prompt and, after a preemption, its output so far.")
COMPUTED = _tokens(
    "computed", "Tokens that vLLM holds as computed: the argument of the lookup, or where a step begins."
)
MATCHED = _tokens(
    "matched", "Length of the prefix that the connector's store holds; absent where the connector hides it."
)
RETURNED = _tokens(
    "returned", "The lookup's answer to the scheduler: tokens beyond the computed ones; absent for 'ask me later'."
)
REFUSED = _tokens("refused", "The connector's own answer, where the guard replaced it by `kvtrail.tokens.returned`.")
ALLOCATED = _tokens("allocated", "External tokens for which the scheduler allocated blocks.")
SCHEDULED = _tokens("scheduled", "Tokens that the scheduler runs in this step.")
DRAFTED = _tokens("drafted", "Speculative tokens among the scheduled ones.")
EXPECTED = _tokens("expected", "Tokens that the transfer was meant to move; absent where it is not known.")
CACHED_TOTAL = _tokens("reported", "Cached tokens in all, local and external, as the engine's statistics report them.")
FROM_CONNECTOR = _tokens("from_connector", "Tokens from the connector, as the engine's statistics report them.")
QUERIED = _tokens("queried", "Tokens that the engine's statistics count as asked of the connector.")
START = _tokens("start", "First token position of a transfer.")
COUNT = _tokens("count", "Tokens of a transfer.")
OUTPUT = _tokens("output", "Tokens generated when the request finished.")
LIMIT = _tokens("limit", "Tokens that the request may generate at most.")
STEP = Attribute(
    "kvtrail.scheduler.step", int, "Scheduling steps that had begun before: the moment, as the scheduler counts time."
)
STEP_TOKENS = Attribute("kvtrail.scheduler.tokens", int, "Tokens that the step runs in all, of all requests.")
PRIORITY = Attribute("kvtrail.request.priority", int, "The request's priority; absent where it has none.")
HASHES = Attribute(
    "kvtrail.block.hashes",
    bytes,
    "The last 8 bytes of vLLM's hash of each full block, in the order of their tokens. Each is told once and then referred"
    " to.",
)
FIRST = Attribute("kvtrail.block.first", int, "Number of the block that the first hash is of; absent where it is 0.")
AFTER = Attribute(
    "kvtrail.block.after", bytes, "The hash of the block before that one, whose chain other requests have told."
)
CHANGES = Attribute(
    "kvtrail.cache.changes",
    tuple,
    "What happened, in order: n, the next n hashes were stored; -n, the next n were removed; 0, all were. Of a block with"
    " copies, the first that is stored and the last that is removed count. Neither this nor"
    " `kvtrail.cache.whole`: telling ends.",
)
CACHE_WHOLE = Attribute(
    "kvtrail.cache.whole",
    bool,
    "All that the cache holds is told anew, in this event and those that follow it at the same moment: nothing else is held.",
)
BLOCKS = Attribute("kvtrail.blocks.count", int, "KV blocks concerned.")
BLOCK_IDS = Attribute(
    "kvtrail.blocks.ids", tuple, "KV block ids of the first KV cache group, in the order of their tokens."
)
FREE_BLOCKS = Attribute(
    "kvtrail.blocks.free", int, "Free KV blocks after the preemptions of a step, before the step used any."
)
KEYS = Attribute("kvtrail.chunk.keys", tuple, "Keys of chunks, shortened hex, in the order of their tokens.")
HIT_SOURCES = Attribute(
    "kvtrail.hit.sources",
    tuple,
    "Where the external tokens come from, as vLLM will count them: `host:256`, `disk:64`, ...",
)
PUSHED_BY = Attribute(
    "kvtrail.chunk.pushed_by",
    str,
    "The request whose store took the chunk's place, or stored the chunk; absent where that is not known.",
    "pushed_by",
)
PARENT = Attribute("kvtrail.chunk.parent", str, "Key of the chunk before it.")
CONTENT = Attribute("kvtrail.chunk.content", str, "What a key stands for: digest of tokens, salt and adapter.")
PRESENT = Attribute("kvtrail.chunk.present", bool, "The store held the chunk already; nothing is copied.")
CHUNK_SIZE = Attribute("kvtrail.chunk.size", int, "Tokens per chunk of the connector's store; absent where unknown.")
JOB = Attribute("kvtrail.transfer.id", int, "The connector's number of an asynchronous transfer.")
LOCKS = Attribute("kvtrail.locks", int, "Chunks that were locked or unlocked.")
REFS = Attribute("kvtrail.refs", int, "References to a stored chunk, as the connector counts them.")
PINS = Attribute("kvtrail.pins", int, "Pins of a stored chunk, as the connector counts them.")
EXPIRED = Attribute("kvtrail.lease.expired", bool, "The blocks were freed because a lease ran out.")
TIER = Attribute("kvtrail.pool.tier", str, "The pool's name: gpu, cpu, disk, ...")
POOL_USED = Attribute("kvtrail.pool.used", int, "Units in use in a pool.")
POOL_FREE = Attribute("kvtrail.pool.free", int, "Units free in a pool.")
POOL_TOTAL = Attribute("kvtrail.pool.total", int, "Units of a pool.")
PUBLISHED = Attribute("kvtrail.index.published", int, "Blocks that KV events announced.")
APPLIED = Attribute("kvtrail.index.applied", int, "Announced blocks that an index took over.")
DECLINED = Attribute("kvtrail.index.declined", int, "Announced blocks that an index refused, and counted.")
BYTES = Attribute("kvtrail.bytes", int, "Bytes copied or freed.")
KEY = Attribute("kvtrail.chunk.key", str, "Key of a chunk in the connector's store, shortened hex.")
ASYNC = Attribute("kvtrail.async", bool, "The load runs between scheduler steps.")
CACHED = Attribute("kvtrail.cached", bool, "The answer came from the connector's memory of an earlier lookup.")
RESUMED = Attribute("kvtrail.resumed", bool, "The request runs again after a preemption.")
DELAYED = Attribute("kvtrail.free.delayed", bool, "The connector keeps the blocks after the request has finished.")
OUTCOME = Attribute("kvtrail.outcome", str, "How the request ended: vLLM's finish status, in lower case.")
FAILED = Attribute("kvtrail.failed", bool, "The transfer failed.")
HANDOFF = Attribute(
    "kvtrail.handoff", bool, "The caller asked for the request to be handed on to another engine: `do_remote_decode`."
)
LEASE = Attribute("kvtrail.lease.s", int, "Seconds for which the connector keeps the blocks at most.")
PROMPT = Attribute("gen_ai.usage.input_tokens", int, "Tokens of the request's prompt.", "prompt")
CACHE_READ = Attribute(
    "gen_ai.usage.cache_read.input_tokens",
    int,
    "Tokens of the prompt that were not computed at its first admission: vLLM's own prefix cache and the connector had them.",
    "cache_read",
)
GROUP = Attribute(
    "kvtrail.group", int, "Number of a KV cache group, where there are several and one alone is concerned."
)
BOUNDARIES = Attribute(
    "kvtrail.tokens.boundaries", tuple, "Lengths of the request's prefixes for which an object is held, in tokens."
)
SEEN = Attribute(
    "kvtrail.block.seen",
    int,
    "How many of the prompt's first blocks may have been in an earlier request of this launch; all that follow them were in"
    " none. Absent where the recorder cannot say.",
)
IDENTITY = Attribute(
    "kvtrail.request.identity",
    str,
    "What the KV depends on besides the tokens: a digest of the adapter's name and the cache salt; `plain` without either.",
    "identity",
)
ADAPTER_VERSION = Attribute(
    "kvtrail.adapter.version",
    str,
    "A digest of parts of the weights of the request's adapter, or of its path without them.",
)
SUCCEEDED = Attribute("kvtrail.succeeded", bool, "The connector's own report of a reset; absent where it gives none.")
WHOLE = Attribute(
    "kvtrail.blocks.whole", bool, "The blocks are all of the request's table, not only what the step adds."
)
HOLDINGS_FIRST = Attribute(
    "kvtrail.holdings.first", bool, "The first part of a list of all chunks that the store holds."
)
HOLDINGS_LAST = Attribute("kvtrail.holdings.last", bool, "The last part of that list.")
CHECK_LOOK = _check("look", str, "Why: just `computed` or `loaded`, `admitted` from vLLM's prefix cache, or `held`.")
CHECK_BLOCKS = _check("blocks", int, "Blocks looked at for the request since its last event of this look.")
CHECK_UNKNOWN = _check("unknown", int, "Of these, blocks of whose hash no content is known.")
CHECK_HASHES = _check(
    "hashes",
    tuple,
    "Of blocks told for other engines, the last 16 hexadecimal digits of the hash: all that the request `computed` while it"
    " had met no wrong block, and the unknown ones of those that it `loaded`.",
)
CHECK_FINGERPRINTS = _check("fingerprints", tuple, "The fingerprint of each of these, a signed number of 64 bits.")
CHECK_TOKENS = _check("tokens", tuple, "The first token of each of these in the request.")
CHECK_SLIM = _check(
    "slim",
    bytes,
    "Slim fingerprints for other engines, 20 bytes a block, big-endian: the last 64 bits of the hash, the fingerprint, and"
    " the block's first token in the request (32 bits). Of blocks that the request `computed` while it had met no wrong"
    " block, and of the unknown ones of those that it `loaded`.",
)
WRONG_KINDS = _check(
    "wrong.kinds",
    tuple,
    "Of each wrong block: `drift`, it holds what was not computed under its hash; `early`, it did when it was read, and was"
    " right afterwards; `rot`, it was right, and changed though nothing wrote to it.",
)
WRONG_BLOCKS = _check("wrong.blocks", tuple, "The id of each wrong block.")
WRONG_TOKENS = _check("wrong.tokens", tuple, "The first token of each wrong block in the request.")
WRONG_HASHES = _check("wrong.hashes", tuple, "The last 16 hexadecimal digits of each wrong block's hash.")
WRONG_LAYERS = _check("wrong.layers", tuple, "The layers that differ, `0-3,7`; empty where it is not known.")
WRONG_HOLDS = _check(
    "wrong.holds",
    tuple,
    "What each wrong block holds: `zeros`, `REQUEST@TOKEN` for the KV of that request's tokens from TOKEN on, `poison` for"
    " what was computed after a wrong block, or `unknown`.",
)
WRONG_FROM = _check(
    "wrong.from", tuple, "The request whose load or step left it so; empty where it is this one itself."
)
WRONG_MORE = _check("wrong.more", int, "Wrong blocks beyond those that are listed.")
CHECK_HEALED = _check("healed", bool, "The wrong blocks were reported to vLLM as not loaded: it computes them again.")
CALL = Attribute("kvtrail.call", str, "The connector's method that was called.")
RECORDED = Attribute(
    "kvtrail.recorder.recorded", int, "Events recorded since this recorder began, dropped ones included."
)
DROPPED = Attribute("kvtrail.recorder.dropped", int, "Events dropped since this recorder began.")
DROPPED_BY = Attribute("kvtrail.recorder.dropped_by", tuple, "These by their reason: `queue_bytes:3` (docs/limits.md).")
CLOSED = Attribute("kvtrail.recorder.closed", bool, "The last sign of life of this recorder.")
ENDED_BY = Attribute(
    "kvtrail.recorder.ended_by",
    str,
    "With the last sign of life: the exception that ended the engine, its class and the beginning of its text; absent where"
    " the engine ended in good order.",
)
HELD_BYTES = Attribute(
    "kvtrail.held.bytes",
    int,
    "Bytes of KV that the connectors of this process hold in host memory, on each worker, as their probes see it; absent"
    " where none can.",
)
SPARE = Attribute(
    "kvtrail.scheduler.spare.ns",
    int,
    "Nanoseconds, since this recorder began, in which the scheduler had the means to run one more request: a slot, tokens"
    " left in the step, and blocks for all that wait; or nothing ran, loaded or held blocks. Absent where it is not seen.",
)
PAUSED = Attribute("kvtrail.scheduler.paused", bool, "The scheduler is paused, as for an update of the weights.")
CLOCK_OFFSET = Attribute(
    "kvtrail.recorder.clock.offset",
    int,
    "Nanoseconds by which the host's wall clock has moved, since the recorder began, against its monotonic clock, which times"
    " all events; absent below a second.",
)
UNTOLD = Attribute(
    "kvtrail.recorder.untold",
    tuple,
    "What could not be told since this recorder began, by kind: `kv.lookup:3`. Where an event is missing for it, so is its"
    " number. `probe.<question>`: what a connector's probe could not answer.",
)
PROBES_OFF = Attribute(
    "kvtrail.recorder.probes_off",
    tuple,
    "Connectors whose probe failed too often and is switched off: what only it can see is absent from then on.",
)
IDLE_REQUESTS = Attribute(
    "kvtrail.idle.requests",
    tuple,
    "Open requests, and ended ones whose blocks are kept, that had no event since the last sign of life: as many as fit, the"
    " others in the next ones.",
)
IDLE_EVENTS = Attribute(
    "kvtrail.idle.events", tuple, "How many events each of them has had, so that one that was lost is noticed."
)

FIELDS: dict[Kind, tuple[Attribute, ...]] = {
    Kind.REQUEST_START: (TOTAL, LIMIT, STEP, PRIORITY, HASHES, FIRST, AFTER, IDENTITY, SEEN, ADAPTER_VERSION),
    Kind.REQUEST: (
        TOTAL, OUTPUT, COMPUTED, OUTCOME, DELAYED, BLOCK_IDS, STEP, HASHES, FIRST, HANDOFF, LEASE, PROMPT, CACHE_READ,
    ),
    Kind.CUT_OFF: (OUTCOME, PROMPT),
    Kind.LOOKUP: (TOTAL, COMPUTED, MATCHED, RETURNED, ASYNC, CACHED, REFUSED, KEYS, STEP, HASHES, FIRST),
    Kind.ALLOC: (TOTAL, ALLOCATED, BLOCKS, BLOCK_IDS, COMPUTED, MATCHED, HIT_SOURCES, STEP),
    Kind.SCHEDULE: (COMPUTED, SCHEDULED, RESUMED, DRAFTED, BLOCK_IDS, WHOLE, STEP, STEP_TOKENS),
    Kind.PREEMPT: (FREE_BLOCKS, STEP, COMPUTED),
    Kind.LOAD: (START, COUNT, BLOCKS, BYTES, EXPECTED, BLOCK_IDS),
    Kind.STORE: (START, COUNT, BLOCKS, BYTES, EXPECTED, BLOCK_IDS),
    Kind.RECEIVED: (FAILED, STEP),
    Kind.SENT: (STEP,),
    Kind.LOAD_PLAN: (START, COUNT, BLOCK_IDS, KEYS, JOB, COMPUTED, SCHEDULED, DRAFTED),
    Kind.STORE_PLAN: (START, COUNT, BLOCK_IDS, KEYS, JOB, COMPUTED, SCHEDULED, DRAFTED, PRESENT),
    Kind.TRANSFER_END: (JOB, FAILED, STEP),
    Kind.FLUSH: (JOB,),
    Kind.LOAD_ERROR: (BLOCK_IDS,),
    Kind.RANK_LOOKUP: (TOTAL, MATCHED, GROUP, BOUNDARIES),
    Kind.PREFETCH: (START, COUNT, KEYS),
    Kind.LOCK: (LOCKS,),
    Kind.UNLOCK: (LOCKS,),
    Kind.REFCOUNT: (KEY, REFS, PINS),
    Kind.FREE: (BLOCKS, EXPIRED),
    Kind.READ: (BLOCKS,),
    Kind.STATS: (TOTAL, CACHED_TOTAL, FROM_CONNECTOR, QUERIED),
    Kind.KEY: (KEY, PARENT, CONTENT),
    Kind.POOL: (TIER, POOL_USED, POOL_FREE, POOL_TOTAL),
    Kind.INDEX: (PUBLISHED, APPLIED, DECLINED),
    Kind.EVICT: (KEY, COUNT, BYTES, TIER, PUSHED_BY),
    Kind.RESET: (SUCCEEDED, STEP),
    Kind.CACHE_RESET: (STEP,),
    Kind.PREFIX_CACHE: (CHANGES, HASHES, GROUP, STEP, CACHE_WHOLE, TIER, PUSHED_BY),
    Kind.HOLDINGS: (KEYS, HOLDINGS_FIRST, HOLDINGS_LAST),
    Kind.BLOCK_CHECK: (
        CHECK_LOOK, CHECK_BLOCKS, CHECK_UNKNOWN, CHECK_HASHES, CHECK_FINGERPRINTS, CHECK_TOKENS, WRONG_KINDS, WRONG_BLOCKS,
        WRONG_TOKENS, WRONG_HASHES, WRONG_LAYERS, WRONG_HOLDS, WRONG_FROM, WRONG_MORE, CHECK_HEALED, GROUP, STEP, IDENTITY,
        CHECK_SLIM,
    ),
    Kind.FAILURE: (CALL,),
    Kind.HEARTBEAT: (
        RECORDED, DROPPED, CLOSED, CLOCK_OFFSET, STEP, UNTOLD, PROBES_OFF, IDLE_REQUESTS, IDLE_EVENTS, ENDED_BY,
        HELD_BYTES, SPARE, PAUSED, DROPPED_BY,
    ),
}  # fmt: skip
"""The attributes of each kind, in the order in which the recorder's tuples hold them."""
IN_BYTES = frozenset(a.key for attributes in FIELDS.values() for a in attributes if a.type is bytes)
"""The attributes whose value is bytes; base64 in a `Span`."""

STEP_SPAN = "kv.step"
"""The span that carries later steps of requests. Who reads it takes it apart (`ingest.steps`): no event is of this kind."""
ROW_REQUESTS = Attribute("kvtrail.step.requests", tuple, "The engine's ids of the requests, one for each row.")
ROW_NUMBERS = Attribute(
    "kvtrail.step.sequences", tuple, "Each row's number among the recorder's events of its request."
)
ROW_EPOCHS = Attribute("kvtrail.step.epochs", tuple, "Preemption epochs; absent where all are 0.")
ROW_COMPUTED = Attribute("kvtrail.step.computed", tuple, "Where the step begins in each request, in tokens.")
ROW_SCHEDULED = Attribute(
    "kvtrail.step.scheduled", tuple, "Tokens that the step runs of each request; absent where it is one of each."
)
ROW_DRAFTED = Attribute(
    "kvtrail.step.drafted", tuple, "Speculative tokens among the scheduled ones; absent where there are none."
)
ROW_COUNTS = Attribute(
    "kvtrail.step.blocks.counts",
    tuple,
    "KV blocks that the step adds to each request; absent where there are several KV cache groups.",
)
ROW_BLOCKS = Attribute(
    "kvtrail.step.blocks.ids", tuple, "The ids of these blocks, row after row; absent where no row has any."
)
ROW_SAMPLED = Attribute(
    "kvtrail.step.sampled", tuple, "Whether each request is sampled by OpenTelemetry; absent where all are."
)
ROWS: tuple[Attribute, ...] = (
    ROW_REQUESTS, ROW_NUMBERS, ROW_EPOCHS, ROW_COMPUTED, ROW_SCHEDULED, ROW_DRAFTED, ROW_COUNTS, ROW_BLOCKS, ROW_SAMPLED,
)  # fmt: skip
"""The columns of `STEP_SPAN`, arrays with one element for each row, `ROW_BLOCKS` apart."""
STEP_FIELDS: tuple[Attribute, ...] = (*ROWS, STEP, STEP_TOKENS)
"""The attributes of `STEP_SPAN`, in the order in which the recorder's tuple holds them."""

ENGINE_SPAN = "kv.engine"
"""The root of what concerns no request. Who reads it passes it over: no event is of this kind."""
ENGINE_NS = 60 * 10**9
"""What one such root covers, in nanoseconds of Unix time."""

REQUEST_ID = Attribute("kvtrail.request.id", str, "The engine's id of the request.", "request")
EXTERNAL_ID = Attribute("kvtrail.request.external_id", str, "The caller's id, without the engine's suffix.", "external")
EPOCH = Attribute("kvtrail.request.epoch", int, "Preemption epoch: how often the request had been preempted.", "epoch")
REQUEST_SEQUENCE = Attribute("kvtrail.request.sequence", int, "Its number among the recorder's events of the request.")
SEQUENCE = Attribute("kvtrail.recorder.sequence", int, "Number of this event among all of its recorder's.", "sequence")
CONNECTOR = Attribute("kvtrail.connector.name", str, "Class name of the traced connector.", "connector")
CONNECTOR_ID = Attribute("kvtrail.connector.id", str, "The traced connector among those of its process.")
ROLE = Attribute("kvtrail.connector.role", str, "`scheduler` or `worker`.", "role")
RANK = Attribute("kvtrail.rank", int, "Rank of the worker; 0 on the scheduler's side.")
SAMPLED = Attribute(
    "kvtrail.request.sampled",
    bool,
    "False where OpenTelemetry's sampler left the request out: it is recorded all the same, since it shares blocks and chunks"
    " with others. Absent where it is sampled.",
    "sampled",
)
COMMON: tuple[Attribute, ...] = (
    REQUEST_ID, EXTERNAL_ID, EPOCH, REQUEST_SEQUENCE, SEQUENCE, CONNECTOR, CONNECTOR_ID, ROLE, RANK,
    CHUNK_SIZE, SAMPLED,
)  # fmt: skip
"""Attributes of every kvtrail span; those of a request are absent where no request is concerned."""

REQUEST_MODEL = Attribute("gen_ai.request.model", str, "The name under which vLLM serves the model.")
CALLERS_ID = Attribute("gen_ai.request.id", str, "The caller's id, as vLLM's own `llm_request` has it.")
OPERATION = Attribute(
    "gen_ai.operation.name", str, "`chat` where the caller's id is that of vLLM's chat api, else `text_completion`."
)
PROVIDER = Attribute("gen_ai.provider.name", str, "Always `vllm`.")
OUTPUT_TOKENS = Attribute(
    "gen_ai.usage.output_tokens", int, "The same as `kvtrail.tokens.output`, where that is known."
)
OF_ROOT: tuple[Attribute, ...] = (REQUEST_MODEL, CALLERS_ID, OPERATION, PROVIDER, OUTPUT_TOKENS)
"""What the root says for tools that know nothing of kvtrail. Ours reads it elsewhere: it is no field of an event."""
CUT_OFF = "cut_off"
"""The outcome of a request that was open when its engine ended."""
CUT_OFF_REASON = "the engine ended before the request did"
"""The status of its root."""
NO_GOODBYE = "its process ended without a goodbye"
"""`ENDED_BY` where the export process says goodbye in the engine's place: it was killed, or has crashed."""
UNHEARD = "unheard"
"""The outcome of a request of whose engine nothing was heard for so long that it is taken for ended."""


ROOTS = (Kind.REQUEST, Kind.CUT_OFF)
"""The kinds whose span is the root of a request, from its arrival to its end."""


def span_name(kind: str) -> str:
    """The name of the span that carries an event of this kind."""
    return Kind.REQUEST.value if kind == Kind.CUT_OFF else kind


RECEIVER = "kvtrail-receiver"
"""The header, or with gRPC the metadata, by which a sidecar announces itself in its answers: its version."""

RECORDER_ID = Attribute("kvtrail.recorder.id", str, "Identity of the recorder: one process of one engine.", "recorder")
ENGINE_ID = Attribute("kvtrail.engine.id", str, "vLLM's `engine_id` of the KV transfer configuration.", "engine")
BLOCK_SIZE = Attribute("kvtrail.block.size", int, "Tokens per KV block.")
MODEL = Attribute("kvtrail.model", str, "The model's name, as vLLM was given it.")
SERVED_MODEL = Attribute(
    "kvtrail.model.served", str, "The name under which vLLM serves the model: `model_name` in its own metrics."
)
ENGINE_VERSION = Attribute("kvtrail.vllm.version", str, "vLLM's version.")
VERSION = Attribute("kvtrail.version", str, "Version of the kvtrail that recorded.")
POOL_BLOCKS = Attribute("kvtrail.blocks.total", int, "KV blocks of the engine's pool, the null block included.")
MAX_BATCHED = Attribute("kvtrail.scheduler.max_batched_tokens", int, "Tokens of a step at most.")
MAX_SEQUENCES = Attribute("kvtrail.scheduler.max_sequences", int, "Requests that run at once at most.")
MAX_LENGTH = Attribute("kvtrail.scheduler.max_model_length", int, "Tokens of a request at most, output included.")
POLICY = Attribute("kvtrail.scheduler.policy", str, "`fcfs` or `priority`.")
RESERVES = Attribute("kvtrail.scheduler.reserves_full_prompt", bool, "Requests are admitted only when all of it fits.")
ASYNC_SCHEDULING = Attribute("kvtrail.scheduler.async", bool, "A step is scheduled before the one before it has ended.")
PREFIX_CACHING = Attribute("kvtrail.prefix_caching", bool, "vLLM's own prefix cache is on.")
DRAFTS = Attribute("kvtrail.drafts", int, "Speculative tokens of a step; 0 without speculation.")
CONNECTOR_SETTINGS = Attribute(
    "kvtrail.connector.settings",
    str,
    "JSON: the numbers and truth values of the connector's configuration. Texts are left out: one may be a secret.",
)
CONNECTOR_CLASS = Attribute(
    "kvtrail.connector.class",
    str,
    "The connector's class as `module:Class`, which finds it again where vLLM's registry has none of its name. Of several in"
    " a process it is the first one's.",
)
CAPABILITIES = Attribute(
    "kvtrail.connector.capabilities",
    str,
    "JSON: by connector name, what rules may rely on in its spans (docs/connectors.md). Where it is absent, the connector's"
    " name decides.",
    "capabilities",
)
PATIENCE = Attribute(
    "kvtrail.connector.patience",
    str,
    "JSON: by connector name, for how many seconds it waits for another engine at most, by its own settings: `load_s`, for"
    " its part of an asynchronous load; `keep_s`, for it to read the blocks of an ended request.",
    "patience",
)
LAUNCH = Attribute(
    "kvtrail.engine.launch",
    str,
    "One launch of the engine, the same in all of its processes: a request's id may be used again by the next.",
    "launch",
)
SAMPLED_ONLY = Attribute(
    "kvtrail.recorder.sampled_only",
    bool,
    "The recorder leaves out the requests that are not sampled, so nothing can be said about the engine as a whole.",
    "sampled_only",
)
LACKS = Attribute(
    "kvtrail.vllm.lacks",
    str,
    "What this vLLM does not show, with commas between: `request_starts`, `hit_sources`, `block_tables`, `statistics`,"
    " `prefix_cache`, `plans` (docs/limits.md). Rules that need it are `unknown`. Absent where nothing is lacking.",
    "lacks",
)
CACHE_IDENTITY = Attribute(
    "kvtrail.cache.identity",
    str,
    "Digests of 8 hexadecimal digits each: of the model, and of all that KV and its hashes depend on besides the tokens."
    " Engines of one identity have equal hashes and, rank by rank, equal fingerprints for equal content.",
)
FINGERPRINTS = Attribute(
    "kvtrail.fingerprints", float, "The share of blocks whose bytes are judged, 0 to 1; absent where none are."
)
SLIM = Attribute(
    "kvtrail.fingerprints.slim", bool, "Some bytes of every block are judged, too; absent where they are not."
)
HEARTBEATS = Attribute(
    "kvtrail.recorder.heartbeats",
    str,
    "Whether the recorder sends signs of life: `spans`, always; `off`, never. Absent where the receiver's answer decides.",
)
RESOURCE: tuple[Attribute, ...] = (
    RECORDER_ID, ENGINE_ID, VERSION, BLOCK_SIZE, MODEL, SERVED_MODEL, ENGINE_VERSION, POOL_BLOCKS, MAX_BATCHED,
    MAX_SEQUENCES, MAX_LENGTH, POLICY, RESERVES, ASYNC_SCHEDULING, PREFIX_CACHING, DRAFTS, CONNECTOR_SETTINGS,
    CONNECTOR_CLASS, CAPABILITIES, PATIENCE, SAMPLED_ONLY, LAUNCH, LACKS, CACHE_IDENTITY, FINGERPRINTS, SLIM,
    HEARTBEATS,
)  # fmt: skip
"""Resource attributes that a recorder adds to those of the OpenTelemetry SDK (`service.name`, `host.name`, …)."""

MINIMIZED_EVENTS = Attribute(
    "kvtrail.minimized.events",
    int,
    "Events of the recording that this history was cut from; most of them are not here.",
)
MINIMIZED_REQUESTS = Attribute("kvtrail.minimized.requests", int, "Requests of that recording.")
MINIMIZED_RULE = Attribute(
    "kvtrail.minimized.rule", str, "The rule whose finding was kept; what else the recording showed may be lost."
)
MINIMIZED: tuple[Attribute, ...] = (MINIMIZED_EVENTS, MINIMIZED_REQUESTS, MINIMIZED_RULE)
"""Resource attributes that `kvtrail minimize` adds: nobody may take what it writes for a whole recording."""

FINDING_SPAN = "kv.finding"
"""What the names of spans that tell of findings begin with; the rule follows."""
FINDINGS_SCOPE = "kvtrail.findings"
"""Instrumentation scope of these spans: a sidecar writes them, and no recorder."""
FINDING_RULE = Attribute("kvtrail.finding.rule", str, "The rule that found it.")
FINDING_TITLE = Attribute("kvtrail.finding.title", str, "What is wrong, in general.")
FINDING_SEVERITY = Attribute(
    "kvtrail.finding.severity",
    str,
    "What it may cost: `crash`, `wrong output`, `hang`, `leak`, `wasted work`, `wrong metrics`.",
)
FINDING_EXPLANATION = Attribute("kvtrail.finding.explanation", str, "What happened here, in sentences.")
FINDING_HINT = Attribute("kvtrail.finding.hint", str, "What usually causes it.")
FINDING_COUNT = Attribute("kvtrail.finding.count", int, "How often it had happened when this was written.")
FINDING_HEALED = Attribute(
    "kvtrail.finding.healed", int, "How many of these the guard repaired before the scheduler acted on them."
)
FINDING_FIELDS: tuple[Attribute, ...] = (
    FINDING_RULE, FINDING_TITLE, FINDING_SEVERITY, FINDING_EXPLANATION, FINDING_HINT, FINDING_COUNT, FINDING_HEALED, EPOCH,
)  # fmt: skip
"""The attributes of a finding, on its span and on its event."""
FINDING_WITNESS = Attribute(
    "kvtrail.finding.witness", str, "On a link: what the explanation calls the span that is linked to, such as `L1`."
)


HASH_BYTES = 8
"""Recorded of a block's hash, its last ones: enough to recognize it, and what vLLM's KV events have of it."""
MOST_TOLD = 65_536
"""Hashes that a recorder refers to at most, before it tells them anew."""


def external_id(request_id: str) -> str:
    """The caller's id: vLLM names a request `<external>-<8 hexadecimal digits>` inside the engine."""
    head, dash, tail = request_id.rpartition("-")
    return head if dash and len(tail) == 8 and all(c in "0123456789abcdef" for c in tail) else request_id

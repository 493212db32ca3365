"""The names that kvtrail writes or reads: the kinds of spans, and the attributes of every span, of the resource, of the rows
of a step, and of findings. The attributes of one kind are the fields of its class in `events.py`.

The recorder encodes with both modules, the tracer decodes with them, and `docs/spans.md` is generated from them
(`python docs/reference.py`), so each name is defined exactly once.

Units: tokens and blocks are counts, bytes are bytes. Span times are Unix nanoseconds: a recorder's monotonic clock, plus the
offset of the wall clock when the recorder began.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SCOPE = "kvtrail"
"""Instrumentation scope of every span that a kvtrail recorder writes."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its `key` on the wire, its Python `type`, and its meaning in one sentence. `name` is the name of its
    field, if this cannot be derived from the key."""

    key: str
    type: type
    brief: str
    name: str = ""

    @property
    def field(self) -> str:
        """The attribute's name in events and in the API: `kvtrail.tokens.returned` is `returned`."""
        if self.name:
            return self.name
        name = self.key.removeprefix("kvtrail.").removeprefix("tokens.").replace(".", "_")
        return "is_async" if name == "async" else name  # `async` is a keyword


class Level(StrEnum):
    """The level of detail of a recording."""

    BASIC = "basic"
    """Every lookup, allocation, first step, preemption, plan, transfer and end, with their counts."""
    DETAILED = "detailed"
    """Also the later steps with new information, block ids and hashes, the keys that lookups claim, and occasionally the
    contents of a store."""


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
    REFCOUNT = "kv.refcount"
    FREE = "kv.free"
    READ = "kv.read"
    LEASE = "kv.lease"
    XFER = "kv.xfer"
    NOTIFICATION = "kv.notification"
    HANDOFF = "kv.handoff"
    STATS = "kv.stats"
    KEY = "kv.key"
    EVICT = "kv.evict"
    RESET = "kv.reset"
    CACHE_RESET = "kv.cache.reset"
    PREFIX_CACHE = "kv.cache"
    HOLDINGS = "kv.holdings"
    BLOCK_CHECK = "kv.block_check"
    FAILURE = "kv.failure"
    HEARTBEAT = "kv.recorder"


STEP_SPAN = "kv.step"
"""The span that carries later steps of requests. The tracer splits it into rows (`ingest.steps`). No event has this kind."""
ROW_REQUESTS = Attribute("kvtrail.step.requests", tuple, "The engine's ids of the requests, one per row.")
ROW_NUMBERS = Attribute(
    "kvtrail.step.sequences", tuple, "Each row's number among the recorder's events of its request."
)
ROW_EPOCHS = Attribute("kvtrail.step.epochs", tuple, "Preemption epochs; absent if all are 0.")
ROW_COMPUTED = Attribute(
    "kvtrail.step.computed", tuple, "The position in each request at which the step begins, in tokens."
)
ROW_SCHEDULED = Attribute(
    "kvtrail.step.scheduled", tuple, "Number of tokens of each request that the step runs; absent if it is 1 for each."
)
ROW_DRAFTED = Attribute(
    "kvtrail.step.drafted", tuple, "Number of speculative tokens among the scheduled ones; absent if there are none."
)
ROW_COUNTS = Attribute(
    "kvtrail.step.blocks.counts",
    tuple,
    "Number of KV blocks that the step adds to each request. With several KV cache groups: to each group, request after"
    " request.",
)
ROW_GROUPS = Attribute(
    "kvtrail.step.groups", int, "Number of KV cache groups in which each request has blocks; absent if it is 1."
)
ROW_BLOCKS = Attribute(
    "kvtrail.step.blocks.ids", tuple, "The ids of these blocks, row after row; absent if there are none."
)
ROW_SAMPLED = Attribute(
    "kvtrail.step.sampled", tuple, "Whether OpenTelemetry samples each request; absent if it samples all."
)
ROWS: tuple[Attribute, ...] = (
    ROW_REQUESTS, ROW_NUMBERS, ROW_EPOCHS, ROW_COMPUTED, ROW_SCHEDULED, ROW_DRAFTED, ROW_COUNTS, ROW_BLOCKS, ROW_SAMPLED,
    ROW_GROUPS,
)  # fmt: skip
"""The columns of `STEP_SPAN`: arrays with one element per row, except the columns of blocks."""

ENGINE_SPAN = "kv.engine"
"""The root of the spans that concern no request. The tracer ignores it; no event is of this kind."""
ENGINE_NS = 60 * 10**9
"""The interval that one such root covers, in nanoseconds of Unix time."""

REQUEST_ID = Attribute("kvtrail.request.id", str, "The engine's id of the request.", "request")
EXTERNAL_ID = Attribute("kvtrail.request.external_id", str, "The caller's id, without the engine's suffix.", "external")
EPOCH = Attribute(
    "kvtrail.request.epoch", int, "Preemption epoch: the number of earlier preemptions of the request.", "epoch"
)
REQUEST_SEQUENCE = Attribute(
    "kvtrail.request.sequence", int, "Number of this event among the recorder's events of the request."
)
SEQUENCE = Attribute(
    "kvtrail.recorder.sequence", int, "Number of this event among all events of its recorder.", "sequence"
)
CONNECTOR = Attribute("kvtrail.connector.name", str, "Class name of the traced connector.", "connector")
CONNECTOR_ID = Attribute("kvtrail.connector.id", str, "Id of the traced connector within its process.")
ROLE = Attribute("kvtrail.connector.role", str, "`scheduler` or `worker`.", "role")
RANK = Attribute("kvtrail.rank", int, "Rank of the worker; 0 on the scheduler's side.")
CHUNK_SIZE = Attribute("kvtrail.chunk.size", int, "Tokens per chunk of the connector's store; absent if unknown.")
SAMPLED = Attribute(
    "kvtrail.request.sampled",
    bool,
    "False if OpenTelemetry's sampler left the request out. The request is recorded nevertheless, since it shares blocks and"
    " chunks with others. Absent if it is sampled.",
    "sampled",
)
COMMON: tuple[Attribute, ...] = (
    REQUEST_ID, EXTERNAL_ID, EPOCH, REQUEST_SEQUENCE, SEQUENCE, CONNECTOR, CONNECTOR_ID, ROLE, RANK,
    CHUNK_SIZE, SAMPLED,
)  # fmt: skip
"""Attributes of every kvtrail span. The attributes of a request are absent if the span concerns none."""

REQUEST_MODEL = Attribute("gen_ai.request.model", str, "The name under which vLLM serves the model.")
CALLERS_ID = Attribute("gen_ai.request.id", str, "The caller's id, as in vLLM's own `llm_request` span.")
OPERATION = Attribute(
    "gen_ai.operation.name", str, "`chat` if the caller's id comes from vLLM's chat API, otherwise `text_completion`."
)
PROVIDER = Attribute("gen_ai.provider.name", str, "Always `vllm`.")
OUTPUT_TOKENS = Attribute("gen_ai.usage.output_tokens", int, "Equal to `kvtrail.tokens.output`, if known.")
ROOT_SPAN_ATTRIBUTES: tuple[Attribute, ...] = (REQUEST_MODEL, CALLERS_ID, OPERATION, PROVIDER, OUTPUT_TOKENS)
"""Attributes of a root span for tools that know nothing of kvtrail. They are not fields of an event: kvtrail reads the same
facts from other attributes."""
CUT_OFF = "cut_off"
"""The outcome of a request that was open when its engine ended."""
CUT_OFF_REASON = "the engine ended before the request did"
"""The status of the root span of such a request."""
FAILED_REASON = "it failed; no call raised"
"""The status of a span whose values report a failure, for tools that know nothing of kvtrail."""
NO_END_RECORD = "its process ended without a goodbye"
"""The `kvtrail.recorder.ended_by` of an end record that the export process sends in place of an engine that was killed
or has crashed. Recorders of every version send this text."""
LOST_CONTACT = "lost_contact"
"""The outcome of a request whose engine has not reported for so long that it is considered ended."""


FAILURES: dict[Kind, tuple[str, bool | str]] = {
    Kind.REQUEST: ("outcome", "error"),
    Kind.RECEIVED: ("failed", True),
    Kind.TRANSFER_END: ("failed", True),
    Kind.XFER: ("xfer_state", "failed"),
}
"""By kind: the field that reports a failure of the span's operation, and its value then."""
ROOTS = (Kind.REQUEST, Kind.CUT_OFF)
"""The kinds with a span that is the root of a request, from its arrival to its end."""


def span_name(kind: str) -> str:
    """The name of the span that carries an event of this kind."""
    return Kind.REQUEST.value if kind == Kind.CUT_OFF else kind


RECEIVER = "kvtrail-receiver"
"""The HTTP header, or gRPC metadata, with a sidecar's version in its answers. It identifies the receiver as a sidecar."""

RECORDER_ID = Attribute("kvtrail.recorder.id", str, "Identity of the recorder: one process of one engine.", "recorder")
ENGINE_ID = Attribute("kvtrail.engine.id", str, "vLLM's `engine_id` of the KV transfer configuration.", "engine")
BLOCK_SIZE = Attribute("kvtrail.block.size", int, "Tokens per KV block.")
MODEL = Attribute("kvtrail.model", str, "The model's name in vLLM's configuration.")
SERVED_MODEL = Attribute(
    "kvtrail.model.served", str, "The name under which vLLM serves the model: `model_name` in its own metrics."
)
ENGINE_VERSION = Attribute("kvtrail.vllm.version", str, "vLLM's version.")
VERSION = Attribute("kvtrail.version", str, "Version of the recording kvtrail.")
GROUPS = Attribute(
    "kvtrail.groups",
    str,
    "JSON: the KV cache groups of the model, in vLLM's order: `kind`, `block_size`, `window`, `layers`, `page_bytes`,"
    " `cache_mode` and `checkpoints` of each (docs/concepts.md). Absent if the only group is one of full attention.",
    "groups",
)
POOL_BLOCKS = Attribute(
    "kvtrail.blocks.total", int, "Number of KV blocks in the engine's pool, including the null block."
)
MAX_BATCHED = Attribute("kvtrail.scheduler.max_batched_tokens", int, "Maximum number of tokens in a step.")
MAX_SEQUENCES = Attribute("kvtrail.scheduler.max_sequences", int, "Maximum number of requests that run at once.")
MAX_LENGTH = Attribute(
    "kvtrail.scheduler.max_model_length", int, "Maximum number of tokens in a request, including its output."
)
POLICY = Attribute("kvtrail.scheduler.policy", str, "`fcfs` or `priority`.")
RESERVES = Attribute(
    "kvtrail.scheduler.reserves_full_prompt", bool, "A request is admitted only if its whole prompt fits."
)
ASYNC_SCHEDULING = Attribute("kvtrail.scheduler.async", bool, "A step is scheduled before the previous step has ended.")
PREFIX_CACHING = Attribute("kvtrail.prefix_caching", bool, "vLLM's own prefix cache is on.")
LOAD_FAILURES = Attribute(
    "kvtrail.load_failure_policy",
    str,
    "vLLM's `kv_load_failure_policy`: `recompute` computes tokens that failed to load, `fail` ends their request.",
)
DRAFTS = Attribute("kvtrail.drafts", int, "Number of speculative tokens in a step; 0 without speculation.")
CONNECTOR_SETTINGS = Attribute(
    "kvtrail.connector.settings",
    str,
    "JSON: the numbers and booleans in the connector's configuration. Strings are left out, since they may be secrets.",
)
CONNECTOR_CLASS = Attribute(
    "kvtrail.connector.class",
    str,
    "The connector's class as `module:Class`, for connectors that are not in vLLM's registry. If a process has several"
    " connectors, the class of the first one.",
)
CAPABILITIES = Attribute(
    "kvtrail.connector.capabilities",
    str,
    "JSON: by connector name, the properties of its spans that rules may rely on (docs/connectors.md). If absent, the"
    " connector's name decides.",
    "capabilities",
)
PATIENCE = Attribute(
    "kvtrail.connector.patience",
    str,
    "JSON: by connector name, the maximum time in seconds that it waits for another engine, according to its settings."
    " `load_s`: for the other engine's part of an asynchronous load. `keep_s`: for the other engine to read the blocks of an"
    " ended request.",
    "patience",
)
LAUNCH = Attribute(
    "kvtrail.engine.launch",
    str,
    "Id of one launch of the engine, equal in all of its processes. Another launch may reuse ids of requests.",
    "launch",
)
SAMPLED_ONLY = Attribute(
    "kvtrail.recorder.sampled_only",
    bool,
    "The recorder leaves out requests that are not sampled, so nothing can be concluded about the engine as a whole.",
    "sampled_only",
)
LACKS = Attribute(
    "kvtrail.vllm.lacks",
    str,
    "Features that this vLLM, or its log, does not show, separated by commas: `request_starts`, `hit_sources`,"
    " `block_tables`, `statistics`, `prefix_cache`, `plans`, `catches` (docs/limits.md). Rules that need them are `unknown`."
    " Absent if all are shown.",
    "lacks",
)
CACHE_IDENTITY = Attribute(
    "kvtrail.cache.identity",
    str,
    "Digests of 8 hexadecimal digits each: of the model, and of everything besides the tokens on which KV and its hashes"
    " depend. Engines with the same identity have equal hashes and, rank by rank, equal fingerprints for equal content.",
)
FINGERPRINTS = Attribute(
    "kvtrail.fingerprints", str, "The bytes of each KV block that are checked: `some` or `all`; absent if none are."
)
HEARTBEATS = Attribute(
    "kvtrail.recorder.heartbeats",
    str,
    "Whether the recorder sends heartbeats: `spans` always, `off` never. Absent if the receiver's answer decides.",
)
RESOURCE: tuple[Attribute, ...] = (
    RECORDER_ID, ENGINE_ID, VERSION, BLOCK_SIZE, MODEL, SERVED_MODEL, ENGINE_VERSION, POOL_BLOCKS, MAX_BATCHED,
    MAX_SEQUENCES, MAX_LENGTH, POLICY, RESERVES, ASYNC_SCHEDULING, PREFIX_CACHING, LOAD_FAILURES, DRAFTS,
    CONNECTOR_SETTINGS, CONNECTOR_CLASS, CAPABILITIES, PATIENCE, SAMPLED_ONLY, LAUNCH, LACKS, CACHE_IDENTITY,
    FINGERPRINTS, HEARTBEATS, GROUPS,
)  # fmt: skip
"""Resource attributes that a recorder adds to those of the OpenTelemetry SDK (`service.name`, `host.name`, …)."""

FINDING_EVENT = "kv.finding"
"""The event name of a log record that reports a finding."""
FINDINGS_SCOPE = "kvtrail.findings"
"""Instrumentation scope of these log records. Only a sidecar writes them."""
FINDING_RULE = Attribute("kvtrail.finding.rule", str, "The rule of the finding.")
FINDING_TITLE = Attribute("kvtrail.finding.title", str, "A general description of the fault.")
FINDING_SEVERITY = Attribute(
    "kvtrail.finding.severity",
    str,
    "The possible damage: `crash`, `wrong output`, `broken contract`, `hang`, `leak`, `wasted work`, `wrong metrics`.",
)
FINDING_HINT = Attribute("kvtrail.finding.hint", str, "The usual cause.")
FINDING_COUNT = Attribute("kvtrail.finding.count", int, "Number of occurrences when this record was written.")
FINDING_HEALED = Attribute(
    "kvtrail.finding.healed",
    int,
    "Number of these occurrences that the guard repaired before the scheduler acted on them.",
)
FINDING_KNOWN = Attribute(
    "kvtrail.finding.known", bool, "Whether the file of known findings named it when this record was written."
)
FINDING_FIELDS: tuple[Attribute, ...] = (
    FINDING_RULE, FINDING_TITLE, FINDING_SEVERITY, FINDING_HINT, FINDING_COUNT, FINDING_HEALED, FINDING_KNOWN, EPOCH,
)  # fmt: skip
"""The attributes of a finding."""


HASH_BYTES, GROUP_BYTES = 8, 4
"""Bytes recorded of a block's hash, from its end: enough to recognize it, and the part that vLLM's KV events have."""
MAX_REPORTED = 65_536
"""Maximum number of hashes that a recorder refers to before it reports them again."""


def external_id(request_id: str) -> str:
    """The caller's id: vLLM names a request `<external>-<8 hexadecimal digits>` inside the engine."""
    head, dash, tail = request_id.rpartition("-")
    return head if dash and len(tail) == 8 and all(c in "0123456789abcdef" for c in tail) else request_id

"""The tables in ClickHouse: creation and changes.

`otel_traces`, `otel_traces_trace_id_ts` and its view have the columns of the OpenTelemetry Collector's ClickHouse exporter,
so that Grafana's data source and ClickStack can read them, and further columns of kvtrail, which they ignore. Tables that the
exporter created are kept.

A span, a request, a finding, an engine or a launch replaces its older row (ReplacingMergeTree): the key identifies
it, `written` orders its rows. A sum is a running total of one tracer, which replaces the one before; `number` is
the last batch that it includes. So nothing counts twice, however often a batch is sent. Times are Unix nanoseconds (`_ns`) or
seconds (`_s`).
"""

from __future__ import annotations

from kvtrail.tracer.events import semconv
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.clickhouse.connection import Database
from kvtrail.tracer.store.measures import NUMBERS, TOKENS

VERSION = 7
_LONGEST_HOURS = 20 * 366 * 24
"""ClickHouse's DateTime wraps around in 2106."""

DIMENSIONS = ("service", "node", "model")
"""The columns that describe a row's engine, besides its id. The node is the engine's pod, or else its host."""
_DIMENSIONS = "engine LowCardinality(String), " + ", ".join(f"{name} LowCardinality(String)" for name in DIMENSIONS)
_DAY_OF = "PARTITION BY toDate(toDateTime(intDiv({}, 1000000000)))"

SPANS = """CREATE TABLE IF NOT EXISTS otel_traces (
    Timestamp DateTime64(9) CODEC(Delta, ZSTD(1)),
    TraceId String CODEC(ZSTD(1)),
    SpanId String CODEC(ZSTD(1)),
    ParentSpanId String CODEC(ZSTD(1)),
    TraceState String CODEC(ZSTD(1)),
    SpanName LowCardinality(String) CODEC(ZSTD(1)),
    SpanKind LowCardinality(String) CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    SpanAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    Duration UInt64 CODEC(ZSTD(1)),
    StatusCode LowCardinality(String) CODEC(ZSTD(1)),
    StatusMessage String CODEC(ZSTD(1)),
    Events Nested (
        Timestamp DateTime64(9), Name LowCardinality(String), Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),
    Links Nested (
        TraceId String, SpanId String, TraceState String, Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_res_attr_key mapKeys(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_res_attr_value mapValues(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_key mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_value mapValues(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_duration Duration TYPE minmax GRANULARITY 1
) ENGINE = {engine}ReplacingMergeTree
PARTITION BY toDate(Timestamp)
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp), TraceId, SpanId)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1"""

OUR_COLUMNS = f"""ALTER TABLE otel_traces
    ADD COLUMN IF NOT EXISTS Number UInt64 CODEC(Delta, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS Typed Array(LowCardinality(String)) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS Engine LowCardinality(String) MATERIALIZED ResourceAttributes['{semconv.ENGINE_ID.key}'],
    ADD COLUMN IF NOT EXISTS Model LowCardinality(String) MATERIALIZED ResourceAttributes['{semconv.MODEL.key}'],
    ADD COLUMN IF NOT EXISTS Node LowCardinality(String) MATERIALIZED
        coalesce(nullIf(ResourceAttributes['k8s.pod.name'], ''), ResourceAttributes['host.name']),
    ADD COLUMN IF NOT EXISTS Request String MATERIALIZED SpanAttributes['{semconv.REQUEST_ID.key}'] CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS Named String MATERIALIZED SpanAttributes['{semconv.CALLERS_ID.key}'] CODEC(ZSTD(1)),
    ADD INDEX IF NOT EXISTS idx_request Request TYPE bloom_filter(0.001) GRANULARITY 1,
    ADD INDEX IF NOT EXISTS idx_named Named TYPE bloom_filter(0.001) GRANULARITY 1,
    ADD INDEX IF NOT EXISTS idx_number Number TYPE minmax GRANULARITY 1"""
"""`Number` grows as spans arrive; `Typed` names the attributes whose text is JSON (see `spans`)."""

TRACE_TIMES = """CREATE TABLE IF NOT EXISTS otel_traces_trace_id_ts (
    TraceId String CODEC(ZSTD(1)),
    Start DateTime CODEC(Delta, ZSTD(1)),
    End DateTime CODEC(Delta, ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.01) GRANULARITY 1
) ENGINE = {engine}MergeTree
PARTITION BY toDate(Start)
ORDER BY (TraceId, Start)
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1"""

TRACE_TIMES_VIEW = """CREATE MATERIALIZED VIEW IF NOT EXISTS otel_traces_trace_id_ts_mv TO otel_traces_trace_id_ts AS
SELECT TraceId, min(Timestamp) AS Start, max(Timestamp) AS End FROM otel_traces WHERE TraceId != '' GROUP BY TraceId"""

REQUESTS = f"""CREATE TABLE IF NOT EXISTS kvtrail_requests (
    {_DIMENSIONS}, request String, external String, trace_id String, connector LowCardinality(String),
    status LowCardinality(String), outcome LowCardinality(Nullable(String)), verdict LowCardinality(String),
    findings Int64, complete Bool, started_ns Int64, last_ns Int64, ended_ns Nullable(Int64),
    lookups Int64, longest_match Int64, loaded Int64, stored Int64, epoch Int64, waited_ns Int64, recomputed Int64,
    loads Int64,
    tier Nullable(UInt8), changes Array(Int64) CODEC(ZSTD(1)), transfers Array(Int64) CODEC(ZSTD(1)),
    account String CODEC(ZSTD(3)), written UInt64,
    time DateTime64(9) ALIAS fromUnixTimestamp64Nano(started_ns),
    INDEX by_request request TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_external external TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_trace trace_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_last last_ns TYPE minmax GRANULARITY 1
) ENGINE = {{engine}}ReplacingMergeTree(written)
{_DAY_OF.format("started_ns")}
ORDER BY (engine, request)"""
"""Requests with their lanes in the live view; `tier` is NULL until a request has a lane."""

MEASURES = f"""CREATE TABLE IF NOT EXISTS kvtrail_request_measures (
    {_DIMENSIONS}, request String, started_ns Int64, last_ns Int64,
    tenant LowCardinality(String), connector LowCardinality(String), prefix String CODEC(ZSTD(1)),
    ending LowCardinality(String), {", ".join(f"{name} Nullable(Int64)" for name in NUMBERS)},
    {", ".join(f"{name} Int64" for name in TOKENS)}, tokens Map(LowCardinality(String), Int64), written UInt64,
    time DateTime64(9) ALIAS fromUnixTimestamp64Nano(started_ns)
) ENGINE = {{engine}}ReplacingMergeTree(written)
{_DAY_OF.format("started_ns")}
ORDER BY (engine, request)"""
"""Columns by which requests are filtered, counted and grouped; `tokens` has their prompts' tokens by cause."""

FINDINGS = f"""CREATE TABLE IF NOT EXISTS kvtrail_findings (
    id String, {_DIMENSIONS}, request String, connector LowCardinality(String),
    rule LowCardinality(String), severity LowCardinality(String), count Int64, healed Int64,
    first_ns Int64, last_ns Int64, body String CODEC(ZSTD(3)), written UInt64,
    time DateTime64(9) ALIAS fromUnixTimestamp64Nano(last_ns),
    explanation String ALIAS JSONExtractString(body, 'explanation'),
    INDEX by_request request TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = {{engine}}ReplacingMergeTree(written)
ORDER BY id"""

SAVINGS = f"""CREATE TABLE IF NOT EXISTS kvtrail_savings (
    step_s UInt32, at_s Int64, {_DIMENSIONS}, connector LowCardinality(String), epoch UInt8, measure LowCardinality(String),
    tracer LowCardinality(String), value Int64, number UInt64,
    time DateTime ALIAS toDateTime(at_s)
) ENGINE = {{engine}}ReplacingMergeTree(number)
PARTITION BY toDate(toDateTime(at_s))
ORDER BY (step_s, at_s, engine, connector, epoch, measure, tracer)"""

WASTE = f"""CREATE TABLE IF NOT EXISTS kvtrail_waste (
    at_ns Int64, {_DIMENSIONS}, request String, epoch Int64, cause LowCardinality(String), tier LowCardinality(String),
    tenant LowCardinality(String), prefix String, start Int64, tokens Int64, admissions UInt8, written UInt64,
    time DateTime64(9) ALIAS fromUnixTimestamp64Nano(at_ns)
) ENGINE = {{engine}}ReplacingMergeTree(written)
{_DAY_OF.format("at_ns")}
ORDER BY (at_ns, engine, request, epoch, cause, tier)"""

ENGINES = """CREATE TABLE IF NOT EXISTS kvtrail_engines (
    engine String, model String, version String, kvtrail String, service String, instance String, pod String, host String,
    first_ns UInt64, written UInt64, last_ns Int64 ALIAS toInt64(written)
) ENGINE = {engine}ReplacingMergeTree(written)
ORDER BY engine"""

LAUNCHES = """CREATE TABLE IF NOT EXISTS kvtrail_launches (
    engine String, launch String, tracer LowCardinality(String), state LowCardinality(String),
    began_ns Int64, ended_ns Nullable(Int64), ended_by Nullable(String), lost Int64, cause String,
    settings String CODEC(ZSTD(1)), written UInt64,
    time DateTime64(9) ALIAS fromUnixTimestamp64Nano(coalesce(ended_ns, began_ns))
) ENGINE = {engine}ReplacingMergeTree(written)
ORDER BY (engine, launch, tracer)"""
"""Several tracers may know a launch; `liveness.engine.agreed` combines their knowledge."""

HANDOFFS = """CREATE TABLE IF NOT EXISTS kvtrail_handoffs (
    key String, engine LowCardinality(String), recorder String, sequence UInt64, kind LowCardinality(String), at_ns Int64,
    request String, lost_number Int64, loads UInt32, body String CODEC(ZSTD(3)), tracer LowCardinality(String),
    written UInt64,
    time DateTime64(9) ALIAS fromUnixTimestamp64Nano(at_ns)
) ENGINE = {engine}ReplacingMergeTree(written)
ORDER BY (key, recorder, sequence, request)
SETTINGS index_granularity = 512"""
"""The events of hand-offs, by the hand-off's name; a heartbeat is stored once for each hand-off with a running deadline."""

MARKERS = """CREATE TABLE IF NOT EXISTS kvtrail_markers (
    id String, kind LowCardinality(String), at_ns Int64, engine String, text String, earliest UInt64,
    time DateTime64(9) ALIAS fromUnixTimestamp64Nano(at_ns)
) ENGINE = {engine}ReplacingMergeTree(earliest)
ORDER BY id"""

SCHEMA = """CREATE TABLE IF NOT EXISTS kvtrail_schema (
    version UInt32, retain_hours Float64, written UInt64
) ENGINE = {engine}ReplacingMergeTree(written)
ORDER BY tuple()"""
"""One row: the version of the tables, and their retention time."""

_STATEMENTS = (
    SPANS, OUR_COLUMNS, TRACE_TIMES, TRACE_TIMES_VIEW, REQUESTS, MEASURES, FINDINGS, SAVINGS, WASTE, ENGINES, LAUNCHES,
    HANDOFFS, MARKERS,
)  # fmt: skip
_ENDS = {
    "otel_traces": "toDateTime(Timestamp)",
    "otel_traces_trace_id_ts": "Start",
    "kvtrail_requests": "toDateTime(intDiv(last_ns, 1000000000))",
    "kvtrail_request_measures": "toDateTime(intDiv(last_ns, 1000000000))",
    "kvtrail_savings": "toDateTime(at_s + step_s)",
    "kvtrail_waste": "toDateTime(intDiv(at_ns, 1000000000))",
    "kvtrail_handoffs": "toDateTime(intDiv(at_ns, 1000000000))",
    "kvtrail_markers": "toDateTime(intDiv(at_ns, 1000000000))",
}
"""The tables that drop old rows, and the column with a row's time. Findings, engines and their launches are kept."""


def make(database: Database) -> tuple[int, float]:
    """Create missing tables; returns the earlier result of `stored`. Several tracers may do so at once.

    Raises:
        StoreError: the tables belong to another version of kvtrail, or this one may not create them.
    """
    engine = "Replicated" if database.address.replicated else ""
    database.command(SCHEMA.format(engine=engine))
    version, retained = stored(database)
    check(database, version or VERSION)
    if not version:
        for statement in _STATEMENTS:
            database.command(statement.format(engine=engine))
    return version, retained


def check(database: Database, version: int) -> None:
    """Raises StoreError if the tables belong to another version of kvtrail."""
    if version != VERSION:
        raise StoreError(
            f"{database.address} has schema {version}, and this kvtrail uses schema {VERSION}; choose another database"
        )


def prepare(database: Database, *, retain_hours: float, now_ns: int) -> None:
    """Create missing tables, and set the retention time of all. Several tracers may do so at once.

    Raises:
        StoreError: the tables belong to a newer kvtrail, or this one may not create them.
    """
    version, retained = make(database)
    if retained != retain_hours:
        seconds = int(min(retain_hours, _LONGEST_HOURS) * 3600)
        for table, end in _ENDS.items():
            database.command(f"ALTER TABLE {table} MODIFY TTL {end} + toIntervalSecond({seconds})")
    if (version, retained) != (VERSION, retain_hours):
        database.insert("kvtrail_schema", ("version", "retain_hours", "written"), [(VERSION, retain_hours, now_ns)])


def stored(database: Database) -> tuple[int, float]:
    """The version of the tables, and their retention time in hours; zeros if there are none yet."""
    rows = database.ask("SELECT version, retain_hours FROM kvtrail_schema FINAL")
    return rows[0] if rows else (0, 0.0)

"""The Prometheus metrics: base units, `_total`, and few label values. No request id is ever a label.

The registry is our own. vLLM may set `PROMETHEUS_MULTIPROC_DIR`; this process has no use for its multiprocess mode.
"""

from __future__ import annotations

import os

os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)  # prometheus_client reads it when it is imported

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kvtrail import __version__
from kvtrail.tracer.causes.causes import GPU, STORE
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import (
    BlockCheck,
    CutOff,
    Event,
    Load,
    LoadPlan,
    Lookup,
    Plan,
    Received,
    RequestEnd,
    Store,
    TransferEnd,
)
from kvtrail.tracer.events.losses import Lost
from kvtrail.tracer.events.semconv import CUT_OFF, Kind
from kvtrail.tracer.ledger.facts import Admitted, Breakdown, Fact, LoadReceived, Preempted, tiers_of
from kvtrail.tracer.ledger.handoff_sums import OF_SIDE, HandedOver
from kvtrail.tracer.liveness.engine import EngineState, Launch, LossCause
from kvtrail.tracer.liveness.recorders import INFO
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict
from kvtrail.tracer.model.markers import Marker
from kvtrail.tracer.rules import pages
from kvtrail.tracer.serve.errors import InternalErrors, Where
from kvtrail.tracer.serve.metrics.bounded_series import OTHER, Series
from kvtrail.tracer.serve.metrics.durations import TRACE_ID_LENGTH, Duration, Durations
from kvtrail.tracer.serve.metrics.engine_gauges import GAUGES, KNOWN, NOT_KNOWN, EngineGauges
from kvtrail.tracer.store.sqlite.spool import Spool

disable_created_metrics()  # Prometheus does not need the `_created` series of each counter
CALL_SECONDS = (1e-5, 1e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 2.5, 10.0)
TRANSFER_SECONDS = (1e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
LAG_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_LOST = frozenset(Lost)
OUTCOMES = frozenset({"stopped", "length_capped", "aborted", "ignored", "error", "repetition", "unknown", CUT_OFF})
"""vLLM's finish statuses, and the end of a request after its engine has ended. Statuses of a newer vLLM are `other`."""
UNSPECIFIED = "external_unspecified"
"""vLLM's name for the source of tokens if the connector does not name one."""
SOURCES = frozenset({"device", "host", "p2p", "disk", UNSPECIFIED})
"""vLLM's names for where cached tokens come from."""
TIERS = frozenset({"", GPU, STORE, *SOURCES})
"""Label values for the cache of a cause; others share one value."""
MAX_TRANSFERS = 100_000
"""Maximum number of transfers that are timed at once; beyond that the one that has been open longest is dropped."""
LOOKS = frozenset({"computed", "loaded", "admitted", "held"})
"""Reasons for which blocks are checked."""
FIRST, RESUMED = "first", "resumed"
_CONNECTOR = ("engine", "connector")
_EPOCH = (*_CONNECTOR, "epoch")

Checks = Mapping[tuple[str, Verdict], int]
"""The number of verdicts, by rule id and verdict."""
Reasons = Mapping[tuple[str, Unknown], int]
"""The number of undecided judgements, by rule id and reason."""

WATCHED = {
    "requests_open": "Requests that have begun and not ended.",
    "http_requests_waiting": "OTLP requests over HTTP that are being received or processed, or wait.",
    "store_damaged_rows": (
        "Unreadable rows of the sidecar's own file found since its start; each counts once for each form in which it is "
        "queried, up to 10,000 per table. They are omitted from answers; `kvtrail store verify` lists the damage, "
        "`kvtrail store rebuild` restores derived data."
    ),
}
"""What the gauges show that other parts of the sidecar add, by name."""


class _ChecksCollector(Collector):
    def __init__(self, checks: Callable[[], Checks], reasons: Callable[[], Reasons]) -> None:
        self._checks, self._reasons = checks, reasons

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(
            "kvtrail_checks", "Verdicts of the rules: `ok`, `drift` or `unknown`.", labels=("rule", "verdict")
        )
        for (rule, verdict), count in self._checks().items():
            family.add_metric((rule, verdict), count)
        yield family
        text = "Judgements that a rule could not make, by the reason."
        family = CounterMetricFamily("kvtrail_unknown", text, labels=("rule", "reason"))
        for (rule, reason), count in self._reasons().items():
            family.add_metric((rule, reason.name.lower()), count)
        yield family


class _SpoolCollector(Collector):
    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        waiting = self._spool.waiting()
        oldest_s = max(0.0, time.time() - waiting.oldest_ns / 1e9) if waiting.oldest_ns else 0.0
        yield GaugeMetricFamily(
            "kvtrail_spool_bytes",
            "Compressed bytes that wait to be sent to ClickHouse. Only with `--store clickhouse://…`.",
            waiting.bytes,
        )
        yield GaugeMetricFamily(
            "kvtrail_spool_oldest_seconds",
            ("Age of the oldest bytes that wait to be sent to ClickHouse, or 0. Only with `--store clickhouse://…`."),
            oldest_s,
        )
        text = (
            "Spans that were not sent to ClickHouse because the spool was full, since its file was created. Only with "
            "`--store clickhouse://…`."
        )
        yield CounterMetricFamily("kvtrail_spool_dropped_spans", text, waiting.dropped_spans)


class Metrics:
    """The sidecar's metrics. `docs/reference.py` makes `docs/metrics.md` from their names, labels and texts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._series = Series()
        self._plans = BoundedDict[tuple[str, str | None, int], Plan](MAX_TRANSFERS)
        """Numbered transfers that are open: they may outlast their requests and these accounts."""
        self._info_shown: dict[str, tuple[str, ...]] = {}
        counter = partial(Counter, namespace="kvtrail", registry=self.registry)
        gauge = partial(Gauge, namespace="kvtrail", registry=self.registry)
        histogram = partial(Histogram, namespace="kvtrail", registry=self.registry)
        durations = partial(Durations, namespace="kvtrail", registry=self.registry)

        # What the connectors do.
        self.lookups = counter(
            "lookups", 'Lookups: `hit`, `miss`, `later` ("ask me later") or `error`.', (*_CONNECTOR, "answer")
        )
        self.admissions = counter(
            "admissions",
            (
                "Lookups with an answer that led to an allocation. `epoch` is `first`, or `resumed` after a "
                "preemption. Other lookups led to no allocation."
            ),
            _EPOCH,
        )
        self.queried = counter(
            "queried_tokens", "Tokens that the connector was asked for at admissions: N - c.", _EPOCH
        )
        self.hits = counter(
            "hit_tokens",
            (
                "External tokens with allocated blocks: the part of the answers that was used. `source` is vLLM's "
                "name: `host`, `disk`, `p2p`, `device`, or `external_unspecified` if the connector does not name "
                "one."
            ),
            (*_EPOCH, "source"),
        )
        self.local = counter("local_hit_tokens", "Tokens that vLLM's own prefix cache held at admissions: c.", _EPOCH)
        self.recomputed = counter(
            "recomputed_tokens",
            (
                "Tokens that the connector's store held and that were computed anyway: min(h, N - 1) - c - x. "
                "Only if the connector exposes h, and was the only one asked."
            ),
            _EPOCH,
        )
        self.load_tokens = counter(
            "load_tokens", "Tokens loaded from the connector's store, summed over ranks.", _CONNECTOR
        )
        self.load_bytes = counter(
            "load_bytes", "Bytes loaded from the connector's store, summed over ranks.", _CONNECTOR
        )
        self.load_failures = counter(
            "load_failures",
            "Failed loads: reported by their `blocks`, or by a failed `completion`.",
            (*_CONNECTOR, "report"),
        )
        self.store_tokens = counter(
            "store_tokens", "Tokens copied to the connector's store, summed over ranks.", _CONNECTOR
        )
        self.store_bytes = counter(
            "store_bytes", "Bytes copied to the connector's store, summed over ranks.", _CONNECTOR
        )
        self.blocks_checked = counter(
            "blocks_checked",
            (
                "KV blocks with bytes that were compared with the reference of their hashes. Look: `computed`, "
                "`loaded`, `admitted` or `held`. Verdict: `right`, `wrong`, or `unknown` if the worker has no "
                "reference. If another engine with an equal cache turns out to have computed it under another "
                "hash, it also counts as `wrong`."
            ),
            (*_CONNECTOR, "look", "verdict"),
        )
        self.evicted = counter("evicted_chunks", "Chunks evicted from the connector's store.", _CONNECTOR)
        self.prompt_tokens = counter(
            "prompt_tokens",
            (
                "Tokens of requests at their admissions, by the cause why they were reused or computed. `tier` is "
                "the cache concerned: `gpu` for vLLM's own; `store`, or vLLM's name of the source, for the "
                "connector's; otherwise empty."
            ),
            (*_CONNECTOR, "cause", "tier"),
        )
        self.preemptions = counter("preemptions", "Preemptions of requests.", _CONNECTOR)
        self.requests = counter("requests", "Requests that ended, by vLLM's finish status.", (*_CONNECTOR, "outcome"))
        self.errors = counter(
            "connector_errors", "Calls of the connector that raised, by the span's name.", (*_CONNECTOR, "call")
        )
        self.healed = counter("lookups_healed", "Lookup answers that the guard replaced.", _CONNECTOR)
        self.lookup_seconds = durations(
            "lookup_duration_seconds",
            "Duration of a lookup on the scheduler's thread.",
            _CONNECTOR,
            buckets=CALL_SECONDS,
        )
        self.wait_seconds = durations(
            "wait_duration_seconds",
            ("The wait of a request for an asynchronous load, from its allocation to the workers' report."),
            _CONNECTOR,
            buckets=TRANSFER_SECONDS,
        )
        self.load_seconds = durations(
            "load_duration_seconds",
            (
                "Duration of loads. Requests copied in one call share its duration; a numbered transfer lasts "
                "from its plan to its end."
            ),
            _CONNECTOR,
            buckets=TRANSFER_SECONDS,
        )
        self.store_seconds = durations(
            "store_duration_seconds", "Duration of stores, as for loads.", _CONNECTOR, buckets=TRANSFER_SECONDS
        )
        self.handoffs = counter(
            "handoffs",
            (
                'Hand-offs that ended. `side="gives"`: the engine freed the blocks, because they were `read`, '
                "because the lease `expired`, or for a reason that is not recorded (`freed`; counted ten seconds "
                "later, by heartbeats, since a worker in another process may report after its scheduler). "
                '`side="takes"`: a request `loaded` the hand-off, its load `failed`, it ended without a load '
                "(`not_loaded`: it was aborted or needed nothing; while a load is under way, the end of the load "
                "decides), or it was refused or left by its client before it was scheduled (`declined`)."
            ),
            (*_CONNECTOR, "side", "outcome"),
        )
        self.findings = counter(
            "findings",
            (
                "Findings: one for each rule, request and epoch, however often it recurs. `known` is `true` if it "
                "was a known finding when it was found, and `false` otherwise. A finding that becomes more severe "
                "counts once more, with its new severity."
            ),
            (*_CONNECTOR, "rule", "severity", "known"),
        )

        # What the sidecar received.
        self.spans_received = counter("spans_received", "Spans received over `grpc` or `http`.", ("transport",))
        self.spans_foreign = counter(
            "spans_foreign", ("Spans that no kvtrail recorder wrote; stored, and shown beside kvtrail's.")
        )
        self.spans_repeated = counter(
            "spans_repeated", ("Spans that were received again, because an exporter retried; stored once.")
        )
        self.spans_malformed = counter(
            "spans_malformed",
            (
                "Spans in kvtrail's scope that lack a required attribute or have a value that no recorder writes; "
                "stored, but judged by no rule. The log reports each kind once."
            ),
        )
        self.unfamiliar = counter(
            "unfamiliar",
            (
                'Spans (`what="span"`) and attributes (`what="attribute"`) of another version of kvtrail: '
                "skipped, and no rule judges what they may have changed. The overview has their names."
            ),
            ("engine", "what"),
        )
        self.internal_errors = InternalErrors(
            counter(
                "internal_errors",
                (
                    "Errors in kvtrail itself. `where` names what each one affects: a rule's id, its judgement; `decode`, "
                    "`detector`, `account` and `engine`, the judgement of a span; `phases`, `savings`, `rows` and "
                    "`metrics`, its display; `store`, a row; `recall`, open requests from before a restart; "
                    "`finding_log`, an exported finding; `tidy`, a part of the cleanup; `ingest`, a batch (the "
                    "sender retries); `api`, an answer. The log reports each once."
                ),
                ("where",),
            )
        )
        self.store_failures = counter("store_failures", "Writes that the store refused; the sender was asked to retry.")
        self.events_received = counter("events_received", "Events received, including heartbeats.", ("engine",))
        self.events_missing = counter(
            "events_missing",
            ("Events declared missing: the gap in their numbers was not filled within 10 s."),
            ("engine",),
        )
        self.events_dropped = counter("events_dropped", "Events that the recorders report as dropped.", ("engine",))
        self.events_conflicting = counter(
            "events_conflicting",
            (
                "Events with a number that another span of the same recorder has as well, or that the recorder "
                "cannot have reached yet: two senders use one recorder's id."
            ),
            ("engine",),
        )
        self.events_dropped_by_reason = counter(
            "events_dropped_by_reason",
            ("Events that the recorders report as dropped, by the reason that they give."),
            ("engine", "reason"),
        )
        self.lag_seconds = histogram(
            "event_lag_seconds",
            (
                "Time from the end of an engine's oldest event in a batch, by the engine's clock, until the batch "
                "is stored."
            ),
            ("engine",),
            buckets=LAG_SECONDS,
        )
        self._rejected = counter(
            "rejected",
            (
                "OTLP requests that were rejected, except those that gRPC's library refuses: too many calls, and "
                "messages over 1 MiB. To be retried: too many wait (`busy`), there are too many connections "
                "(`connections`), nothing can be stored (`store`). Permanently: `too_large`, `malformed`, not "
                "sent in time (`slow`), interrupted by the sender (`cut_off`)."
            ),
            ("transport", "reason"),
        )
        self.ingest_seconds = histogram(
            "ingest_duration_seconds", "Time from a batch's arrival until it is stored.", buckets=CALL_SECONDS
        )
        gauge("build_info", "The sidecar's version; always 1.", ("version",)).labels(__version__).set(1)
        ProcessCollector(registry=self.registry)

        # The state of the engines.
        self.deaths = counter(
            "engine_deaths",
            (
                "Launches of the engine that died: an `exception` ended it; it was `killed`: its process ended "
                "without an end record, and requests were lost with it; or `lost_contact`: it stopped reporting "
                "without an explanation. Rollouts, drains and scale-downs are not deaths. A launch counts once "
                "for each cause."
            ),
            ("engine", "cause"),
        )
        self.lost_requests = counter(
            "engine_lost_requests",
            (
                "Requests that were lost with a launch that died: they were open, or a prefill engine kept their "
                "blocks for another engine to read."
            ),
            ("engine", "cause"),
        )
        self.lost_contact = gauge(
            "engine_lost_contact_timestamp_seconds",
            (
                "The last event of an engine that stopped reporting without an explanation, by its own clock. "
                "There is no series once it reports again, its end is known, or it was replaced."
            ),
            ("engine",),
        )
        self._marked = gauge(
            "marker_timestamp_seconds",
            (
                "When an engine's latest event of a kind that charts mark was, by its own clock: `deploy`, "
                "`restart`, `death`, `contact lost`, `end`, `reset` or `drop`. Grafana's dashboards draw it as an "
                "annotation."
            ),
            ("engine", "kind"),
        )
        self._info = gauge(
            "engine_info",
            (
                "How an engine describes itself; always 1. `model_name` is that of vLLM's own metrics, "
                "`kvtrail_version` the recorder's."
            ),
            ("engine", *INFO),
        )
        self._gauges = {name: gauge(name, text, ("engine", *labels)) for name, (text, labels) in GAUGES.items()}

        # Prometheus sees no increase in a series that begins at 1.
        self._of_loads = self.load_tokens, self.load_bytes, self.load_seconds
        self._of_stores = self.store_tokens, self.store_bytes, self.store_seconds
        moved = (self.load_tokens, self.load_bytes, self.store_tokens, self.store_bytes)
        by_epoch = (self.admissions, self.queried, self.local, self.recomputed)
        self._begin_at_0: list[tuple[Counter, tuple[str, ...]]] = [
            *((metric, ()) for metric in (self.healed, self.preemptions, self.evicted, *moved)),
            *((metric, (epoch,)) for metric in by_epoch for epoch in (FIRST, RESUMED)),
            *((self.hits, (epoch, UNSPECIFIED)) for epoch in (FIRST, RESUMED)),
            *((self.lookups, (answer,)) for answer in ("hit", "miss", "later", "error")),
            *((self.errors, (call,)) for call in (Kind.LOOKUP, Kind.ALLOC)),
            *((self.load_failures, (report,)) for report in ("blocks", "completion")),
            *((self.requests, (outcome,)) for outcome in ("stopped", "length_capped", "aborted")),
            *(
                (self.findings, (rule, each, NOT_KNOWN))
                for rule, page in pages.every().items()
                for each in page.severities
            ),
            *((self.handoffs, (side, outcome)) for side, outcomes in OF_SIDE.items() for outcome in outcomes),
        ]

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Add a gauge of `WATCHED`, which is read when Prometheus scrapes."""
        Gauge(name, WATCHED[name], namespace="kvtrail", registry=self.registry).set_function(read)

    def count_rejected(self, transport: str, why: str) -> None:
        """Count a rejected request: `busy`, `connections`, `too_large`, `slow`, `cut_off`, `malformed` or `store` (nothing
        can be stored)."""
        self._rejected.labels(transport, why).inc()

    def watch_checks(self, checks: Callable[[], Checks], reasons: Callable[[], Reasons]) -> None:
        """Add the counters of verdicts and of reasons, which are read when Prometheus scrapes."""
        self.registry.register(_ChecksCollector(checks, reasons))

    def watch_spool(self, spool: Spool) -> None:
        """Add the metrics of the ClickHouse spool, which are read when Prometheus scrapes."""
        self.registry.register(_SpoolCollector(spool))

    def expose(self, accept: str) -> tuple[bytes, str]:
        """The page in a format that the `accept` header allows, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def count_received(self, engine: str, *, events: int, oldest_ns: int, stored_ns: int) -> None:
        """Count an engine's events in one batch. The oldest ended at `oldest_ns`; `stored_ns` is this machine's clock."""
        self._series.at(self.events_received, engine).inc(events)
        self._series.at(self.lag_seconds, engine).observe(max(0, stored_ns - oldest_ns) / 1e9)

    def count_lost(self, engine: str, *, missing: int = 0, dropped: int = 0, conflicting: int = 0) -> None:
        """Count events that never arrived, that a recorder reports as dropped, or that have impossible numbers."""
        self._series.at(self.events_missing, engine).inc(missing)
        self._series.at(self.events_dropped, engine).inc(dropped)
        self._series.at(self.events_conflicting, engine).inc(conflicting)

    def count_dropped_by(self, engine: str, why: str, events: int) -> None:
        """Count events that a recorder reports as dropped for this reason; a reason of another version is `other`."""
        reason = why if why in _LOST else OTHER
        self._series.at(self.events_dropped_by_reason, engine, reason).inc(events)

    def count_unknown(self, engine: str, *, what: str) -> None:
        """Count a `span` or an `attribute` of another version of kvtrail."""
        self._series.at(self.unfamiliar, engine, what).inc()

    def count_finding(self, finding: Finding, *, known: bool) -> None:
        """Count a finding that is new, or has a new severity, with its current labels: a later change does not move it to
        another series, since a counter never falls."""
        connector = self._series.connector(finding.connector)
        label = KNOWN if known else NOT_KNOWN
        series = self._series.at(self.findings, finding.engine, connector, finding.rule, finding.severity, label)
        series.inc(1, _exemplar(finding.trace_id))
        of = finding.numbers
        if "owner_engine" in of:
            # Its worker could not decide; results of engines with comparable caches do.
            self._series.at(self.blocks_checked, finding.engine, connector, of["look"], "wrong").inc(of["wrong"])

    def count_batch(
        self, events: Iterable[Event], facts: Iterable[Fact | Breakdown], handed_over: Iterable[HandedOver] = ()
    ) -> None:
        """Count the events of a batch, its admissions, preemptions and waits, and the ends of hand-offs. Each series is
        incremented once for all events: the lookup of a series costs more than the sum. Events that fail are not counted."""
        batch: defaultdict[tuple[str, str], _Counts] = defaultdict(_Counts)
        for event in events:
            if event.connector:  # a recorder's heartbeat has no connector
                counts, count = batch[event.engine, event.connector], _COUNT.get(event.kind)
                try:
                    if event.error is not None:
                        counts.add(self.errors, 1, event.kind)
                    if count is not None:
                        count(self, event, counts)
                except Exception as error:
                    self.internal_errors.count(Where.METRICS, error, f"span {event.span_id} is not counted")
        for fact in facts:
            event = fact.event
            if event.connector:
                try:
                    self._count_fact(fact, batch[event.engine, event.connector])
                except Exception as error:
                    self.internal_errors.count(Where.METRICS, error, f"span {event.span_id} is not counted in full")
        for ended in handed_over:
            batch[ended.event.engine, ended.event.connector].add(self.handoffs, 1, ended.side, ended.outcome)
        for (engine, connector), counts in batch.items():
            self._add(engine, connector, counts)

    def _count_fact(self, fact: Fact | Breakdown, counts: _Counts) -> None:
        if isinstance(fact, Preempted):
            counts.add(self.preemptions, 1)
            return
        if isinstance(fact, Breakdown):
            for part in fact.parts:
                counts.add(self.prompt_tokens, part.tokens, part.cause, part.tier if part.tier in TIERS else OTHER)
            return
        if isinstance(fact, LoadReceived):
            counts.time(self.wait_seconds, fact.event, fact.waited_ns)
            return
        if not isinstance(fact, Admitted):
            return
        lookup, alloc = fact.lookup, fact.event
        epoch = RESUMED if alloc.epoch else FIRST
        counts.add(self.admissions, 1, epoch)
        counts.add(self.queried, max(0, lookup.total - lookup.computed), epoch)
        counts.add(self.local, lookup.computed, epoch)
        for source, tokens in (tiers_of(alloc) or {UNSPECIFIED: alloc.allocated}).items():
            counts.add(self.hits, max(0, tokens), epoch, source if source in SOURCES else UNSPECIFIED)
        if lookup.matched is not None and not fact.others:
            # The last token is always computed: vLLM needs its logits.
            usable = min(lookup.matched, lookup.total - 1)
            counts.add(self.recomputed, max(0, usable - lookup.computed - alloc.allocated), epoch)

    def _count_lookup(self, event: Lookup, counts: _Counts) -> None:
        answer = "later" if event.returned is None else "hit" if event.returned else "miss"
        counts.add(self.lookups, 1, "error" if event.error else answer)
        counts.time(self.lookup_seconds, event, event.end_ns - event.start_ns)
        if event.refused is not None:
            counts.add(self.healed, 1)

    def _count_copy(self, event: Load | Store, counts: _Counts) -> None:
        tokens, bytes_, seconds = self._of_loads if isinstance(event, Load) else self._of_stores
        counts.add(tokens, event.count)
        counts.add(bytes_, event.bytes or 0)
        if event.end_ns > event.start_ns:  # a log line has only one timestamp
            counts.time(seconds, event, event.end_ns - event.start_ns)

    def _count_plan(self, event: Plan, counts: _Counts) -> None:
        if event.transfer_id is not None:
            self._plans[event.engine, event.request, event.transfer_id] = event

    def _count_transfer_end(self, event: TransferEnd, counts: _Counts) -> None:
        plan = self._plans.pop((event.engine, event.request, event.transfer_id), None)
        if plan is not None:
            seconds = self.load_seconds if isinstance(plan, LoadPlan) else self.store_seconds
            counts.time(seconds, event, max(0, event.end_ns - plan.start_ns))

    def _count_block_check(self, event: BlockCheck, counts: _Counts) -> None:
        look = event.check_look if event.check_look in LOOKS else OTHER
        right = event.looked - event.check_unknown - event.wrong
        for verdict, blocks in (("right", right), ("wrong", event.wrong), ("unknown", event.check_unknown)):
            counts.add(
                self.blocks_checked, blocks, look, verdict
            )  # also 0: Prometheus sees no increase in a series that begins at 1

    def _count_received(self, event: Received, counts: _Counts) -> None:
        if event.failed:
            counts.add(self.load_failures, 1, "completion")

    def _count_end(self, event: RequestEnd | CutOff, counts: _Counts) -> None:
        outcome = event.outcome or "unknown"
        counts.add(self.requests, 1, outcome if outcome in OUTCOMES else OTHER)

    def _add(self, engine: str, connector: str, counts: _Counts) -> None:
        """Add a batch's counts to the series of a connector. If it is new, its series begin at 0."""
        label = self._series.connector(connector)
        if not self._series.has(self.healed, engine, label):
            for metric, labels in self._begin_at_0:
                self._series.at(metric, engine, label, *labels)
            self.count_lost(engine)
        for (counter, *rest), amount in counts.sums.items():
            self._series.at(counter, engine, label, *rest).inc(amount)
        for (histogram, *rest), durations in counts.durations.items():
            self._series.at(histogram, engine, label, *rest).observe(durations)

    def describe(self, engine: str, info: tuple[str, ...]) -> None:
        """Show how an engine describes itself, with the labels `INFO`. An engine that shares the label `other` does not."""
        if not self._series.has_own(engine):
            return
        shown = self._info_shown.get(engine)
        if shown is None:
            self._begin_deaths(engine)
        elif shown != info:
            self._series.remove(self._info, engine, *shown)
        self._info_shown[engine] = info
        self._series.at(self._info, engine, *info).set(1)

    def _begin_deaths(self, engine: str) -> None:
        """Show that an engine has not died: Prometheus sees no increase in a series that begins at 1."""
        for cause in LossCause:
            self._series.at(self.deaths, engine, cause).inc(0)
            self._series.at(self.lost_requests, engine, cause).inc(0)

    def count_launch(self, before: Launch | None, now: Launch) -> None:
        """Update the metrics of a launch that changed: its engine's death, lost requests, and lost contact. The full number
        of lost requests may be known only later."""
        self._begin_deaths(now.engine)
        if now.loss is not None:
            is_known = before is not None and before.loss is now.loss
            self._series.at(self.deaths, now.engine, now.loss).inc(not is_known)
            counted = before.lost if before is not None and is_known else 0
            self._series.at(self.lost_requests, now.engine, now.loss).inc(max(0, now.lost - counted))
        if not self._series.has_own(now.engine):
            return
        if now.state is EngineState.LOST_CONTACT:
            self._series.at(self.lost_contact, now.engine).set((now.ended_ns or 0) / 1e9)
        else:
            self._series.remove(self.lost_contact, now.engine)

    def mark(self, marker: Marker) -> None:
        """Show the time of a marker."""
        self._series.at(self._marked, marker.engine, marker.kind).set(marker.at_ns / 1e9)

    def show(self, state: EngineGauges) -> None:
        """Set the gauges of an engine. An engine that shares the label `other` has none."""
        if not self._series.has_own(state.engine):
            return
        self.describe(state.engine, state.info)
        for (name, *labels), value in state.values.items():
            self._series.at(self._gauges[name], state.engine, *labels).set(value)

    def retire(self, engine: str) -> None:
        """Remove the series of an engine that has not reported for long."""
        self._info_shown.pop(engine, None)
        self._series.retire(engine)


_COUNT: dict[str, Callable[..., None]] = {
    Kind.LOOKUP: Metrics._count_lookup,
    Kind.LOAD: Metrics._count_copy,
    Kind.STORE: Metrics._count_copy,
    Kind.LOAD_PLAN: Metrics._count_plan,
    Kind.STORE_PLAN: Metrics._count_plan,
    Kind.TRANSFER_END: Metrics._count_transfer_end,
    Kind.LOAD_ERROR: lambda self, event, counts: counts.add(self.load_failures, 1, "blocks"),
    Kind.BLOCK_CHECK: Metrics._count_block_check,
    Kind.RECEIVED: Metrics._count_received,
    Kind.EVICT: lambda self, event, counts: counts.add(self.evicted, 1),
    Kind.REQUEST: Metrics._count_end,
    Kind.CUT_OFF: Metrics._count_end,
}


@dataclass(slots=True)
class _Counts:
    """Counts of a batch for one connector of an engine.

    Attributes:
        sums: increments, by counter and its labels after engine and connector.
        durations: durations, by histogram and its labels, likewise.
    """

    sums: defaultdict[tuple[Any, ...], int] = field(default_factory=lambda: defaultdict(int))
    durations: defaultdict[tuple[Any, ...], list[Duration]] = field(default_factory=lambda: defaultdict(list))

    def add(self, metric: Counter, amount: int, *labels: str) -> None:
        self.sums[(metric, *labels)] += amount

    def time(self, metric: Durations, event: Event, lasted_ns: int, *labels: str) -> None:
        self.durations[(metric, *labels)].append((lasted_ns, event.trace_id))


def _exemplar(trace_id: str) -> dict[str, str] | None:
    """The exemplar that links a value to a trace; None if there is no trace id."""
    return {"trace_id": trace_id} if len(trace_id) == TRACE_ID_LENGTH else None

"""The four dashboards: overview, drift, efficiency, sidecar."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dashboards
from parts import ALL_REQUESTS, CONNECTOR, OURS, REQUESTS, RULE, RULE_OF_ROW, begun, lines, number, rows, target

RATE = "[$__rate_interval]"


def rate(metric: str, select: str = CONNECTOR, by: str = "engine, connector") -> str:
    """The rate of a counter, added up by some labels."""
    return f"sum by ({by}) (rate({metric}{{{select}}}{RATE}))"


def quantile(q: float, metric: str, select: str = CONNECTOR, by: str = "connector") -> str:
    """A quantile of a histogram, by some labels."""
    labels = ", ".join(name for name in (by, "le") if name)
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{select}}}{RATE})))"


def ratio(part: str, whole: str) -> str:
    """A share; nothing where there is nothing to take it of."""
    return f"{part} / ({whole} > 0)"


def overview() -> dashboards.Dashboard:
    """Is anything wrong, and is it worth it."""
    severe = 'severity=~"crash|wrong output"'
    hits, asked = rate("kvtrail_hit_tokens_total", by="connector"), rate("kvtrail_queried_tokens_total", by="connector")
    found = "engine_connector_rule:kvtrail_findings:increase15m"
    return (
        begun("kvtrail overview", "kvtrail-overview", "Is anything wrong with KV offload, and is it worth it.")
        .with_panel(number("Severe drift, 15 minutes", "Findings that crash an engine or give wrong output.",
                           target(f"sum({found}{{{OURS},{severe}}}) or vector(0)"), alarm=1, links=(REQUESTS,)))
        .with_panel(number("All drift, 15 minutes", "Findings of all severities.",
                           target(f"sum({found}{{{OURS}}}) or vector(0)"), alarm=1, links=(REQUESTS,)))
        .with_panel(number("Oldest open load", "A load that is never received hangs its request.",
                           target(f"max(kvtrail_open_load_oldest_seconds{{{OURS}}})"), unit="s", alarm=120))
        .with_panel(number("Engines heard", "Engines with a recorder that has not said goodbye.",
                           target(f"count(kvtrail_engine_recorders{{{OURS}}} > 0) or vector(0)")))
        .with_panel(lines("Findings", "New contradictions by rule, over 15 minutes each.",
                          target(f"sum by (rule) ({found}{{{OURS}}})", "{{rule}}"), stacked=True, links=(RULE,)))
        .with_panel(lines("Hit rate", "What the connector brought of what vLLM did not hold itself.",
                          target(ratio(hits, asked), "{{connector}}"), unit="percentunit", most=1))
        .with_panel(lines("Requests that ended", "By vLLM's finish status.",
                          target(rate("kvtrail_requests_total", by="outcome"), "{{outcome}}"), unit="reqps", stacked=True,
                          links=(ALL_REQUESTS,)))
        .with_panel(lines("Preemptions", "They make stale answers possible, and loads that are done twice.",
                          target(rate("kvtrail_preemptions_total"), "{{connector}} {{engine}}"), unit="ops"))
        .with_panel(lines("Lookup time", "On the scheduler's thread: it holds up every request. The dots are requests.",
                          target(quantile(0.99, "kvtrail_lookup_duration_seconds"), "99% {{connector}}", exemplars=True),
                          target(quantile(0.5, "kvtrail_lookup_duration_seconds"), "half {{connector}}"), unit="s"))
        .with_panel(lines("Requests open", "Begun and not ended.", target("sum(kvtrail_requests_open)", "open")))
    )  # fmt: skip


def drift() -> dashboards.Dashboard:
    """What was found, where, and what was not judged."""
    found = "engine_connector_rule:kvtrail_findings:increase15m"
    return (
        begun("kvtrail drift", "kvtrail-drift", "Where connectors and schedulers stopped agreeing.")
        .with_panel(lines("Findings by severity", "Over 15 minutes each.",
                          target(f"sum by (severity) ({found}{{{CONNECTOR}}})", "{{severity}}"), stacked=True,
                          links=(REQUESTS,)))
        .with_panel(lines("Findings for each request that ended", "More than one of a hundred is an alert.",
                          target(f"engine:kvtrail_findings:per_request15m{{{OURS}}}", "{{engine}}"), unit="percentunit"))
        .with_panel(rows("Findings since the tracers started", "Click a rule for its findings in kvtrail's dashboard.",
                         target("sum by (rule, severity, connector, engine) "
                                f"(kvtrail_findings_total{{{CONNECTOR}}}) > 0", instant=True),
                         links={"rule": RULE_OF_ROW}))
        .with_panel(lines("Judgements that said drift", "Every repetition counts.",
                          target(f'sum by (rule) (rate(kvtrail_checks_total{{verdict="drift"}}{RATE}))', "{{rule}}"),
                          unit="ops"))
        .with_panel(lines("Judgements by verdict", "Unknown: what was needed to judge was missing, or never told.",
                          target(f"sum by (verdict) (rate(kvtrail_checks_total{RATE}))", "{{verdict}}"), unit="ops",
                          stacked=True))
        .with_panel(lines("Answers that the guard replaced", "Each of them would have been acted on.",
                          target(rate("kvtrail_lookups_healed_total"), "{{connector}} {{engine}}"), unit="ops",
                          links=(REQUESTS,)))
        .with_panel(lines("Calls that raised", "In the scheduler that ends the engine.",
                          target(rate("kvtrail_connector_errors_total", by="connector, call"), "{{connector}} {{call}}"),
                          unit="ops", links=(REQUESTS,)))
        .with_panel(lines("Loads that failed", "By the report that said so.",
                          target(rate("kvtrail_load_failures_total", by="connector, report"), "{{connector}} {{report}}"),
                          unit="ops"))
        .with_panel(lines("Blocks kept after the end", "Requests that ended, whose blocks the connector keeps.",
                          target(f"sum by (engine) (kvtrail_kept_requests{{{OURS}}})", "requests of {{engine}}"),
                          target(f"sum by (engine) (kvtrail_kept_blocks{{{OURS}}})", "blocks of {{engine}}")))
    )  # fmt: skip


def efficiency() -> dashboards.Dashboard:
    """What the offload is worth."""
    asked = rate("kvtrail_queried_tokens_total", by="epoch")
    admitted, lookups = (rate(f"kvtrail_{name}_total", by="connector") for name in ("admissions", "lookups"))
    return (
        begun("kvtrail efficiency", "kvtrail-efficiency", "What KV offload is worth, and what of it is lost.")
        .with_panel(lines("Hit rate by epoch", "Also after preemptions, which vLLM's own metrics leave out.",
                          target(ratio(rate("kvtrail_hit_tokens_total", by="epoch"), asked), "{{epoch}}"),
                          unit="percentunit", most=1))
        .with_panel(lines("Tokens that were not computed", "By where their KV came from.",
                          target(rate("kvtrail_hit_tokens_total", by="source"), "{{source}}"),
                          target(f'sum(rate(kvtrail_local_hit_tokens_total{{{CONNECTOR}}}{RATE}))', "vLLM's prefix cache"),
                          stacked=True))
        .with_panel(lines("Tokens recomputed that the store held", "Found by a lookup, and computed all the same.",
                          target(rate("kvtrail_recomputed_tokens_total", by="connector, epoch"), "{{connector}} {{epoch}}")))
        .with_panel(lines("Lookups without an admission", "Asked in vain: no blocks were free, or the answer was 'later'.",
                          target(f"1 - clamp_max({ratio(admitted, lookups)}, 1)", "{{connector}}"),
                          unit="percentunit", most=1))
        .with_panel(lines("Bytes moved", "Of every rank.",
                          target(rate("kvtrail_load_bytes_total", by="connector"), "loaded {{connector}}"),
                          target(rate("kvtrail_store_bytes_total", by="connector"), "stored {{connector}}"), unit="Bps"))
        .with_panel(lines("Tokens moved", "Of every rank. A load of what was just stored is churn.",
                          target(rate("kvtrail_load_tokens_total", by="connector"), "loaded {{connector}}"),
                          target(rate("kvtrail_store_tokens_total", by="connector"), "stored {{connector}}")))
        .with_panel(lines("Waiting for KV", "From the allocation to the workers' report. The dots are requests.",
                          target(quantile(0.99, "kvtrail_wait_duration_seconds"), "99% {{connector}}", exemplars=True),
                          target(quantile(0.5, "kvtrail_wait_duration_seconds"), "half {{connector}}"), unit="s"))
        .with_panel(lines("Loads and stores", "The slowest of a hundred. The dots are requests.",
                          target(quantile(0.99, "kvtrail_load_duration_seconds"), "load {{connector}}", exemplars=True),
                          target(quantile(0.99, "kvtrail_store_duration_seconds"), "store {{connector}}", exemplars=True),
                          unit="s"))
        .with_panel(lines("Hits: vLLM's count and ours", "Without preempted requests. They differ if spans are lost.",
                          target("model_name:kvtrail_hit_tokens:rate5m", "kvtrail {{model_name}}"),
                          target("model_name:vllm_external_prefix_cache_hits:rate5m", "vLLM {{model_name}}")))
        .with_panel(lines("Queries: vLLM's count and ours", "Tokens for which a connector was asked.",
                          target("model_name:kvtrail_queried_tokens:rate5m", "kvtrail {{model_name}}"),
                          target("model_name:vllm_external_prefix_cache_queries:rate5m", "vLLM {{model_name}}")))
        .with_panel(lines("Evicted chunks", "A store that is too small evicts what it is asked for next.",
                          target(rate("kvtrail_evicted_chunks_total"), "{{connector}} {{engine}}"), unit="ops"))
        .with_panel(lines("Open loads", "Asynchronous loads that were not received.",
                          target(f"kvtrail_open_loads{{{OURS}}}", "{{engine}}")))
    )  # fmt: skip


def sidecar() -> dashboards.Dashboard:
    """Whether what is shown is all there is."""
    return (
        begun("kvtrail sidecar", "kvtrail-sidecar", "Whether what is shown is all there is.")
        .with_panel(rows("Engines", "What each says of itself, and the seconds since it was last heard.",
                         target("time() - max by (engine) (kvtrail_engine_last_received_timestamp_seconds"
                                f"{{{OURS}}}) * on (engine) group_left (model_name, service_name, vllm_version)"
                                " max by (engine, model_name, service_name, vllm_version) (kvtrail_engine_info)",
                                instant=True)))
        .with_panel(lines("Events received", "By engine; without requests, a sign of life every 5 s.",
                          target(rate("kvtrail_events_received_total", OURS, "engine"), "{{engine}}"), unit="ops"))
        .with_panel(lines("Lag", "From a batch's oldest event to its being stored: one of a hundred, and half of them.",
                          target(f"engine:kvtrail_event_lag_seconds:p99_rate5m{{{OURS}}}", "99% {{engine}}"),
                          target(quantile(0.5, "kvtrail_event_lag_seconds", OURS, "engine"), "half {{engine}}"), unit="s"))
        .with_panel(lines("Events lost", "Declared missing by their numbers, and dropped as the recorders say.",
                          target(rate("kvtrail_events_missing_total", OURS, "engine"), "missing {{engine}}"),
                          target(rate("kvtrail_events_dropped_total", OURS, "engine"), "dropped {{engine}}"), unit="ops"))
        .with_panel(lines("Events outstanding", "Their number is known, and they have not come, yet or for ever.",
                          target(f"kvtrail_events_outstanding{{{OURS}}}", "{{engine}}")))
        .with_panel(lines("Time to store a batch", "From its arrival to its acknowledgement.",
                          target(quantile(0.99, "kvtrail_ingest_duration_seconds", "", "instance"), "99% {{instance}}"),
                          target(quantile(0.5, "kvtrail_ingest_duration_seconds", "", "instance"), "half {{instance}}"),
                          unit="s"))
        .with_panel(lines("Spans", "Received, come again, of others, and not understood.",
                          target(f"sum by (transport) (rate(kvtrail_spans_received_total{RATE}))", "{{transport}}"),
                          target(f"sum(rate(kvtrail_spans_repeated_total{RATE}))", "again"),
                          target(f"sum(rate(kvtrail_spans_foreign_total{RATE}))", "foreign"),
                          target(f"sum(rate(kvtrail_spans_malformed_total{RATE}))", "malformed"), unit="ops"))
        .with_panel(lines("Writes that the store refused", "None of them may be.",
                          target(f"sum by (instance) (rate(kvtrail_store_failures_total{RATE}))", "{{instance}}"),
                          unit="ops"))
        .with_panel(lines("Memory", "Of the tracer's process.",
                          target('process_resident_memory_bytes{job="kvtrail"}', "{{instance}}"), unit="bytes"))
        .with_panel(lines("CPU", "Of the tracer's process, in cores.",
                          target(f'rate(process_cpu_seconds_total{{job="kvtrail"}}{RATE})', "{{instance}}")))
        .with_panel(lines("Versions", "Tracers by version.",
                          target("count by (version) (kvtrail_build_info)", "{{version}}")))
        .with_panel(lines("Recorders", "Of each engine, that have not said goodbye.",
                          target(f"kvtrail_engine_recorders{{{OURS}}}", "{{engine}}")))
    )  # fmt: skip


BOARDS = (overview, drift, efficiency, sidecar)

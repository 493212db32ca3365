"""The four dashboards: overview, drift, efficiency, sidecar."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dashboards
from parts import (
    ALL_REQUESTS,
    CONNECTOR,
    OURS,
    REQUESTS,
    RULE,
    RULE_OF_ROW,
    graph,
    named,
    new_dashboard,
    query,
    stat_panel,
    table_panel,
)

RATE = "[$__rate_interval]"
SHOWN = "engine_name, model_name, service_name, k8s_pod_name, host_name, vllm_version, kvtrail_version"
"""The columns of the table of engines."""


def rate(metric: str, select: str = CONNECTOR, by: str = "engine, connector") -> str:
    """The rate of a counter, summed by these labels."""
    return f"sum by ({by}) (rate({metric}{{{select}}}{RATE}))"


def quantile(q: float, metric: str, select: str = CONNECTOR, by: str = "connector") -> str:
    """A quantile of a histogram, by these labels."""
    labels = ", ".join(name for name in (by, "le") if name)
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{select}}}{RATE})))"


def ratio(part: str, whole: str) -> str:
    """A share; no value where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def overview() -> dashboards.Dashboard:
    """Whether anything is wrong, and whether the offload pays off."""
    severe = 'severity=~"crash|wrong output"'
    hits, asked = rate("kvtrail_hit_tokens_total", by="connector"), rate("kvtrail_queried_tokens_total", by="connector")
    found = "engine_connector_rule:kvtrail_findings:increase15m"
    return (
        new_dashboard("kvtrail overview", "kvtrail-overview", "Is anything wrong with KV offload, and does it pay off?")
        .with_panel(stat_panel("Severe drift, 15 minutes", "Findings that crash an engine or give wrong output, not known.",
                               query(f"sum({found}{{{OURS},{severe}}}) or vector(0)"), alarm=1, links=(REQUESTS,)))
        .with_panel(stat_panel("All drift, 15 minutes", "Findings of all severities, not known.",
                               query(f"sum({found}{{{OURS}}}) or vector(0)"), alarm=1, links=(REQUESTS,)))
        .with_panel(stat_panel("Oldest open load", "A load that is never received hangs its request.",
                               query(f"max(kvtrail_open_load_oldest_seconds{{{OURS}}})"), unit="s"))
        .with_panel(stat_panel("Overdue loads", "Loads that did not come within their deadline, and are not known.",
                               query(f'sum(kvtrail_overdue_loads{{{OURS},known!="true"}}) or vector(0)'), alarm=1))
        .with_panel(stat_panel("Engines heard", "Engines with a recorder that has not closed.",
                               query(f"count(kvtrail_engine_recorders{{{OURS}}} > 0) or vector(0)")))
        .with_panel(graph("Findings", "New contradictions that are not known, by rule, over 15 minutes each.",
                          query(f"sum by (rule) ({found}{{{OURS}}})", "{{rule}}"), stacked=True, links=(RULE,)))
        .with_panel(graph("Hit rate", "The share of tokens missing in vLLM's prefix cache that the connector supplied.",
                          query(ratio(hits, asked), "{{connector}}"), unit="percentunit", maximum=1))
        .with_panel(graph("Requests that ended", "By vLLM's finish status.",
                          query(rate("kvtrail_requests_total", by="outcome"), "{{outcome}}"), unit="reqps", stacked=True,
                          links=(ALL_REQUESTS,)))
        .with_panel(graph("Preemptions", "They make stale answers and repeated loads possible.",
                          query(rate("kvtrail_preemptions_total"), "{{connector}} {{engine_name}}"), unit="ops"))
        .with_panel(graph("Lookup time", "On the scheduler's thread, so it delays every request. The dots are requests.",
                          query(quantile(0.99, "kvtrail_lookup_duration_seconds"), "99% {{connector}}", exemplars=True),
                          query(quantile(0.5, "kvtrail_lookup_duration_seconds"), "half {{connector}}"), unit="s"))
        .with_panel(graph("Requests open", "Started and not ended.", query("sum(kvtrail_requests_open)", "open")))
        .with_panel(graph("Engines that died, and requests lost", "By cause. Rollouts, drains and scale-downs are no deaths.",
                          query(f"sum by (cause) (increase(kvtrail_engine_deaths_total{{{OURS}}}{RATE}))", "died: {{cause}}"),
                          query(f"sum by (cause) (increase(kvtrail_engine_lost_requests_total{{{OURS}}}{RATE}))",
                                "requests lost: {{cause}}")))
    )  # fmt: skip


def drift() -> dashboards.Dashboard:
    """Findings by rule and engine, and unknown verdicts."""
    found = "engine_connector_rule:kvtrail_findings:increase15m"
    return (
        new_dashboard("kvtrail drift", "kvtrail-drift", "Where connectors and schedulers disagree.")
        .with_panel(graph("Findings by severity", "Those that are not known, over 15 minutes each.",
                          query(f"sum by (severity) ({found}{{{CONNECTOR}}})", "{{severity}}"), stacked=True,
                          links=(REQUESTS,)))
        .with_panel(graph("Findings for each request that ended", "More than one in a hundred is an alert.",
                          query(f"engine:kvtrail_findings:per_request15m{{{OURS}}}", "{{engine_name}}"), unit="percentunit"))
        .with_panel(table_panel("Findings since the tracers started", "Click a rule for its findings in kvtrail's dashboard.",
                         query(named("sum by (rule, severity, connector, engine, known) "
                                             f"(kvtrail_findings_total{{{CONNECTOR}}}) > 0"), instant=True),
                         links={"rule": RULE_OF_ROW}))
        .with_panel(graph("Verdicts of drift", "Repetitions count.",
                          query(f'sum by (rule) (rate(kvtrail_checks_total{{verdict="drift"}}{RATE}))', "{{rule}}"),
                          unit="ops"))
        .with_panel(graph("Verdicts", "Unknown: something needed to judge was missing, or never recorded.",
                          query(f"sum by (verdict) (rate(kvtrail_checks_total{RATE}))", "{{verdict}}"), unit="ops",
                          stacked=True))
        .with_panel(graph("Answers that the guard replaced", "The scheduler would have acted on each of them.",
                          query(rate("kvtrail_lookups_healed_total"), "{{connector}} {{engine_name}}"), unit="ops",
                          links=(REQUESTS,)))
        .with_panel(graph("Calls that raised", "In the scheduler, this ends the engine.",
                          query(rate("kvtrail_connector_errors_total", by="connector, call"), "{{connector}} {{call}}"),
                          unit="ops", links=(REQUESTS,)))
        .with_panel(graph("Loads that failed", "By who reported the failure.",
                          query(rate("kvtrail_load_failures_total", by="connector, report"), "{{connector}} {{report}}"),
                          unit="ops"))
        .with_panel(graph("Blocks compared", "With what was computed under their hashes. Wrong ones are findings.",
                          query(rate("kvtrail_blocks_checked_total", by="look, verdict"), "{{look}} {{verdict}}"), unit="ops",
                          links=(REQUESTS,)))
        .with_panel(graph("Hand-offs", "Ends by the side that says so. Expired: nobody reported that the blocks were read.",
                          query(rate("kvtrail_handoffs_total", by="side, outcome"), "{{side}} {{outcome}}"), unit="ops",
                          links=(REQUESTS,)))
        .with_panel(graph("Pool kept for hand-offs", "Shares. Nobody fetches what is unclaimed or abandoned.",
                          query(f"sum by (engine, state) (kvtrail_handoffs_kept_blocks{{{OURS}}})"
                                f" / on (engine) group_left max by (engine) (kvtrail_pool_blocks{{{OURS}}})",
                                "{{state}} {{engine_name}}"), unit="percentunit", maximum=1, stacked=True))
        .with_panel(graph("Blocks kept after the end", "Ended requests with blocks that the connector still holds.",
                          query(f"sum by (engine) (kvtrail_kept_requests{{{OURS}}})", "requests of {{engine_name}}"),
                          query(f"sum by (engine) (kvtrail_kept_blocks{{{OURS}}})", "blocks of {{engine_name}}")))
    )  # fmt: skip


def efficiency() -> dashboards.Dashboard:
    """The savings of the offload."""
    asked = rate("kvtrail_queried_tokens_total", by="epoch")
    admitted, lookups = (rate(f"kvtrail_{name}_total", by="connector") for name in ("admissions", "lookups"))
    return (
        new_dashboard("kvtrail efficiency", "kvtrail-efficiency", "What KV offload saves, and what it wastes.")
        .with_panel(graph("Hit rate by epoch", "Also after preemptions, which vLLM's own metrics leave out.",
                          query(ratio(rate("kvtrail_hit_tokens_total", by="epoch"), asked), "{{epoch}}"),
                          unit="percentunit", maximum=1))
        .with_panel(graph("Tokens that were not computed", "By where their KV came from.",
                          query(rate("kvtrail_hit_tokens_total", by="source"), "{{source}}"),
                          query(f'sum(rate(kvtrail_local_hit_tokens_total{{{CONNECTOR}}}{RATE}))', "vLLM's prefix cache"),
                          stacked=True))
        .with_panel(graph("Tokens that were computed", "By why they were no hit; docs/causes.md explains the causes.",
                          query('sum by (cause) (rate(kvtrail_prompt_tokens_total'
                                f'{{{CONNECTOR}, cause!~"held|loaded"}}{RATE}))', "{{cause}}"),
                          stacked=True))
        .with_panel(graph("Tokens recomputed that the store held", "A lookup found them, and they were computed anyway.",
                          query(rate("kvtrail_recomputed_tokens_total", by="connector, epoch"), "{{connector}} {{epoch}}")))
        .with_panel(graph("Lookups without an admission", "In vain: no blocks were free, or the answer was 'later'.",
                          query(f"1 - clamp_max({ratio(admitted, lookups)}, 1)", "{{connector}}"),
                          unit="percentunit", maximum=1))
        .with_panel(graph("Bytes moved", "By all ranks.",
                          query(rate("kvtrail_load_bytes_total", by="connector"), "loaded {{connector}}"),
                          query(rate("kvtrail_store_bytes_total", by="connector"), "stored {{connector}}"), unit="Bps"))
        .with_panel(graph("Tokens moved", "By all ranks. Loading what was just stored is churn.",
                          query(rate("kvtrail_load_tokens_total", by="connector"), "loaded {{connector}}"),
                          query(rate("kvtrail_store_tokens_total", by="connector"), "stored {{connector}}")))
        .with_panel(graph("Waiting for KV", "From the allocation to the workers' report. The dots are requests.",
                          query(quantile(0.99, "kvtrail_wait_duration_seconds"), "99% {{connector}}", exemplars=True),
                          query(quantile(0.5, "kvtrail_wait_duration_seconds"), "half {{connector}}"), unit="s"))
        .with_panel(graph("Loads and stores", "The slowest in a hundred. The dots are requests.",
                          query(quantile(0.99, "kvtrail_load_duration_seconds"), "load {{connector}}", exemplars=True),
                          query(quantile(0.99, "kvtrail_store_duration_seconds"), "store {{connector}}", exemplars=True),
                          unit="s"))
        .with_panel(graph("Hits: vLLM's count and ours", "Without preempted requests. They differ if spans are lost.",
                          query("model_name:kvtrail_hit_tokens:rate5m", "kvtrail {{model_name}}"),
                          query("model_name:vllm_external_prefix_cache_hits:rate5m", "vLLM {{model_name}}")))
        .with_panel(graph("Queries: vLLM's count and ours", "Tokens that a connector was asked for.",
                          query("model_name:kvtrail_queried_tokens:rate5m", "kvtrail {{model_name}}"),
                          query("model_name:vllm_external_prefix_cache_queries:rate5m", "vLLM {{model_name}}")))
        .with_panel(graph("Evicted chunks", "A store that is too small evicts what is needed next.",
                          query(rate("kvtrail_evicted_chunks_total"), "{{connector}} {{engine_name}}"), unit="ops"))
        .with_panel(graph("Open loads", "Asynchronous loads that have not been received.",
                          query(f"kvtrail_open_loads{{{OURS}}}", "{{engine_name}}")))
    )  # fmt: skip


def sidecar() -> dashboards.Dashboard:
    """Whether kvtrail sees everything."""
    return (
        new_dashboard("kvtrail sidecar", "kvtrail-sidecar", "Whether kvtrail sees everything.")
        .with_panel(table_panel("Engines", "How each describes itself, and the seconds since it was last heard.",
                         query("time() - max by (engine) (kvtrail_engine_last_received_timestamp_seconds"
                                       f"{{{OURS}}}) * on (engine) group_left ({SHOWN})"
                                       f" topk by (engine) (1, max by (engine, {SHOWN}) (kvtrail_engine_info))",
                                       instant=True)))
        .with_panel(graph("Events received", "By engine; without requests, a heartbeat every 5 s.",
                          query(rate("kvtrail_events_received_total", OURS, "engine"), "{{engine_name}}"), unit="ops"))
        .with_panel(graph("Lag", "From a batch's oldest event until it is stored: the slowest in a hundred, and the median.",
                          query(f"engine:kvtrail_event_lag_seconds:p99_rate5m{{{OURS}}}", "99% {{engine_name}}"),
                          query(quantile(0.5, "kvtrail_event_lag_seconds", OURS, "engine"), "half {{engine_name}}"),
                          unit="s"))
        .with_panel(graph("Events lost", "Missing by their sequence numbers, and dropped as the recorders report.",
                          query(rate("kvtrail_events_missing_total", OURS, "engine"), "missing {{engine_name}}"),
                          query(rate("kvtrail_events_dropped_total", OURS, "engine"), "dropped {{engine_name}}"), unit="ops"))
        .with_panel(graph("Events outstanding", "Their sequence numbers are known, and they have not arrived, or never will.",
                          query(f"kvtrail_events_outstanding{{{OURS}}}", "{{engine_name}}")))
        .with_panel(graph("Time to store a batch", "From its arrival to its acknowledgement.",
                          query(quantile(0.99, "kvtrail_ingest_duration_seconds", "", "instance"), "99% {{instance}}"),
                          query(quantile(0.5, "kvtrail_ingest_duration_seconds", "", "instance"), "half {{instance}}"),
                          unit="s"))
        .with_panel(graph("Spans", "Received, repeated, foreign and malformed.",
                          query(f"sum by (transport) (rate(kvtrail_spans_received_total{RATE}))", "{{transport}}"),
                          query(f"sum(rate(kvtrail_spans_repeated_total{RATE}))", "again"),
                          query(f"sum(rate(kvtrail_spans_foreign_total{RATE}))", "foreign"),
                          query(f"sum(rate(kvtrail_spans_malformed_total{RATE}))", "malformed"), unit="ops"))
        .with_panel(graph("Writes that the store refused", "There should be none.",
                          query(f"sum by (instance) (rate(kvtrail_store_failures_total{RATE}))", "{{instance}}"),
                          unit="ops"))
        .with_panel(graph("Memory", "The tracer process.",
                          query('process_resident_memory_bytes{job="kvtrail"}', "{{instance}}"), unit="bytes"))
        .with_panel(graph("CPU", "The tracer process, in cores.",
                          query(f'rate(process_cpu_seconds_total{{job="kvtrail"}}{RATE})', "{{instance}}")))
        .with_panel(graph("Versions", "Tracers by version.",
                          query("count by (version) (kvtrail_build_info)", "{{version}}")))
        .with_panel(graph("Recorders", "Recorders of each engine that have not closed.",
                          query(f"kvtrail_engine_recorders{{{OURS}}}", "{{engine_name}}")))
    )  # fmt: skip


BOARDS = (overview, drift, efficiency, sidecar)

"""The whole way: demos with an injected bug, their sidecars, Prometheus, an alert at a webhook, and Grafana's queries."""

from __future__ import annotations

import json
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import PLAIN, until
from prometheus_client.parser import text_string_to_metric_families
from served_engine import ENGINE as LOADING
from story import Story
from watching import DASHBOARD, ROOT, Prometheus

pytest.importorskip("vllm", reason="the demo runs vLLM")
BOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
OF_PAIRS = "Pool kept for hand-offs"
"""The panel that shows nothing here: these engines have no hand-offs. `kvtrail.rules.test.yml` has the same series."""
EXEMPLARS = 10
"""How many of a metric are followed."""
VARIABLES = {"$engine": ".*", "$connector": ".*", "$__rate_interval": "10s"}


def test_vllm_and_kvtrail_count_the_same(story: Story) -> None:
    """vLLM's own Prometheus logger and our account of the spans: equal to the token, while the demo goes on."""
    for port, sidecar, engine in (
        (story.living.metrics_port, story.living.api, story.engines["living"]),
        (story.loading.port, story.ending.url, LOADING),
    ):
        url, ours = f"http://127.0.0.1:{port}/metrics", f"{sidecar}/metrics"

        def counted(
            url: str = url, ours: str = ours, engine: str = engine
        ) -> tuple[dict[str, float], dict[str, float]]:
            theirs = _counted_by_vllm(_page(url))
            return theirs, _counted_by_us(_page(ours), theirs, engine)

        until(lambda counted=counted: len({str(each) for each in counted()}) == 1, why=counted)  # type: ignore[misc]
        assert min(counted()[0][name] for name in ("hits", "queries")) > 0
        models = {s["model_name"] for s, _ in _page(url)["vllm:external_prefix_cache_hits_total"]}
        infos = _page(ours)["kvtrail_engine_info"]
        assert models == {s["model_name"] for s, _ in infos if s["engine"] == engine}


def test_kvtrail_counts_what_vllm_leaves_out(story: Story) -> None:
    resumed = {"epoch": "resumed", "engine": story.engines["living"]}
    assert _sum(_page(f"{story.living.api}/metrics"), "kvtrail_queried_tokens_total", **resumed) > 0
    for metric in ("kvtrail_wait_duration_seconds_count", "kvtrail_load_duration_seconds_count"):
        assert _sum(_page(f"{story.ending.url}/metrics"), metric, engine=LOADING) > 0


def test_an_injected_bug_fires_an_alert_and_it_resolves(story: Story, prometheus: Prometheus) -> None:
    webhook, engines = story.watch.webhook, story.engines
    for engine in engines.values():
        until(
            lambda engine=engine: webhook.heard("KvtrailSevereDrift", "firing", engine=engine),  # type: ignore[misc]
            why=lambda: prometheus.get("alerts"),
        )
    alert = webhook.heard("KvtrailSevereDrift", "firing", rule="stale-lookup", engine=engines["dying"])[0]
    assert alert["labels"]["severity"] == "critical"
    assert alert["labels"]["connector"] == "OffloadConnector"
    (name,) = (
        each["name"] for each in story.dying.get("/api/fleet")["engines"] if each["engine"] == alert["labels"]["engine"]
    )
    assert f"Engine {name}: " in alert["annotations"]["description"]
    assert alert["annotations"]["runbook_url"] == f"{DASHBOARD}/findings?runbook=KvtrailSevereDrift"
    until(lambda: webhook.heard("KvtrailConnectorErrors", "firing", engine=engines["dying"], call="kv.alloc"))
    # One engine is dead, and its alert is over. In the other the bug goes on, and so does the alert.
    until(
        lambda: webhook.heard("KvtrailSevereDrift", "resolved", rule="stale-lookup", engine=engines["dying"]),
    )
    accused = {each["labels"].get("engine") for each in webhook.received}
    healthy = {LOADING, story.ended["drained"]}
    assert not accused & healthy, "healthy engines are left alone"
    assert accused <= {*engines.values(), *story.ended.values(), None}


def test_exemplars_lead_from_a_number_to_the_request(story: Story, prometheus: Prometheus) -> None:
    for name in ("kvtrail_lookup_duration_seconds_bucket", "kvtrail_findings_total"):
        until(partial(_exemplars, prometheus, name, story.watch.begun_s))
        for trace_id in sorted(_exemplars(prometheus, name, story.watch.begun_s))[:EXEMPLARS]:
            asked = [run.get("/api/requests", search=trace_id) for run in (story.living, story.dying, story.ending)]
            assert [request["trace_id"] for known in asked for request in known] == [trace_id]


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_every_query_of_every_panel_returns_data(story: Story, prometheus: Prometheus, board: Path) -> None:
    panels = json.loads(board.read_text())["panels"]
    queries = [(panel["title"], _filled(target["expr"])) for panel in panels for target in panel["targets"]]
    missing = [(title, query) for title, query in queries if title != OF_PAIRS]

    def all_have_data() -> bool:
        missing[:] = [(title, query) for title, query in missing if not _has_data(prometheus, query, since_s)]
        return not missing

    since_s = story.watch.begun_s
    until(all_have_data, why=lambda: missing)


def _filled(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


def test_the_variables_of_the_dashboards_have_choices(story: Story, prometheus: Prometheus) -> None:
    for board in BOARDS:
        for variable in json.loads(board.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                assert _choices(prometheus, variable)


def _choices(prometheus: Prometheus, variable: dict[str, Any]) -> set[str]:
    """What Grafana would offer for a variable."""
    kind, asked = variable["query"].removesuffix(")").split("(", 1)
    if kind == "query_result":
        pattern = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
        series = [each["metric"] for each in prometheus.get("query", query=asked)["result"]]
        texts = (",".join(f'{name}="{value}"' for name, value in sorted(each.items())) for each in series)
        return {match["text"] for text in texts if (match := pattern.search(text)) and match["value"]}
    metric, label = asked.rsplit(", ", 1)
    series = prometheus.get("series", **{"match[]": metric.replace("$engine", ".*")})
    return {each[label] for each in series} - {""}


def _counted_by_vllm(page: Page) -> dict[str, float]:
    """Tokens found in the connector and asked of it, and those found by source, but for vLLM's own prefix cache."""
    sources = {s["source"]: v for s, v in page["vllm:prompt_tokens_cached_by_source_total"] if s["source"] != "device"}
    named = {name: _sum(page, f"vllm:external_prefix_cache_{name}_total") for name in ("hits", "queries")}
    return {**named, **{source: tokens for source, tokens in sources.items() if tokens}}


def _counted_by_us(page: Page, theirs: dict[str, float], engine: str) -> dict[str, float]:
    """The same of the spans; vLLM counts a request's first run alone."""
    first = {"epoch": "first", "engine": engine}
    named = {"hits": "kvtrail_hit_tokens_total", "queries": "kvtrail_queried_tokens_total"}
    by_source = {s: _sum(page, named["hits"], source=s, **first) for s in theirs if s not in named}
    return {**{name: _sum(page, metric, **first) for name, metric in named.items()}, **by_source}


def _has_data(prometheus: Prometheus, expr: str, since_s: float) -> bool:
    found = prometheus.get("query_range", query=expr, start=since_s, end=time.time(), step=1)
    return any(value != "NaN" for series in found["result"] for _, value in series["values"])


def _exemplars(prometheus: Prometheus, metric: str, since_s: float) -> set[str]:
    found = prometheus.get("query_exemplars", query=metric, start=since_s, end=time.time())
    return {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}


Page = dict[str, list[tuple[dict[str, str], float]]]
"""Samples by name: labels and value."""


def _page(url: str) -> Page:
    samples: Page = {}
    for family in text_string_to_metric_families(httpx.get(url, **PLAIN).text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def _sum(samples: Page, name: str, **labels: Any) -> float:
    return sum(value for having, value in samples[name] if labels.items() <= having.items())

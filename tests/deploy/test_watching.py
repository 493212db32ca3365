"""The whole way: a real scheduler with a bug, the sidecar, Prometheus, an alert at a webhook, and Grafana's queries."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Tracer, serve, until
from prometheus_client.parser import text_string_to_metric_families
from watching import ROOT, Engine, Prometheus, Webhook, programs, running

BOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
VARIABLES = {"$engine": ".*", "$connector": ".*", "$__rate_interval": "10s"}


@dataclass
class Watched:
    """What has served, and who watches it; `prometheus` is None where it is not installed."""

    tracer: Tracer
    engine: Engine
    webhook: Webhook
    prometheus: Prometheus | None
    begun_s: float


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with ExitStack() as stack:
        tracer = serve(folder)
        stack.callback(tracer.end)
        engine = Engine(folder, tracer)
        stack.callback(engine.end)
        webhook = Webhook()
        stack.callback(webhook.server.shutdown)
        watching = stack.enter_context(running(folder, tracer, engine, webhook)) if programs() else None
        begun_s = time.time()
        engine.do("serve")
        engine.do("load")
        yield Watched(tracer, engine, webhook, watching, begun_s)


@pytest.fixture
def prometheus(watched: Watched) -> Prometheus:
    if watched.prometheus is None:
        pytest.skip("not installed: apt-get install prometheus prometheus-alertmanager")
    return watched.prometheus


def test_vllm_and_kvtrail_count_the_same(watched: Watched) -> None:
    """vLLM's own Prometheus logger over its own scheduler, and our account of the spans: equal to the token."""
    theirs = _page(f"http://127.0.0.1:{watched.engine.port}/metrics")
    ours = _page(f"{watched.tracer.url}/metrics")
    for their_name, our_name in (("hits", "hit"), ("queries", "queried")):
        counted = _sum(theirs, f"vllm:external_prefix_cache_{their_name}_total")
        assert counted == _sum(ours, f"kvtrail_{our_name}_tokens_total", epoch="first") > 0
    assert _sum(ours, "kvtrail_hit_tokens_total", epoch="resumed") > 0, "what vLLM's metrics leave out"
    by_source = {s["source"]: v for s, v in theirs["vllm:prompt_tokens_cached_by_source_total"] if v}
    by_source.pop("device")  # vLLM's own prefix cache
    assert by_source == {
        source: _sum(ours, "kvtrail_hit_tokens_total", epoch="first", source=source) for source in by_source
    }
    assert _sum(ours, "kvtrail_wait_duration_seconds_count", engine="loading") > 0
    assert _sum(ours, "kvtrail_load_duration_seconds_count", engine="loading") > 0
    models = {s["model_name"] for s, _ in theirs["vllm:external_prefix_cache_hits_total"]}
    until(lambda: models == {s["model_name"] for s, _ in _page(f"{watched.tracer.url}/metrics")["kvtrail_engine_info"]})


def test_an_injected_bug_fires_an_alert_and_it_resolves(watched: Watched, prometheus: Prometheus) -> None:
    webhook = watched.webhook
    watched.engine.do("break")
    until(lambda: webhook.heard("KvtrailSevereDrift", "firing"), why=lambda: prometheus.get("alerts"))
    (alert,) = webhook.heard("KvtrailSevereDrift", "firing", rule="stale-lookup")[:1]
    assert alert["labels"]["severity"] == "critical"
    assert (alert["labels"]["engine"], alert["labels"]["connector"]) == ("broken", "OffloadConnector")
    page = alert["annotations"]["runbook_url"].rpartition("docs/")[2]
    assert (ROOT / "docs" / page).is_file()
    until(lambda: webhook.heard("KvtrailConnectorErrors", "firing", engine="broken", call="kv.alloc"))
    until(lambda: webhook.heard("KvtrailSevereDrift", "resolved", rule="stale-lookup"), seconds=60)
    accused = {each["labels"].get("engine") for each in webhook.told}
    assert accused <= {"broken", None}, "the healthy engines are left alone"


def test_exemplars_lead_from_a_number_to_the_request(watched: Watched, prometheus: Prometheus) -> None:
    for name in ("kvtrail_lookup_duration_seconds_bucket", "kvtrail_findings_total"):
        until(partial(_exemplars, prometheus, name, watched.begun_s))
        for trace_id in _exemplars(prometheus, name, watched.begun_s):
            (request,) = watched.tracer.get("/api/requests", search=trace_id)
            assert request["trace_id"] == trace_id


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_every_query_of_every_panel_returns_data(watched: Watched, prometheus: Prometheus, board: Path) -> None:
    without = []
    for panel in json.loads(board.read_text())["panels"]:
        for target in panel["targets"]:
            expr = target["expr"]
            for name, value in VARIABLES.items():
                expr = expr.replace(name, value)
            assert "$" not in expr
            if not _has_data(prometheus, expr, watched.begun_s):
                without.append((panel["title"], expr))
    assert not without


def test_the_variables_of_the_dashboards_have_choices(watched: Watched, prometheus: Prometheus) -> None:
    for board in BOARDS:
        for variable in json.loads(board.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
                assert asked is not None
                metric, label = asked.groups()
                series = prometheus.get("series", **{"match[]": metric.replace("$engine", ".*")})
                assert {each[label] for each in series} - {""}


def _has_data(prometheus: Prometheus, expr: str, since_s: float) -> bool:
    found = prometheus.get("query_range", query=expr, start=since_s, end=time.time(), step=1)
    return any(value != "NaN" for series in found["result"] for _, value in series["values"])


def _exemplars(prometheus: Prometheus, metric: str, since_s: float) -> set[str]:
    found = prometheus.get("query_exemplars", query=metric, start=since_s, end=time.time())
    return {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}


def _page(url: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(httpx.get(url).text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def _sum(samples: dict[str, list[tuple[dict[str, str], float]]], name: str, **labels: Any) -> float:
    return sum(value for told, value in samples[name] if labels.items() <= told.items())

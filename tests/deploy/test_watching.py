"""The whole way: demos with an injected bug, their sidecars, Prometheus, an alert at a webhook, and Grafana's queries.

Two demos run: the engine of one dies of LMCache #2158's bug, and that of the other lives on, as the guard heals it. The
sidecar of the latter also receives a scheduler with asynchronous loads.
"""

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
from demos import Demo, demo
from processes import SLOW_S, free_port, until
from prometheus_client.parser import text_string_to_metric_families
from served_engine import ENGINE as LOADING
from watching import DASHBOARD, ROOT, Loading, Prometheus, Webhook, programs, running

pytest.importorskip("vllm", reason="the demo runs vLLM")
BOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
OF_PAIRS = "Pool kept for hand-offs"
"""The panel that shows nothing here: these engines have no hand-offs. `kvtrail.rules.test.yml` has the same series."""
VARIABLES = {"$engine": ".*", "$connector": ".*", "$__rate_interval": "10s"}


@dataclass
class Watched:
    """What serves, and who watches it; `prometheus` is None where it is not installed."""

    dying: Demo
    living: Demo
    loading: Loading
    webhook: Webhook
    prometheus: Prometheus | None
    begun_s: float

    @property
    def engines(self) -> dict[str, str]:
        """The ids of the demos' engines."""
        return {
            name: next(each["engine"] for each in demo.get("/api/fleet")["engines"] if each["engine"] != LOADING)
            for name, demo in (("dying", self.dying), ("living", self.living))
        }


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("dying", "living", "loading")}
    bug = ("--bug", "stale-lookup")
    with ExitStack() as stack:
        living = stack.enter_context(demo(folders["living"], *bug, "--guard", "heal", metrics_port=free_port()))
        dying = stack.enter_context(demo(folders["dying"], *bug))
        for each in (living, dying):
            each.wait_for_output("The dashboard is at")
        webhook = Webhook()
        stack.callback(webhook.server.shutdown)
        loading = Loading(folders["loading"], living.grpc_port)
        stack.callback(loading.end)
        begun_s, prometheus = time.time(), None
        if programs():
            sidecars, engines = [living.http_port, dying.http_port], [living.metrics_port, loading.port]
            prometheus = stack.enter_context(running(folders["loading"], sidecars, engines, webhook))
        for each in (living, dying):
            each.wait_for_output("until Ctrl-C")
        for _ in range(4):
            loading.serve()
        if prometheus is not None:
            until(partial(_moves_in_prometheus, loading, prometheus))
        yield Watched(dying, living, loading, webhook, prometheus, begun_s)


def _moves_in_prometheus(loading: Loading, prometheus: Prometheus) -> bool:
    """Whether Prometheus has seen the counters that only asynchronous loads move; another round is served if not."""
    rates = [f"rate(kvtrail_{name}_duration_seconds_count{{engine='{LOADING}'}}[10s]) > 0" for name in ("wait", "load")]
    if all(prometheus.get("query", query=rate)["result"] for rate in rates):
        return True
    loading.serve()
    return False


@pytest.fixture
def prometheus(watched: Watched) -> Prometheus:
    if watched.prometheus is None:
        pytest.skip("not installed: apt-get install prometheus prometheus-alertmanager")
    return watched.prometheus


def test_vllm_and_kvtrail_count_the_same(watched: Watched) -> None:
    """vLLM's own Prometheus logger and our account of the spans: equal to the token, while the demo goes on."""
    for port, engine in ((watched.living.metrics_port, watched.engines["living"]), (watched.loading.port, LOADING)):
        url = f"http://127.0.0.1:{port}/metrics"

        def counted(url: str = url, engine: str = engine) -> tuple[dict[str, float], dict[str, float]]:
            theirs = _counted_by_vllm(_page(url))
            return theirs, _counted_by_us(_page(f"{watched.living.api}/metrics"), theirs, engine)

        until(lambda counted=counted: len({str(each) for each in counted()}) == 1, why=counted)  # type: ignore[misc]
        assert min(counted()[0][name] for name in ("hits", "queries")) > 0
        models = {s["model_name"] for s, _ in _page(url)["vllm:external_prefix_cache_hits_total"]}
        infos = _page(f"{watched.living.api}/metrics")["kvtrail_engine_info"]
        assert models == {s["model_name"] for s, _ in infos if s["engine"] == engine}


def test_kvtrail_counts_what_vllm_leaves_out(watched: Watched) -> None:
    ours = _page(f"{watched.living.api}/metrics")
    assert _sum(ours, "kvtrail_queried_tokens_total", epoch="resumed", engine=watched.engines["living"]) > 0
    for metric in ("kvtrail_wait_duration_seconds_count", "kvtrail_load_duration_seconds_count"):
        assert _sum(ours, metric, engine=LOADING) > 0


def test_an_injected_bug_fires_an_alert_and_it_resolves(watched: Watched, prometheus: Prometheus) -> None:
    webhook, engines = watched.webhook, watched.engines
    for engine in engines.values():
        until(
            lambda engine=engine: webhook.heard("KvtrailSevereDrift", "firing", engine=engine),  # type: ignore[misc]
            why=lambda: prometheus.get("alerts"),
        )
    alert = webhook.heard("KvtrailSevereDrift", "firing", rule="stale-lookup", engine=engines["dying"])[0]
    assert alert["labels"]["severity"] == "critical"
    assert alert["labels"]["connector"] == "OffloadConnector"
    (name,) = (
        each["name"]
        for each in watched.dying.get("/api/fleet")["engines"]
        if each["engine"] == alert["labels"]["engine"]
    )
    assert f"Engine {name}: " in alert["annotations"]["description"]
    assert alert["annotations"]["runbook_url"] == f"{DASHBOARD}/runbook?name=KvtrailSevereDrift"
    until(lambda: webhook.heard("KvtrailConnectorErrors", "firing", engine=engines["dying"], call="kv.alloc"))
    # One engine is dead, and its alert is over. In the other the bug goes on, and so does the alert.
    until(
        lambda: webhook.heard("KvtrailSevereDrift", "resolved", rule="stale-lookup", engine=engines["dying"]),
    )
    accused = {each["labels"].get("engine") for each in webhook.received}
    assert accused <= {*engines.values(), None}, "the healthy engine is left alone"


def test_exemplars_lead_from_a_number_to_the_request(watched: Watched, prometheus: Prometheus) -> None:
    for name in ("kvtrail_lookup_duration_seconds_bucket", "kvtrail_findings_total"):
        until(partial(_exemplars, prometheus, name, watched.begun_s))
        for trace_id in _exemplars(prometheus, name, watched.begun_s):
            asked = [run.get("/api/requests", search=trace_id) for run in (watched.living, watched.dying)]
            assert [request["trace_id"] for known in asked for request in known] == [trace_id]


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_every_query_of_every_panel_returns_data(watched: Watched, prometheus: Prometheus, board: Path) -> None:
    def without() -> list[tuple[str, str]]:
        queries = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
        queries = [(title, _filled(query)) for title, query in queries if title != OF_PAIRS]
        return [(title, query) for title, query in queries if not _has_data(prometheus, query, watched.begun_s)]

    panels = json.loads(board.read_text())["panels"]
    until(lambda: not without(), why=without)


def _filled(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


def test_the_variables_of_the_dashboards_have_choices(watched: Watched, prometheus: Prometheus) -> None:
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
    for family in text_string_to_metric_families(httpx.get(url, timeout=SLOW_S).text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def _sum(samples: Page, name: str, **labels: Any) -> float:
    return sum(value for having, value in samples[name] if labels.items() <= having.items())

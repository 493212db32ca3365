"""What is ready to mount: it is what the code builds, and the programs that will read it accept it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from watching import DASHBOARD, ROOT, RULES

from kvtrail.tracer.events import semconv

DEPLOY = ROOT / "deploy"
BOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
UIDS = {"kvtrail-overview", "kvtrail-drift", "kvtrail-efficiency", "kvtrail-sidecar"}


def checked(program: str, *arguments: str) -> None:
    """Run a checker; skipped where it is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    run = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_promtool_accepts_rules_and_configuration() -> None:
    checked("promtool", "check", "rules", str(RULES))
    checked("promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def test_every_alert_fires_where_it_must_and_only_there() -> None:
    checked("promtool", "test", "rules", str(DEPLOY / "prometheus" / "kvtrail.rules.test.yml"))


def test_every_alert_is_tested_to_fire_and_not_to_fire() -> None:
    rule_tests = yaml.safe_load((DEPLOY / "prometheus" / "kvtrail.rules.test.yml").read_text())["tests"]
    cases = [case for test in rule_tests for case in test.get("alert_rule_test", ())]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    alerts = {rule["alert"] for group in _rules()["groups"] for rule in group["rules"] if "alert" in rule}
    assert fires == alerts
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert alerts - silent <= {"KvtrailDriftRate"}, "there, another engine in the same case is the silent one"


def test_amtool_accepts_the_routes() -> None:
    checked("amtool", "check-config", str(DEPLOY / "alertmanager" / "alertmanager.yml"))


def test_what_grafana_provisions_is_what_the_code_builds() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="not installed: pip install '.[dev]'")
    build = str(DEPLOY / "grafana" / "build.py")
    run = subprocess.run([sys.executable, build, "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_dashboards_have_stable_names_and_panels_that_say_what_they_show() -> None:
    boards = {board["uid"]: board for board in map(_json, BOARDS)}
    assert set(boards) == UIDS
    for board in boards.values():
        names = {variable["name"] for variable in board["templating"]["list"]}
        assert names == {"datasource", "engine", "connector", "kvtrail"}
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        for panel in board["panels"]:
            assert panel["title"]
            assert panel["description"]
            assert panel["datasource"]["uid"] == "$datasource"


def test_panels_lead_to_pages_that_kvtrails_dashboard_has() -> None:
    links = [
        link["url"]
        for board in map(_json, BOARDS)
        for panel in board["panels"]
        for link in panel["fieldConfig"]["defaults"].get("links", ())
    ]
    assert {link.partition("?")[0] for link in links} == {"${kvtrail:raw}/requests", "${kvtrail:raw}/findings"}


def test_all_links_to_the_dashboard_have_one_address_to_pages_that_it_has() -> None:
    """Then one replacement of a text is enough to move it."""
    pages = {path.stem for path in (ROOT / "dashboard" / "views").glob("*.py")}
    links = [
        match.groups()
        for path in DEPLOY.rglob("*")
        if path.suffix in (".yml", ".json") and "alertmanager" not in path.parts
        for match in re.finditer(r"(https?://[\w.:-]+)/(request|requests|findings|runbook)\b", path.read_text())
    ]
    assert {address for address, _ in links} == {DASHBOARD}
    assert {page for _, page in links} == {"requests", "findings"} <= pages
    for board in map(_json, BOARDS):
        (variable,) = [each for each in board["templating"]["list"] if each["name"] == "kvtrail"]
        assert variable["query"] == DASHBOARD


def test_grafanas_alerts_need_no_recording_rule_and_say_the_same() -> None:
    built = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "alerting" / "kvtrail.yml").read_text())
    recorded = [rule["record"] for group in _rules()["groups"] for rule in group["rules"] if "record" in rule]
    theirs = {rule["title"]: rule for group in built["groups"] for rule in group["rules"]}
    ours = {rule["alert"]: rule for group in _rules()["groups"] for rule in group["rules"] if "alert" in rule}
    assert set(theirs) == set(ours)
    for name, rule in theirs.items():
        assert not any(record in rule["data"][0]["model"]["expr"] for record in recorded)
        assert rule["labels"] == ours[name]["labels"]
        assert "$value" not in rule["annotations"]["summary"].replace("$values.A.Value", "")
        link = rule["annotations"].get("dashboard_url", "from=now-3600s&to=now")
        assert link.endswith("from=now-3600s&to=now"), "Grafana's templates have no `query`"
    sources = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "datasources" / "kvtrail.yml").read_text())
    assert {rule["data"][0]["datasourceUid"] for rule in theirs.values()} == {sources["datasources"][0]["uid"]}


def test_prometheus_accepts_grafanas_expressions(tmp_path: Path) -> None:
    built = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "alerting" / "kvtrail.yml").read_text())
    rules = [
        {"alert": rule["title"], "expr": rule["data"][0]["model"]["expr"]}
        for group in built["groups"]
        for rule in group["rules"]
    ]
    path = tmp_path / "grafana.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "grafana", "rules": rules}]}))
    checked("promtool", "check", "rules", str(path))


def test_every_dashboard_draws_markers_from_metrics_that_prometheus_has(tmp_path: Path) -> None:
    """The moment is the metric's value, in milliseconds; what it needs is in the dashboard's own datasource."""
    exprs: dict[str, str] = {}
    for board in map(_json, BOARDS):
        marked = {each["name"]: each for each in board["annotations"]["list"]}
        assert set(marked) == {"Engines"}
        for name, each in marked.items():
            assert each["enable"]
            assert each["useValueForTime"]
            assert each["datasource"]["uid"] == "$datasource"
            assert each["expr"].startswith("1000 * ")
            exprs[name] = each["expr"].replace("$engine", ".*")
    rules = [{"record": name, "expr": expr} for name, expr in exprs.items()]
    path = tmp_path / "annotations.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "annotations", "rules": rules}]}))
    checked("promtool", "check", "rules", str(path))
    metrics = (ROOT / "docs" / "metrics.md").read_text()
    for expr in exprs.values():
        (metric,) = set(re.findall(r"kvtrail_\w+_timestamp_seconds", expr))
        assert f"| `{metric}` |" in metrics


def test_the_collectors_pipelines_have_all_that_they_name_and_kvtrail_gets_everything() -> None:
    path = DEPLOY / "collector" / "collector.yaml"
    configuration = yaml.safe_load(path.read_text())
    pipelines = configuration["service"]["pipelines"]
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in pipelines.values() for name in pipeline.get(kind, ())}
        assert used == set(configuration[kind]), kind
    assert "processors" not in pipelines["traces/kvtrail"]
    assert configuration["exporters"]["otlp_http/kvtrail"]["endpoint"].endswith(":4318")
    dropped = configuration["processors"]["filter/kvtrail_only"]["traces"]["span"]
    assert dropped == [f'name == "{semconv.Kind.HEARTBEAT}"', f'attributes["{semconv.SAMPLED.key}"] == false']


def test_the_collector_accepts_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRAIL_TOKEN", "a token")
    checked("otelcol-contrib", "validate", "--config", str(DEPLOY / "collector" / "collector.yaml"))


def _rules() -> Any:
    return yaml.safe_load(RULES.read_text())


def _json(path: Path) -> Any:
    return json.loads(path.read_text())

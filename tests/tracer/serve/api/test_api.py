"""What people and the dashboard read, from a real tracer process."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from history import history
from processes import SLOW_S, Tracer
from wire import as_request

DOCS = Path(__file__).parents[4] / "docs"
STORY = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nA 256 !AssertionError: Mismatch"


def feed(tracer: Tracer, text: str, **where: Any) -> None:
    body = as_request(history(text, **where)).SerializeToString()
    headers = {"content-type": "application/x-protobuf"}
    assert httpx.post(f"{tracer.url}/v1/traces", content=body, headers=headers, timeout=SLOW_S).status_code == 200


def test_a_request_is_returned_step_by_step_with_its_account(api: Tracer) -> None:
    feed(api, STORY, request="story-0123abcd", recorder="story")
    result = api.get("/api/requests/story-0123abcd")
    assert result["request"]["status"] == "failed"
    assert result["request"]["error"] == "AssertionError: Mismatch"
    names = [step["name"] for step in result["steps"]]
    assert names == ["kv.request.start", "kv.lookup", "kv.alloc", "kv.schedule", "kv.preempt", "kv.lookup", "kv.alloc"]
    accounts = [(s["account"]["epoch"], s["account"]["computed"], s["account"]["allocated"]) for s in result["steps"]]
    assert accounts[3:6] == [(0, 256, 256), (1, None, None), (1, 336, None)]
    assert result["missing"] == 0
    (finding,) = result["findings"]
    assert {w["span_id"] for w in finding["witness"]} <= {s["span_id"] for s in result["steps"]}


def test_a_request_is_found_by_its_external_id(api: Tracer) -> None:
    feed(api, "L 10 c0 h0 -> 0", request="by-external-0123abcd", recorder="external")
    result = api.get("/api/requests/by-external")
    assert result["request"]["request"] == "by-external-0123abcd"


def test_an_unknown_request_is_a_404_that_names_it(api: Tracer) -> None:
    answer = httpx.get(f"{api.url}/api/requests/nobody", timeout=SLOW_S)
    assert answer.status_code == 404
    assert "'nobody'" in answer.json()["detail"]


def test_ids_with_slashes_and_wildcards(api: Tracer) -> None:
    feed(api, "L 10 c0 h0 -> 0", request="team/a b-0123abcd", recorder="slash")
    feed(api, "L 10 c0 h0 -> 0", request="abc-0-0123abcd", recorder="wild")
    assert httpx.get(f"{api.url}/api/requests/team%2Fa%20b-0123abcd", timeout=SLOW_S).status_code == 200
    for wildcard in ("a_c", "%25", "a%25"):
        assert httpx.get(f"{api.url}/api/requests/{wildcard}", timeout=SLOW_S).status_code == 404


@pytest.mark.parametrize("path", ["/api/requests?before_ns=", "/api/spans?after=", "/api/requests?limit="])
@pytest.mark.parametrize("number", ["99999999999999999999999", "9223372036854775807", "-1", "x"])
def test_numbers_that_are_none_are_refused(api: Tracer, path: str, number: str) -> None:
    assert httpx.get(f"{api.url}{path}{number}", timeout=SLOW_S).status_code == 422


def test_missing_events_are_reported(api: Tracer) -> None:
    events = history(STORY, request="gap-0123abcd", recorder="gap")
    body = as_request([*events[:2], *events[3:]]).SerializeToString()
    httpx.post(f"{api.url}/v1/traces", content=body, headers={"content-type": "application/x-protobuf"}, timeout=SLOW_S)
    result = api.get("/api/requests/gap-0123abcd")
    assert result["missing"] == 1
    health = api.get("/api/health")
    (recorder,) = [r for r in health["recorders"] if r["id"] == "gap"]
    assert recorder["missing"] == 1


def test_requests_of_an_engine_that_ended_are_abandoned(api: Tracer) -> None:
    from kvtrail.tracer.events.events import Heartbeat

    events = history("L 10 c0 h0 -> 0", request="left-0123abcd", recorder="ended")
    last = events[-1]
    goodbye = Heartbeat(
        engine=last.engine, recorder="ended", sequence=len(events), connector="", role="", rank=0,
        start_ns=last.end_ns, end_ns=last.end_ns, recorder_closed=True,
    )  # fmt: skip
    body = as_request([*events, goodbye]).SerializeToString()
    httpx.post(f"{api.url}/v1/traces", content=body, headers={"content-type": "application/x-protobuf"}, timeout=SLOW_S)
    result = api.get("/api/requests/left-0123abcd")
    assert result["request"]["status"] == "abandoned"


def test_overview_rules_and_openapi(api: Tracer) -> None:
    feed(api, STORY, request="overview-0123abcd", recorder="overview")
    assert api.get("/api/totals")["findings"] >= 1
    rules = api.get("/api/rules")
    assert {"stale-lookup", "over-report", "no-token-left", "alloc-mismatch"} <= {rule["id"] for rule in rules}
    assert httpx.get(f"{api.url}/docs", timeout=SLOW_S).status_code == 200
    paths = httpx.get(f"{api.url}/openapi.json", timeout=SLOW_S).json()["paths"]
    assert {"/api/requests", "/api/requests/{request_id}", "/api/findings", "/api/spans", "/api/health"} <= set(paths)


def test_every_metric_is_documented_and_every_documented_metric_exists(api: Tracer) -> None:
    feed(api, STORY, request="metrics-0123abcd", recorder="metrics")
    page = httpx.get(f"{api.url}/metrics", timeout=SLOW_S).text
    exposed = set(re.findall(r"^# TYPE (\S+)", page, flags=re.MULTILINE))
    documented = set(
        re.findall(r"^\| `((?:kvtrail|process)_\w+)`", (DOCS / "metrics.md").read_text(), flags=re.MULTILINE)
    )
    assert exposed == {name for name in documented if "_spool_" not in name}, "those of a spool: test_fleet.py"
    found = '{connector="Connector",engine="engine",known="false",rule="stale-lookup",severity="crash"}'
    assert f"kvtrail_findings_total{found} " in page


def test_openmetrics_is_served_to_those_who_accept_it(api: Tracer) -> None:
    answer = httpx.get(
        f"{api.url}/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}, timeout=SLOW_S
    )
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.rstrip().endswith("# EOF")


def test_a_finding_is_counted_once_however_often_it_repeats(start_tracer: Callable[..., Tracer]) -> None:
    tracer = start_tracer()
    events = history(STORY.replace("A 256 !", "L 749 c336 h256 -> 256 cached\n" * 5 + "A 256 !"))
    for event in events:  # a batch each
        body = as_request([event]).SerializeToString()
        httpx.post(
            f"{tracer.url}/v1/traces", content=body, headers={"content-type": "application/x-protobuf"}, timeout=SLOW_S
        )
    page = httpx.get(f"{tracer.url}/metrics", timeout=SLOW_S).text
    found = '{connector="Connector",engine="engine",known="false",rule="stale-lookup",severity="crash"}'
    assert f"kvtrail_findings_total{found} 1.0" in page
    (finding,) = tracer.get("/api/findings")
    assert finding["count"] == 6

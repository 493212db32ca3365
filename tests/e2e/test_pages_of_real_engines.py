"""The views about windows of time and a request's ways on, in a real Chromium, over real traffic.

vLLM's real scheduler runs real connectors, one of them with LMCache #2158's bug; the spans come over OTLP.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import real_engines
from browser import needs_chromium, open_row, playwright, see
from processes import SharedDashboard, Tracer

from kvtrail.tracer.history.audit import audit

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytest.importorskip("vllm", reason="the traffic is that of vLLM's scheduler")
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def busy(pages: SharedDashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    """A tracer that has seen four engines come, and two of them die."""
    folder = tmp_path_factory.mktemp("busy")
    with pages.showing(folder) as tracer:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{tracer.grpc_port}", "OTEL_SERVICE_NAME": "vllm"}
        real_engines.run_all(folder, {**os.environ, **endpoint})
        yield tracer


@pytest.fixture
def url(busy: Tracer, pages: SharedDashboard) -> str:
    """The address of the dashboard, which shows it."""
    return pages.url


def stale(tracer: Tracer) -> Any:
    (finding,) = tracer.get("/api/findings", rule="stale-lookup")
    return finding


@pytest.mark.long
def test_a_rule_is_opened_by_a_click_and_filters_are_in_the_address(page: playwright.Page, url: str) -> None:
    page.goto(f"{url}/findings")
    see(page, "Click a rule")
    open_row(page, "by_rule")
    see(page, "What to do.")
    playwright.expect(page).to_have_url(re.compile(r"rule=(over-report|stale-lookup)"))
    page.goto(f"{url}/findings?severity=leak&connector=Nobody%27s")
    see(page, "No finding matches from")
    page.goto(f"{url}/findings?from=1970-01-01T00:00:01Z&to=1970-01-01T00:00:02Z")
    see(page, "No findings from 1970-01-01 00:00:01 to 1970-01-01 00:00:02 UTC")
    page.get_by_role("radio", name="1 h", exact=True).click()
    see(page, "findings, latest first")


@pytest.mark.long
def test_what_the_offload_is_worth(page: playwright.Page, busy: Tracer, url: str) -> None:
    answer = busy.get("/api/efficiency")
    assert answer["worth"]["prefill_saved_s"] > 0
    assert answer["worth"]["waits"] > 0
    assert answer["worth"]["preemptions"] > 0
    page.goto(f"{url}/savings?from=now-24h&to=now")
    see(page, "Prefill saved")
    see(page, re.compile("^(Worth it|(Not shown to be|Hardly) worth its memory in this range).* of prefill saved"))
    see(page, "By engine and connector")
    see(page, "connector that hides what its store held")
    see(page, "What more memory would buy")
    playwright.expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(4)
    page.goto(f"{url}/savings?connector=OffloadingConnector")
    see(page, "in 6 loads" if answer["worth"]["waits"] == 6 else "loads")
    page.goto(f"{url}/savings?from=1970-01-01T00:00:01Z&to=1970-01-01T00:00:02Z")
    see(page, "No lookup was traced from 1970-01-01 00:00:01")


@pytest.mark.long
def test_from_an_engine_to_its_worth(page: playwright.Page, url: str) -> None:
    page.goto(url)
    see(page, "Click an engine")
    open_row(page, "engines", row=3)
    see(page, "Prefill saved")
    playwright.expect(page).to_have_url(re.compile(r"/savings\?.*on=[0-9a-f-]{36}"))


@pytest.mark.long
def test_two_requests_side_by_side(page: playwright.Page, busy: Tracer, url: str) -> None:
    finding = stale(busy)
    page.goto(f"{url}/request?id={finding['request']}")
    page.get_by_role("radio", name="Compare").click()
    see(page, "Near in time and alike")
    field = page.get_by_role("searchbox", name="Compare with")
    field.fill("sound-00")
    field.press("Enter")
    see(page, "What differs")
    see(page, "B: sound-00")
    playwright.expect(page).to_have_url(re.compile("with=sound-00"))
    playwright.expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(4)
    page.goto(page.url)
    see(page, "B: sound-00")
    page.goto(f"{url}/request?id=sound-00&tab=compare&with=nobody")
    see(page, "The tracer knows no request nobody")


@pytest.mark.long
def test_a_request_goes_to_its_trace_and_is_taken_along(
    page: playwright.Page, busy: Tracer, pages: SharedDashboard, url: str, tmp_path: Path
) -> None:
    finding = stale(busy)
    page.goto(f"{url}/request?id={finding['request']}")
    trace = page.get_by_role("link", name="Trace", exact=True)
    playwright.expect(trace).to_have_attribute("href", pages.traces.format(trace_id=finding["trace_id"]))
    see(page, "Every step")  # while a page is drawn for the first time, what its buttons fetch may be forgotten again
    page.get_by_role("button", name="Copy or download").click()
    see(page, finding["trace_id"])
    for name, suffix in (("OTLP", "jsonl"), ("JSON", "json")):
        with page.expect_download() as download:
            page.get_by_role("button", name=name, exact=True).click()
        assert download.value.suggested_filename == f"{finding['request']}.{suffix}"
        download.value.save_as(tmp_path / f"answer.{suffix}")
    assert "stale-lookup" in {f.rule for f in audit([tmp_path / "answer.jsonl"]).findings}
    assert json.loads((tmp_path / "answer.json").read_text())["request"]["request"] == finding["request"]

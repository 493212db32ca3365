"""Where Grafana and Alertmanager lead to: a request by its trace's id, and a runbook by the name of its alert or rule."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from browser import needs_chromium, open_row, playwright, see, shoot
from history import history
from processes import Tracer
from test_dashboard_page import HEALTHY, STALE, now
from wire import as_request

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium
ONE, TWO, NONE = "1a" * 16, "2b" * 16, "3c" * 16


def feed(tracer: Tracer, text: str, *, request: str, trace_id: str) -> None:
    """A request within somebody's trace."""
    sent = as_request(now(history(text, request=request, engine="engine-a", recorder=f"recorder-of-{request}")))
    for spans in sent.resource_spans:
        for span in (span for scope in spans.scope_spans for span in scope.spans):
            span.trace_id = bytes.fromhex(trace_id)
    tracer.post(sent.SerializeToString())


def test_a_trace_leads_to_its_request(
    page: playwright.Page, start_tracer: Callable[..., Tracer], start_dashboard: Callable[[str], str]
) -> None:
    tracer = start_tracer()
    feed(tracer, STALE, request="chat-7-0123abcd", trace_id=ONE)
    url = start_dashboard(tracer.url)
    page.goto(f"{url}/request?trace={ONE.upper()}")
    see(page, "Request chat-7")
    see(page, "The connector answered 256")

    page.goto(f"{url}/request?trace={TWO}")
    see(page, f"The tracer knows no request of trace {TWO}")
    feed(tracer, HEALTHY, request="chat-8-0123abcd", trace_id=TWO)
    see(page, "Request chat-8")  # its spans were still on their way
    feed(tracer, STALE, request="chat-9-0123abcd", trace_id=TWO)
    see(page, f"2 requests of trace {TWO}")
    shoot(page, "requests-of-one-trace")
    open_row(page, "of_trace")
    playwright.expect(page).to_have_url(re.compile(r"/request\?id=chat-[89]-0123abcd"))
    see(page, "Every step")


def test_runbooks_lead_to_one_another(page: playwright.Page, start_dashboard: Callable[[str], str]) -> None:
    url = start_dashboard("http://127.0.0.1:9")  # a runbook is wanted most of all when nothing answers
    page.goto(f"{url}/runbook?name=KvtrailSevereDrift")
    see(page, "In the last 15 minutes a rule of severity")
    shoot(page, "runbook-alert")
    links = page.get_by_test_id("stMarkdown").get_by_role("link")
    href = links.filter(has_text="stale-lookup").first.get_attribute("href")
    assert href is not None
    page.goto(httpx.URL(page.url).join(href).__str__())
    see(page, "The connector repeated an earlier answer although")
    see(page, "Findings of this rule")
    shoot(page, "runbook-rule")
    page.get_by_role("link", name="All runbooks").click()
    see(page, "One page for each alert and each rule")
    shoot(page, "runbook-index")

    page.goto(f"{url}/runbook?name=KvtrailSevereDrft")
    see(page, "There is no runbook KvtrailSevereDrft")
    shoot(page, "runbook-unknown")
    page.get_by_role("link", name="Did you mean KvtrailSevereDrift?").click()
    see(page, "In the last 15 minutes a rule of severity")

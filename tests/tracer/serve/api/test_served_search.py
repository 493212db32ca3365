"""A search for a pasted text, as a tracer process answers it."""

from __future__ import annotations

import httpx
import pytest
from history import START_NS, history
from processes import SLOW_S, Tracer
from wire import encoded

S = 10**9
ID, CALLERS = "chatcmpl-5ea4c4-0123abcd", "job_7-0123abcd"


@pytest.fixture(scope="module")
def fed(api: Tracer) -> Tracer:
    for request, engine in ((ID, "search-0"), ("chatcmpl-0the4-0123abcd", "search-1"), (CALLERS, "search-2")):
        events = history("L 749 c0 h256 -> 256\nA 256\nS 256+48\nend", request=request, engine=engine, recorder=engine)
        api.post(encoded(events))
    return api


@pytest.mark.parametrize(
    "text",
    [
        f"(APIServer pid=8) INFO 11-20 14:59:37 [async_llm.py:348] Added request {ID}.",
        f'{{"message": "drift", "request": "{ID}"}}',
        "ERROR 11-20 14:59:37 [core.py:1] chatcmpl-5ea4c4 failed",
        "Reqid:chatcmpl-5ea4c, total",
    ],
)
def test_a_line_of_a_log_finds_its_request(fed: Tracer, text: str) -> None:
    found = fed.get("/api/search", text=text)
    assert [(each["engine"], each["request"]) for each in found["requests"]] == [("search-0", ID)]
    assert found["looked_for"]


def test_an_id_that_a_caller_chose_is_found_whatever_it_looks_like(fed: Tracer) -> None:
    found = fed.get("/api/search", text="the request job_7 was slow, job_8 was not")
    assert [each["request"] for each in found["requests"]] == [CALLERS]
    assert found["looked_for"] == []


def test_a_trace_finds_its_request(fed: Tracer) -> None:
    (request,) = fed.get("/api/requests", search=ID)
    found = fed.get("/api/search", text=f"traceparent: 00-{request['trace_id']}-00f067aa0ba902b7-01 what was it?")
    assert [each["request"] for each in found["requests"]] == [ID]
    assert found["looked_for"] == [request["trace_id"]]


def test_an_alert_finds_engine_rule_and_range(fed: Tracer) -> None:
    at_ms = START_NS // 10**6
    found = fed.get(
        "/api/search", text=f"[FIRING] engine = search-1 rule = stale-lookup from={at_ms}&to={at_ms + 1000}"
    )
    assert (found["engines"].keys(), found["rules"]) == ({"search-1"}, ["stale-lookup"])
    assert (found["since_ns"], found["until_ns"]) == (at_ms * 10**6 - 60 * S, (at_ms + 1000) * 10**6 + 60 * S)
    assert found["requests"] == []


def test_nothing_is_found_in_nothing_and_too_much_is_refused(fed: Tracer) -> None:
    found = fed.get("/api/search", text="hello there, nobody is meant")
    assert not any(found.values())
    answer = httpx.get(f"{fed.url}/api/search", params={"text": "x" * 8001}, timeout=SLOW_S)
    assert answer.status_code == 422
    assert "at most 8000 characters" in answer.text

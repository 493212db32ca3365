"""What is in a line that somebody has pasted."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrail.tracer.ingest.logs.pasted import LEAST_NS, MAX_WORDS, pasted

NOW = 1_795_287_600 * 10**9
"""2026-11-21 19:00:00 UTC"""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("line", "request_id", "time"),
    [
        (
            "(APIServer pid=81) INFO 11-20 14:59:37 [async_llm.py:348] Added request chatcmpl-9f0c-0123abcd.",
            "chatcmpl-9f0c-0123abcd", at("2026-11-20 14:59:37"),
        ),
        (
            "[2026-11-20 14:59:37,235] LMCache INFO: Reqid: cmpl-77-0-0123abcd, Total tokens 749 (vllm_v1_adapter.py:1077:x)",
            "cmpl-77-0-0123abcd", at("2026-11-20 14:59:37") + 235 * 10**6,
        ),
        (
            '{"time": "2026-11-20T15:59:37+0100", "level": "ERROR", "message": "drift", "rule": "stale-lookup", "request":'
            ' "a1b2c3d4-0000-4000-8000-0123456789ab"}',
            "a1b2c3d4-0000-4000-8000-0123456789ab", at("2026-11-20 14:59:37"),
        ),
        (
            "2026-11-20 14:59:37,120 WARNING kvtrail: stale-lookup in request chatcmpl-9f0c-0123abcd of engine chat-0",
            "chatcmpl-9f0c-0123abcd", at("2026-11-20 14:59:37") + 120 * 10**6,
        ),
        (
            "startsAt: 2026-11-20 14:59:37.5 +0000 UTC request_id=chatcmpl-9f0c-0123abcd",
            "chatcmpl-9f0c-0123abcd", at("2026-11-20 14:59:37") + 500 * 10**6,
        ),
        ("request:msg-1 at 1795186777000", "msg-1", 1_795_186_777 * 10**9),
        ("request:msg-1 at 1795186777000000007", "msg-1", 1_795_186_777 * 10**9 + 7),
    ],
)  # fmt: skip
def test_a_line_of_a_log_has_a_request_and_a_time(line: str, request_id: str, time: int) -> None:
    found = pasted(line, now_ns=NOW)
    assert request_id in found.words[: found.likely]
    assert found.times_ns == (time,)
    assert not found.traces


@pytest.mark.parametrize(
    "line", [f"trace_id={TRACE} span_id=00f067aa0ba902b7", f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01", f'"{TRACE}"']
)
def test_traces(line: str) -> None:
    assert pasted(line, now_ns=NOW).traces == (TRACE,)


def test_the_text_of_an_alert_names_engine_rule_and_times() -> None:
    text = (
        "[FIRING:1] KvtrailSevereDrift (Connector chat-0 host-a stale-lookup critical)\nLabels:\n - engine = chat-0\n"
        " - rule = stale-lookup\nAnnotations:\n - dashboard_url ="
        " http://localhost:8501/findings?rule=stale-lookup&engine=chat-0&from=1795186777000&to=1795190377000"
    )
    found = pasted(text, now_ns=NOW)
    assert {"chat-0", "stale-lookup"} <= {*found.words}
    assert found.times_ns == (1_795_186_777 * 10**9, 1_795_190_377 * 10**9)


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-45 14:59:37",
        "at 99999",
        "1234567890123",
        "2026-11-20",
        "v1.795186777000.2",
        "INFO 13-45 14:59:37 [a.py:1] x",
    ],
)
def test_what_is_no_time(text: str) -> None:
    assert pasted(text, now_ns=NOW).times_ns == ()


def test_places_in_source_files_and_numbers_are_no_ids() -> None:
    found = pasted("INFO 11-20 14:59:37 [v1/engine/core.py:348] took 12.5ms for 749 tokens, 98%", now_ns=NOW)
    assert not {"v1/engine/core.py:348", "749", "12.5ms", "98%"} & {*found.words}
    assert found.likely == 0


@given(st.text(max_size=2000))
def test_any_text_is_bounded(text: str) -> None:
    found = pasted(text, now_ns=NOW)
    assert found.likely <= len(found.words) <= MAX_WORDS
    assert all(at_ns >= LEAST_NS for at_ns in found.times_ns)
    assert [*found.times_ns] == sorted(set(found.times_ns))

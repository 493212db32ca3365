"""Logs inside JSON, a message with its header an object: text before the header is noise, so the events are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.ingest.logs.reader import LogReader, is_log

ENGINE = "(EngineCore_DP0 pid=1) "
HEADER = "INFO 02-04 13:55:39 [scheduler.py:1] "
LINES = [
    f"{ENGINE}[2026-02-04 13:55:38,100] LMCache INFO: Reqid: cmpl-b, Total tokens 900, LMCache hit tokens: 256, need to"
    " load: -80, num_computed_tokens 336 (vllm_v1_adapter.py:1)",
    f"{ENGINE}{HEADER}Releasing expired KV blocks for request cmpl-a which were retrieved by 0 decode worker(s) within 9 s",
    f"{ENGINE}{HEADER}Finished sending KV transfer for request cmpl-a",
    f"{ENGINE}\x1b[36m{HEADER}\x1b[0mFinished recving KV transfer for request cmpl-b",
    f"{ENGINE}{HEADER}Scheduled to load 256 tokens (0 cached in vLLM) for request cmpl-a",
    f"{ENGINE}{HEADER}Storing KV cache for 256 out of 256 tokens (skip_leading_tokens=0) for request cmpl-a",
    f"{ENGINE}{HEADER}Stored 256 out of total 256 tokens. size: 0.0273 gb",
    f"{ENGINE}{HEADER}nothing of ours, \u201cquoted\u201d and {{braced}}",
]
"""With ids at the end of a message, colours, letters that JSON escapes."""
TIME = "2026-02-04T13:55:39.123456789Z"


def _one(make: Callable[[str], Any]) -> Callable[[list[str]], str]:
    return lambda lines: "\n".join(json.dumps(make(line)) for line in lines)


FORMS: dict[str, Callable[[list[str]], str]] = {
    "Docker": _one(lambda line: {"log": line + "\n", "stream": "stderr", "time": TIME}),
    "Docker's runtime, the container's name in front": lambda lines: "\n".join(
        f"{TIME} stdout F {json.dumps({'log': line})}" for line in lines
    ),
    "fluentd": lambda lines: "\n".join(
        f"2026-02-04 13:55:39.000000000 +0000 kube.var.log: {json.dumps({'stream': 'stdout', 'log': line})}"
        for line in lines
    ),
    "logcli": _one(lambda line: {"labels": {"app": "vllm", "level": "x"}, "line": line, "timestamp": TIME}),
    "Loki's API": lambda lines: json.dumps(
        {"data": {"result": [{"stream": {"app": "v"}, "values": [["1770213339123456789", line] for line in lines]}]}}
    ),
    "journald": _one(lambda line: {"__REALTIME_TIMESTAMP": "1770213339123456", "_PID": "1", "MESSAGE": line}),
    "Google Cloud": _one(lambda line: {"textPayload": line, "severity": "INFO", "timestamp": TIME}),
    "Google Cloud, structured": _one(lambda line: {"jsonPayload": {"message": line}, "receiveTimestamp": TIME}),
    "Google Cloud, pretty-printed": lambda lines: json.dumps(
        [{"insertId": "1", "labels": {"a": "b"}, "textPayload": line, "timestamp": TIME} for line in lines], indent=2
    ),
    "Elastic": _one(lambda line: {"@timestamp": TIME, "message": line, "log": {"level": "info"}}),
    "Elastic's answer": _one(lambda line: {"_index": "v", "_source": {"message": line, "@timestamp": TIME}}),
    "an array": lambda lines: "[" + ",\n".join(json.dumps({"message": line}) for line in lines) + "]",
    "Dynamo": _one(lambda line: {"time": TIME, "level": "INFO", "file": "x.rs", "line": 7, "message": line}),
    "Python": _one(lambda line: {"asctime": "2026-02-04 13:55:39,123", "levelname": "INFO", "message": line}),
    "structlog": _one(lambda line: {"event": line, "level": "info", "timestamp": TIME}),
    "OpenTelemetry": _one(
        lambda line: {
            "resourceLogs": [
                {
                    "resource": {"attributes": [{"key": "a", "value": {"stringValue": "b"}}]},
                    "scopeLogs": [
                        {"logRecords": [{"timeUnixNano": "1770213339000000000", "body": {"stringValue": line}}]}
                    ],
                }
            ]
        }
    ),
    "Splunk": _one(lambda line: {"preview": False, "result": {"_raw": line, "_time": TIME}}),
    "unknown fields": _one(lambda line: {"zeile": line, "tail": "more"}),
    "cut off": lambda lines: "\n".join(json.dumps({"log": line + "\n", "stream": "x"})[:-3] for line in lines),
}


def events(path: Path, text: str) -> list[Event]:
    path.write_text(text + "\n")
    return list(LogReader(path).events())


def told(found: list[Event]) -> list[tuple[Any, ...]]:
    return [(type(e), e.request, getattr(e, "start", None), getattr(e, "count", None), e.recorder) for e in found]


@pytest.mark.parametrize("form", FORMS)
def test_a_message_inside_json_is_read_like_a_plain_line(tmp_path: Path, form: str) -> None:
    log = tmp_path / "server.log"
    plain = told(events(log, "\n".join(LINES)))
    assert len(plain) == 6
    assert told(events(log, FORMS[form](LINES))) == plain
    assert is_log(log)


@pytest.mark.parametrize(
    "line",
    [
        HEADER + 'Received: {"message": "Finished sending KV transfer for request cmpl-a"}',
        'INFO: 10.0.0.1 - "POST /x" {"message": "Finished sending KV transfer for request cmpl-a"}',
        '{"prompt": "Finished sending KV transfer for request cmpl-a"}',
        '{"message": 7}',
        "{}",
        '{"a": ' * 5000,
    ],
)
def test_an_object_that_a_message_quotes_is_no_message(tmp_path: Path, line: str) -> None:
    other = f"{ENGINE}{HEADER}Finished sending KV transfer for request cmpl-b"
    assert [each.request for each in events(tmp_path / "server.log", f"{line}\n{other}")] == ["cmpl-b"]

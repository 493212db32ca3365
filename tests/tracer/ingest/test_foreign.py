"""Files that are neither traces nor logs, and forms of OTLP that do not look like it."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvtrail.__main__ import main

GOLDEN = Path(__file__).parents[2] / "golden" / "stale-lookup.jsonl"
REQUESTS = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
LOG = "INFO 03-04 10:11:12 [scheduler.py:1] Finished sending KV transfer for request cmpl-a\n"
TRACE = {"traceId": "5b8efff798038103d269b633813fc60c", "id": "eee19b7ec3c1b174", "name": "kv.lookup"}


def zipped() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("trace.jsonl", "x")
    return held.getvalue()


def as_json(value: Any, *, indent: int | None = None) -> bytes:
    return json.dumps(value, indent=indent).encode()


JAEGER = {"data": [{"traceID": "1", "spans": [{"traceID": "1", "spanID": "2", "operationName": "kv.lookup"}]}]}
TEMPO = {"batches": REQUESTS[0]["resourceSpans"]}
ZIPKIN = [{**TRACE, "duration": 1, "localEndpoint": {"serviceName": "vllm"}}]
FOREIGN: dict[str, bytes] = {
    "xz": lzma.compress(LOG.encode()),
    "bzip2": bz2.compress(LOG.encode()),
    "bzip2, empty": bz2.compress(b""),
    "zip": zipped(),
    "UTF-16": LOG.encode("utf-16"),
    "UTF-16 without a mark": LOG.encode("utf-16-le"),
    "UTF-16, big-endian": LOG.encode("utf-16-be"),
    "zeros": b"\0" * 300_000 + LOG.encode(),
    "SQLite": b"SQLite format 3\0" + b"\x10\0" * 40,
    "Jaeger": as_json(JAEGER),
    "Jaeger, pretty-printed": as_json(JAEGER, indent=2),
    "Jaeger's v3": as_json({"result": REQUESTS[0]}),
    "Tempo": as_json(TEMPO, indent=1),
    "Tempo's v2": as_json({"trace": REQUESTS[0]}, indent=4),
    "Zipkin": as_json(ZIPKIN),
    "Perfetto": as_json({"traceEvents": [{"ph": "X", "pid": 1, "ts": 2}]}),
    "Chrome's array": as_json([{"ph": "X", "pid": 1, "ts": 2}], indent=1),
    "Prometheus": b'# HELP vllm:x Number.\n# TYPE vllm:x gauge\nvllm:x{a="b"} 1.0\n',
    "Prometheus, without its comments": b'vllm:gpu_cache_usage_perc{engine="0"} 0.25\n',
    "KV events": as_json({"ts": 1.5, "events": [{"type": "BlockStored", "block_hashes": [1]}]}),
    "KV events as arrays": as_json([1.5, [["BlockRemoved", [1]]]]),
    "KV events as printed": b"KVEventBatch(ts=1.5, events=[BlockStored(block_hashes=[1])])\n",
    "block hashes": as_json({"timestamp": 0, "input_length": 9, "hash_ids": [1]}),
    "OTLP metrics": as_json({"resourceMetrics": []}),
    "a page": b"<!DOCTYPE html>\n<html>",
}


def run(*arguments: str, text: bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=text, catch_exceptions=False)


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(FOREIGN[kind])
    for command in (["audit", str(path)], ["audit", "--export", "-", str(path)]):
        refused = run(*command)
        assert refused.exit_code == 2
        assert f"Error: {path}: " in refused.output
        assert "docs/logs-and-traces.md" in refused.output


def test_pretty_printed_otlp_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(REQUESTS[0], indent=2))
    refused = run("audit", str(path))
    assert (refused.exit_code, "`jq -c .` makes lines of JSON" in refused.output) == (2, True)


def test_a_torn_line_takes_nothing_else_along(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    whole = [json.dumps(each) for each in REQUESTS]
    torn = whole[0][: whole[0].index(",") + 1]
    path.write_text("\n".join([torn, *whole, torn, *whole, torn]))
    document = json.loads(run("audit", "--json", str(path)).output)
    assert [each["line"] for each in document["unreadable"]] == [1, 2 + len(whole), 3 + 2 * len(whole)]
    assert document["events"] == json.loads(run("audit", "--json", str(GOLDEN)).output)["events"]


def test_tempo_s_batches_are_otlp_under_another_name(tmp_path: Path) -> None:
    """What the advice makes of them is read."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(as_json({"resourceSpans": each["resourceSpans"]}) for each in REQUESTS))
    assert json.loads(run("audit", "--json", str(path)).output)["findings"]


@pytest.mark.parametrize(
    "line",
    [
        LOG,
        json.dumps({"log": LOG + json.dumps(JAEGER) + json.dumps({"traceEvents": [], "hash_ids": [1]})}) + "\n",
        json.dumps({"traceId": "1", "message": LOG}) + "\n",
        LOG + "# HELP vllm:x Number.\n" + json.dumps(ZIPKIN),
    ],
)
def test_a_log_that_quotes_a_foreign_file_is_a_log(tmp_path: Path, line: str) -> None:
    path = tmp_path / "server.log"
    path.write_text(line)
    result = run("audit", str(path))
    assert (result.exit_code, "1 request: 0 with drift, 0 ok, 1 unknown" in result.output) == (3, True)

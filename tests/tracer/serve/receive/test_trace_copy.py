"""The trace file is written beside ingest: it may fall behind or fail, and then says so."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.text_format import Parse
from history import history
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from processes import SLOW_S, until
from wire import encoded

from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.json_lines import JsonLines
from kvtrail.tracer.ingest.trace_file import TraceWriter
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive import trace_copy
from kvtrail.tracer.serve.receive.trace_copy import TraceCopy

FOREIGN = """
resource_spans {
  schema_url: "https://opentelemetry.io/schemas/1.30.0"
  resource { dropped_attributes_count: 2 attributes { key: "a" value { array_value { values { int_value: -1 } } } } }
  scope_spans {
    scope { name: "x" version: "1" attributes { key: "b" value { bool_value: true } } }
    spans {
      trace_id: "0123456789abcdef" span_id: "01234567" parent_span_id: "76543210" trace_state: "k=v" flags: 769
      name: "a \\"name\\" \\n \\303\\244" kind: SPAN_KIND_SERVER
      start_time_unix_nano: 1 end_time_unix_nano: 18446744073709551615
      attributes { key: "c" value { bytes_value: "\\000\\377" } }
      attributes { key: "\\"" value { double_value: nan } }
      attributes { key: "k" value { kvlist_value { values { key: "l" value { string_value: "m" } } } } }
      attributes { key: "none" }
      events { time_unix_nano: 5 name: "e" attributes { key: "f" value { string_value: "g" } } }
      links { trace_id: "fedcba9876543210" span_id: "89abcdef" }
      status { code: STATUS_CODE_ERROR message: "it failed" }
    }
    spans { name: "bare" }
  }
  scope_spans {}
}
resource_spans {}
"""
PAYLOAD = encoded(history("L 749 c0 h256 -> 256\nA 256"))


def lost(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("kvtrail_trace_file_lost_total")


def test_ingest_never_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A disk that takes nothing: a limited amount waits and is written in the end; the rest is lost, counted and reported."""
    may = threading.Event()
    write = TraceWriter.write

    def stuck(self: TraceWriter, payload: bytes) -> None:
        assert may.wait(SLOW_S)
        write(self, payload)

    monkeypatch.setattr(TraceWriter, "write", stuck)
    monkeypatch.setattr(trace_copy, "MAX_WAITING_BYTES", 3 * len(PAYLOAD))
    metrics = Metrics()
    copy = TraceCopy(tmp_path / "trace.jsonl", metrics)
    for _ in range(5):
        copy.write(PAYLOAD)
    assert lost(metrics) == 2
    assert metrics.registry.get_sample_value("kvtrail_trace_file_waiting_bytes") == 3 * len(PAYLOAD)
    assert "the trace file misses a request" in caplog.text
    may.set()
    copy.close()
    assert len((tmp_path / "trace.jsonl").read_text().splitlines()) == 3


def test_a_full_disk_loses_the_copy_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: TraceWriter, payload: bytes) -> None:
        raise OSError(28, "No space left on device")

    metrics = Metrics()
    copy = TraceCopy(tmp_path / "trace.jsonl", metrics)
    with monkeypatch.context() as patched:
        patched.setattr(TraceWriter, "write", full)
        copy.write(PAYLOAD)
        until(lambda: lost(metrics) == 1)
    copy.write(PAYLOAD)
    copy.close()
    assert len((tmp_path / "trace.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "payload",
    [PAYLOAD, b"", Parse(FOREIGN, ExportTraceServiceRequest()).SerializeToString()],
    ids=["ours", "empty", "foreign"],
)
def test_a_line_is_what_googles_writer_makes_of_it(payload: bytes) -> None:
    ours, theirs = (json.loads(line) for line in (JsonLines().line(payload), otlp_json.to_json_line(payload)))
    assert _without_empty(ours) == _without_empty(theirs)


def _without_empty(data: Any) -> Any:
    """JSON data without its empty lists and objects, which say nothing."""
    if isinstance(data, dict):
        return {key: kept for key, item in data.items() if (kept := _without_empty(item)) not in ([], {}, "0", 0, "")}
    return [_without_empty(item) for item in data] if isinstance(data, list) else data

"""Trace files as the OpenTelemetry Collector's file exporter writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import zstandard
from wire import encoded, to_json_line

from kvtrail.tracer.events.events import Event


def line(events: Sequence[Event], *foreign: dict[str, Any]) -> str:
    """A line with the fields and in the order in which the Collector's own JSON has them; `foreign` are spans of another
    scope, after ours."""
    data = json.loads(to_json_line(encoded(events)))
    (resource_spans,) = data["resourceSpans"]
    (scope_spans,) = resource_spans["scopeSpans"]
    scope_spans["spans"] = [{"status": {}, **_reordered(span)} for span in scope_spans["spans"]]
    for span in scope_spans["spans"]:
        span["status"] = span.pop("status")  # it comes last
    resource_spans["schemaUrl"] = "https://opentelemetry.io/schemas/1.26.0"
    if foreign:
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "gateway"}}]}
        others = {"resource": resource, "scopeSpans": [{"scope": {"name": "vllm"}, "spans": list(foreign)}]}
        data["resourceSpans"].append(others)
    return json.dumps(data, separators=(",", ":"))


def foreign_span(number: int) -> dict[str, Any]:
    """A span of vLLM's own, with what ours never have."""
    return {
        "traceId": "c0ffee" + "0" * 26, "spanId": f"{number:016x}", "parentSpanId": "", "flags": 257, "name": "llm_request",
        "kind": 2, "startTimeUnixNano": "1764725076000000000", "endTimeUnixNano": "1764725076900000000",
        "attributes": [
            {"key": "gen_ai.latency", "value": {"doubleValue": 0.25}},
            {"key": "list", "value": {"arrayValue": {"values": [{"kvlistValue": {"values": [{"key": "a", "value": {}}]}}]}}},
        ],
        "events": [{"timeUnixNano": "1764725076000000001", "name": "first token", "attributes": []}],
        "links": [{"traceId": "c0ffee" + "0" * 26, "spanId": "00000000000000ff"}],
        "status": {"code": 1},
    }  # fmt: skip


def framed(messages: Iterable[bytes]) -> bytes:
    """Messages behind their lengths."""
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def files(batches: Sequence[Sequence[Event]]) -> dict[str, bytes]:
    """The same history as each setting of the exporter writes it: `format`, `compression`, and where the compression lies."""
    lines = [line(batch).encode() for batch in batches]
    protos = [encoded(batch) for batch in batches]
    zstd = zstandard.ZstdCompressor().compress
    return {
        "json": b"\n".join(lines) + b"\n",
        "json zstd": framed(map(zstd, lines)),
        "json zstd native": zstd(b"\n".join(lines) + b"\n"),
        "json zstd native rotated": b"".join(zstd(each + b"\n") for each in lines),
        "proto": framed(protos),
        "proto zstd": framed(map(zstd, protos)),
        "proto zstd native": zstd(framed(protos)),
    }


def _reordered(span: dict[str, Any]) -> dict[str, Any]:
    order = (
        "traceId",
        "spanId",
        "parentSpanId",
        "flags",
        "name",
        "kind",
        "startTimeUnixNano",
        "endTimeUnixNano",
        "attributes",
    )
    return {key: span.get(key, 256 if key == "flags" else "") for key in order} | span

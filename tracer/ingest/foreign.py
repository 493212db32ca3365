"""Files that are neither traces nor logs: what each is, by its first bytes, and what to do with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

START = 1 << 16
"""Bytes of a file that are looked at."""
_BOM = b"\xef\xbb\xbf"
_UNPACK = "Unpack it first: {}"
_NO_SPANS = "It holds no spans of kvtrail; see docs/logs-and-traces.md for what writes them."


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of file: what it is, what to do, and whether a file that begins like this is one."""

    what: str
    advice: str
    is_it: Callable[[bytes], bool]


def _begins(*starts: bytes) -> Callable[[bytes], bool]:
    return lambda start: start.startswith(starts)


def _matches(pattern: bytes) -> Callable[[bytes], bool]:
    compiled = re.compile(pattern)
    return lambda start: compiled.match(start.removeprefix(_BOM).lstrip()) is not None


def _json(*keys: bytes) -> Callable[[bytes], bool]:
    """JSON with all of these keys. In a log that quotes JSON, a backslash is in front of the quotation marks."""

    def is_it(start: bytes) -> bool:
        text = start.removeprefix(_BOM).lstrip()
        return text.startswith((b"{", b"[")) and all(re.search(rb'"(?:%s)"\s*[:,\]]' % key, text) for key in keys)

    return is_it


def _is_utf_16(start: bytes) -> bool:
    """By its mark, or by the zero beside each letter."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    head = start[:64]
    return any(len(head) >= 8 and not any(head[n::2]) and all(head[1 - n :: 2]) for n in (0, 1))


def _envelope(key: bytes) -> Callable[[bytes], bool]:
    """OTLP in a field of another object."""
    return _matches(rb'\{\s*"%s"\s*:\s*\{\s*"resourceSpans"\s*:' % key)


_KINDS = (
    _Kind("compressed with xz", _UNPACK.format("xz -dk FILE"), _begins(b"\xfd7zXZ\0")),
    _Kind("compressed with bzip2", _UNPACK.format("bzip2 -dk FILE"), _matches(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")),
    _Kind("compressed with lz4", _UNPACK.format("lz4 -d FILE"), _begins(b"\x04\x22\x4d\x18")),
    _Kind("compressed with snappy", _UNPACK.format("snzip -d FILE"), _begins(b"\xff\x06\0\0sNaPpY")),
    _Kind("a zip archive", _UNPACK.format("unzip FILE"), _begins(b"PK\x03\x04", b"PK\x05\x06")),
    _Kind("a 7z archive", _UNPACK.format("7z x FILE"), _begins(b"7z\xbc\xaf\x27\x1c")),
    _Kind("a tar archive", _UNPACK.format("tar -xf FILE"), lambda start: start[257:262] == b"ustar"),
    _Kind("an SQLite database", "A tracer's store is judged with: kvtrail audit --store FILE", _begins(b"SQLite format 3\0")),
    _Kind("text in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8 FILE > server.log", _is_utf_16),
    _Kind(
        "a file that begins with zeros",
        "A log that is truncated while its writer has it open (logrotate's copytruncate) gets such a hole. Remove them:"
        " tr -d '\\000' < FILE > server.log",
        _begins(b"\0" * 8),
    ),
    _Kind("Tempo's answer, with OTLP inside", "Take it out: jq -c .trace FILE > trace.jsonl", _envelope(b"trace")),
    _Kind("Jaeger's answer, with OTLP inside", "Take it out: jq -c .result FILE > trace.jsonl", _envelope(b"result")),
    _Kind(
        "Tempo's JSON",
        "Make OTLP of it: jq -c '{resourceSpans: .batches}' FILE > trace.jsonl",
        _json(b"batches", b"scopeSpans|instrumentationLibrarySpans"),
    ),
    _Kind(
        "Jaeger's JSON",
        "Ask Jaeger for OTLP instead: /api/v3/traces/TRACE_ID, and then jq -c .result FILE > trace.jsonl",
        _json(b"traceID", b"operationName"),
    ),
    _Kind(
        "Zipkin's JSON",
        "It has lost the types of kvtrail's attributes: let the Collector write OTLP beside it, see docs/logs-and-traces.md",
        _json(b"traceId", b"localEndpoint|remoteEndpoint|duration"),
    ),
    _Kind(
        "a timeline for Perfetto or chrome://tracing",
        f"{_NO_SPANS} `kvtrail audit --export` writes such timelines of traces, not the other way round.",
        _json(b"traceEvents"),
    ),
    _Kind("a timeline for Perfetto or chrome://tracing", _NO_SPANS, _json(b"ph", b"pid", b"ts")),
    _Kind("metrics in OTLP", _NO_SPANS, _json(b"resourceMetrics")),
    _Kind("Prometheus' answer to a query", _NO_SPANS, _json(b"resultType", b"result")),
    _Kind(
        "metrics in Prometheus' text format",
        f"They count, and name no request. {_NO_SPANS}",
        _matches(rb"# (?:HELP|TYPE|UNIT) [a-zA-Z_:][\w:]* |(?:vllm|lmcache):[\w:]+(?:\{[^}\n]*\})? [-+\d.eENnaIif]+\s"),
    ),
    _Kind(
        "vLLM's KV events",
        f"They tell of blocks, and of no lookup or load. {_NO_SPANS}",
        lambda start: (
            re.match(rb"\s*(?:KVEventBatch|BlockStored|BlockRemoved|AllBlocksCleared)\(", start) is not None
            or (_json()(start) and re.search(rb'"(?:BlockStored|BlockRemoved|AllBlocksCleared)"', start) is not None)
        ),
    ),
    _Kind(
        "a trace of block hashes, as load generators replay them",
        f"It says what requests are sent, and not what happened to them. {_NO_SPANS}",
        _json(b"hash_ids"),
    ),
    _Kind("a web page", "Download the file itself, often by a link called raw.", _matches(rb"(?i:<!doctype html|<html)\b")),
)  # fmt: skip


def identified(start: bytes) -> str | None:
    """What a file is that begins like this, and what to do with it. None for one that may be a trace or a log."""
    kind = next((kind for kind in _KINDS if kind.is_it(start[:START])), None)
    return None if kind is None else f"it is {kind.what}. {kind.advice}"

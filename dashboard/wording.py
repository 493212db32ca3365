"""Words and numbers as people read them. One place, so that all pages say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tracer.semconv import Kind

STATUSES = ("queued", "admitted", "loading", "running", "preempted", "finished", "failed")
"""In the order of a request's life."""
RUNNING = STATUSES[:5]
"""What is neither finished nor failed."""
LEFT_OPEN = "abandoned"
"""Said of a request that never ended, and whose engine is gone."""
VERDICTS = ("ok", "drift", "unknown")
NOTHING = "–"  # noqa: RUF001 - an en dash, as tables have it for "no value"

SEVERITY_COLORS = {
    "crash": "red",
    "wrong output": "red",
    "hang": "orange",
    "leak": "orange",
    "wasted work": "yellow",
    "wrong metrics": "gray",
}
STATUS_COLORS = {"running": "blue", "loading": "blue", "preempted": "orange", "failed": "red"}
VERDICT_COLORS = {"ok": "green", "drift": "red", "unknown": "gray"}


def count(number: float | None) -> str:
    """A count with thousands separators: 1,234."""
    return NOTHING if number is None else f"{number:,.0f}"


def some(number: int, what: str) -> str:
    """A count with its noun: 1 token, 2 tokens, 2 lookups."""
    return f"{count(number)} {what}{'' if number == 1 else 's'}"


def rate(per_second: float) -> str:
    """A rate: digits behind the point only while they matter."""
    return f"{per_second:,.1f}" if 0 < per_second < 100 else f"{per_second:,.0f}"


def clock(at_ns: int | None, *, now_ns: int | None = None) -> str:
    """A moment in UTC: 12:00:01.250; with its date when `now_ns` is given and lies on another day."""
    if not at_ns:
        return NOTHING
    at = datetime.fromtimestamp(at_ns / 1e9, UTC)
    text = at.strftime("%H:%M:%S.%f")[:-3]
    if now_ns is not None and at.date() != datetime.fromtimestamp(now_ns / 1e9, UTC).date():
        return f"{at:%Y-%m-%d} {text}"
    return text


def duration(ns: int) -> str:
    """A length of time with its unit: 9 µs, 2.31 ms, 223 ms, 1.24 s, 2 min 03 s."""
    if ns < 1_000_000:
        return f"{ns / 1e3:,.0f} µs"
    if ns < 1_000_000_000:
        return f"{ns / 1e6:.3g} ms"
    seconds = ns / 1e9
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def size(number: float) -> str:
    """Bytes with a binary unit: 256 KiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.4g} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def plain(text: str) -> str:
    """Text of others for a Markdown element, so that it shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#$:|~])", r"\\\1", text)


def kind(name: str) -> str:
    """A span's name in words: kv.request.start is an arrival, and a foreign name stays."""
    return _KINDS.get(name, name)


_KINDS: dict[str, str] = {
    Kind.REQUEST_START: "arrival",
    Kind.REQUEST: "request",
    Kind.LOOKUP: "lookup",
    Kind.ALLOC: "allocation",
    Kind.SCHEDULE: "schedule",
    Kind.PREEMPT: "preemption",
    Kind.LOAD: "load",
    Kind.STORE: "store",
    Kind.RECEIVED: "load done",
    Kind.SENT: "store done",
    Kind.EVICT: "eviction",
    Kind.RESET: "reset",
}


def said(name: str, numbers: Mapping[str, Any]) -> str:
    """What a step says, in words."""
    match name:
        case Kind.REQUEST_START:
            return f"arrived with {some(numbers.get('total') or 0, 'token')}"
        case Kind.REQUEST:
            outcome = str(numbers.get("outcome") or "ended").replace("_", " ")
            return f"{outcome}; {some(numbers.get('output') or 0, 'token')} of output"
        case Kind.LOOKUP:
            return _lookup(numbers)
        case Kind.ALLOC:
            return f"{_blocks(numbers)} for {count(numbers.get('allocated'))} external tokens"
        case Kind.SCHEDULE:
            again = "resumed; " if numbers.get("resumed") else ""
            return f"{again}runs {some(numbers['scheduled'], 'token')} after {count(numbers['computed'])} computed"
        case Kind.LOAD | Kind.STORE:
            way = "into KV blocks" if name == Kind.LOAD else "into the store"
            start, length = numbers["start"], numbers["count"]
            extent = f"{some(length, 'token')} ({count(start)} to {count(start + length)})"
            amount = "" if numbers.get("bytes") is None else f", {size(numbers['bytes'])}"
            return f"{extent} copied {way}{amount}"
        case Kind.PREEMPT:
            return "taken off the engine; what was known of its tokens is void"
        case Kind.RECEIVED:
            return "asynchronous load failed" if numbers.get("failed") else "asynchronous load finished"
        case Kind.SENT:
            return "asynchronous store finished"
        case _:
            return ", ".join(f"{key} = {value}" for key, value in numbers.items())


def _lookup(numbers: Mapping[str, Any]) -> str:
    computed = f"{count(numbers.get('computed'))} of {count(numbers.get('total'))} computed"
    matched = numbers.get("matched")
    held = "the store's match is hidden" if matched is None else f"{count(matched)} matched"
    returned = numbers.get("returned")
    answer = "answered 'ask me later'" if returned is None else f"answered {count(returned)}"
    cached = ", cached" if numbers.get("cached") else ""
    refused = numbers.get("refused")
    healed = "" if refused is None else f" in place of {count(refused)}, which the guard refused"
    return f"{computed}, {held}; {answer}{healed}{cached}"


def _blocks(numbers: Mapping[str, Any]) -> str:
    blocks = numbers.get("blocks_count")
    return "blocks" if blocks is None else some(blocks, "block")


def ending(number: int) -> str:
    """How often: once, twice, 13 times."""
    return {1: "once", 2: "twice"}.get(number, f"{count(number)} times")


def healed(finding: Mapping[str, Any]) -> str:
    """Whether the guard repaired what was found before it did harm."""
    if finding["healed"] == 0:
        return "not healed"
    if finding["healed"] >= finding["count"]:
        return "healed by the guard"
    return f"healed by the guard {ending(finding['healed'])}"

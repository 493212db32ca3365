"""Words and numbers as people read them. One place, so that all pages say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kvtrail.tracer.model.words import NOTHING as NOTHING
from kvtrail.tracer.model.words import count as count
from kvtrail.tracer.model.words import ending as ending
from kvtrail.tracer.model.words import healed as healed_of
from kvtrail.tracer.model.words import kind as kind
from kvtrail.tracer.model.words import said as said
from kvtrail.tracer.model.words import size as size
from kvtrail.tracer.model.words import some as some

STATUSES = ("queued", "admitted", "loading", "running", "preempted", "finished", "failed")
"""In the order of a request's life."""
RUNNING = STATUSES[:5]
"""What is neither finished nor failed."""
LEFT_OPEN = "abandoned"
"""Said of a request that never ended, and whose engine is gone."""
VERDICTS = ("ok", "drift", "unknown")

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


def plain(text: str) -> str:
    """Text of others for a Markdown element, so that it shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#$:|~])", r"\\\1", text)


def prose(text: str) -> str:
    """The tracer's own prose for a Markdown element: what stands in backticks is code, and the rest shows as it is."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return plain(text)
    return "".join(f"`{part}`" if number % 2 else plain(part) for number, part in enumerate(parts))


def healed(finding: Mapping[str, Any]) -> str:
    """Whether the guard repaired what was found before it did harm."""
    return healed_of(finding["healed"], count=finding["count"])


def shown(value: Any) -> str:
    """A number or word of an account as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    return NOTHING if value is None else str(value).replace("_", " ")


def paragraphs(text: str, *, without: str = "") -> str:
    """A docstring as paragraphs: its lines joined, its indentation gone, and without the sentence that it begins with."""
    joined = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    if joined and without and joined[0].rstrip(".") == without.rstrip("."):
        joined = joined[1:]
    return "\n\n".join(joined)

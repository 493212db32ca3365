"""The error for a file without a readable line: what was looked for, and the most similar lines."""

from __future__ import annotations

import re

from kvtrail.tracer.ingest.logs.lines import Record

MAX_LINES = 3
_SHOWN = 160
_LEAST_WORDS = 2
_WORDS = re.compile(
    r"\b(?:kv|tokens?|req(?:uest)?(?:_?id)?|blocks?|chunks?|hits?|match(?:ed)?|cached?|prefix|load(?:ed|ing)?|stor(?:ed|ing)"
    r"|retriev(?:ed|ing)|offload(?:ed|ing)?|transfer(?:red)?|connector|lmcache|nixl|mooncake|preempt(?:ed)?|computed)\b",
    re.IGNORECASE,
)
"""Words that lines about KV have in common."""


class UnreadLines:
    """Keeps the unread lines that are most similar to readable ones."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, int, str]] = []

    def enter(self, record: Record) -> None:
        """Enter an unread line."""
        words = len({word.lower() for word in _WORDS.findall(record.text[:2000])})
        if words >= _LEAST_WORDS and (len(self._lines) < MAX_LINES or words > -self._lines[-1][0]):
            self._lines = sorted([*self._lines, (-words, record.number, record.text)])[:MAX_LINES]

    def explanation(self, unread: int) -> str:
        """Why a file with this many unread lines cannot be used."""
        if not unread:
            return "the file is empty"
        text = (
            f"none of its {unread} lines can be read. Accepted are traces (OTLP, docs/logs-and-traces.md) and logs of vLLM"
            " with a KV connector. It looked for lines about lookups, loads, stores and failures as vLLM, LMCache and similar"
            " systems print them (docs/logs-and-traces.md lists them; many are printed at level DEBUG only)."
        )
        if not self._lines:
            return f"{text} No line resembles any of them."
        near = "; ".join(
            f"line {number}: {line[:_SHOWN]!r}" for _, number, line in sorted(self._lines, key=lambda e: e[1])
        )
        return f"{text} The nearest: {near}"

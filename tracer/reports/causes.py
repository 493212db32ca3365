"""Why the tokens of a request were reused or computed, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvtrail.tracer.model.cause_words import headline, named_sentence, runs
from kvtrail.tracer.model.findings import clock
from kvtrail.tracer.model.words import count, percent, some
from kvtrail.tracer.reports.terminal import plain, wrapped

Entry = Mapping[str, Any]
"""An admission of an account."""


def as_text(explained: Mapping[tuple[str, str], Sequence[Entry]], *, columns: int | None = None) -> str:
    """Each admission of these requests: its parts in order, with their tokens, share, and cause."""
    paragraphs = [
        _admission(request, entry, columns) for (_, request), entries in explained.items() for entry in entries
    ]
    never = [
        f"request {plain(request)} was never admitted" for (_, request), entries in explained.items() if not entries
    ]
    return "\n\n".join([*paragraphs, *never])


def _admission(request: str, entry: Entry, columns: int | None) -> str:
    preempted = f", after {some(entry['epoch'], 'preemption')}" if entry["epoch"] else ""
    lines = wrapped(
        f"request {plain(request)}, admitted at {clock(entry['at_ns'])}{preempted}: {headline(entry)}", columns
    )
    found = runs(entry["parts"])
    ranges = [f"{count(run['start'])} to {count(run['start'] + run['tokens'])}" for run in found]
    wide = max(map(len, ranges), default=0)
    for run, tokens in zip(found, ranges, strict=True):
        first = f"  {tokens:>{wide}} {percent(run['tokens'] / entry['total']):>6}  "
        text = plain(named_sentence(run, at_ns=entry["at_ns"]))
        lines += wrapped(text, columns, first=first, rest=" " * len(first))
    if not entry["final"]:
        lines.append("  A load of it may still fail.")
    return "\n".join(lines)

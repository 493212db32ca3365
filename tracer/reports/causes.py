"""Why the tokens of a request were reused or computed, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvtrail.tracer.model.cause_words import sentence
from kvtrail.tracer.model.findings import clock
from kvtrail.tracer.model.words import count, percent, some
from kvtrail.tracer.reports.terminal import plain, wrapped

Entry = Mapping[str, Any]
"""An admission, as an account has it."""


def as_text(explained: Mapping[tuple[str, str], Sequence[Entry]], *, columns: int | None = None) -> str:
    """Each admission of each of these requests: its parts in their order, with their tokens and why."""
    paragraphs = [
        _admission(request, entry, columns) for (_, request), entries in explained.items() for entry in entries
    ]
    never = [
        f"request {plain(request)} was never admitted" for (_, request), entries in explained.items() if not entries
    ]
    return "\n\n".join([*paragraphs, *never])


def _admission(request: str, entry: Entry, columns: int | None) -> str:
    total = entry["total"]
    preempted = f", after {some(entry['epoch'], 'preemption')}" if entry["epoch"] else ""
    lines = [f"request {plain(request)}, admitted at {clock(entry['at_ns'])} with {some(total, 'token')}{preempted}:"]
    for part in entry["parts"]:
        share = f"{percent(part['tokens'] / total)} " if total else ""
        text = f"{count(part['tokens'])} from {count(part['start'])} on, {share}{part['cause']}: "
        lines += wrapped(text + plain(sentence(part, at_ns=entry["at_ns"])), columns, first="  ", rest="    ")
    if not entry["final"]:
        lines.append("  What is to be loaded may still fail.")
    return "\n".join(lines)

"""One step of a request: the account after it, and its changes. Steps count from 1, as on every page."""

from __future__ import annotations

from collections.abc import Iterable

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.request import account_rows
from kvtrail.tracer.model.words import count, duration, kind, run

_OMITTED = {
    **dict.fromkeys(("loads", "waited_ns", "recomputed", "rejected", "refused", "looked_at", "wrong_blocks"), 0),
    "outcome": None,
    "missing": None,
}
"""Numbers left out while they have this value."""


def clamped(wanted: str | int, *, steps: int) -> int:
    """The existing step nearest to the `wanted` one; the first if that is not a number, as in a mistyped address."""
    digits = str(wanted)
    return min(max(int(digits) if digits.isdecimal() and len(digits) < 10 else 1, 1), steps)


def neighbours(with_findings: Iterable[int], *, step: int) -> tuple[int | None, int | None]:
    """The steps with findings before and after this one."""
    numbers = list(with_findings)
    return max((n for n in numbers if n < step), default=None), min((n for n in numbers if n > step), default=None)


def changes(timeline: Row, *, step: int) -> list[Row]:
    """The account after the step beside the one before it, as `account_rows`; empty before the arrival."""
    before, after = (_account(timeline, number) for number in (step - 1, step))
    if after is None:
        return []
    rows = account_rows(after, before)
    return [row for row in rows if row["differs"] or after[row["name"]] != _OMITTED.get(row["name"], ...)]


def title(timeline: Row, *, step: int) -> str:
    """The step in a few words: Step 7 of 12: lookup."""
    steps = timeline["steps"]
    return f"Step {count(step)} of {count(len(steps))}: {kind(steps[step - 1]['name'])}"


def facts(timeline: Row, *, step: int, now_ns: int) -> list[str]:
    """When and where the step happened."""
    shown = timeline["steps"][step - 1]
    since_ns = shown["start_ns"] - timeline["request"]["started_ns"]
    facts = [
        f"{text.clock(shown['start_ns'], now_ns=now_ns)} UTC",
        f"{duration(abs(since_ns))} {'before' if since_ns < 0 else 'after'} the arrival",
        f"took {duration(shown['end_ns'] - shown['start_ns'])}",
        "" if shown["epoch"] is None else run(shown["epoch"]),
        shown["service"] if shown["foreign"] else f"{shown['role']} {shown['rank'] or 0}",
    ]
    return [fact for fact in facts if fact]


def _account(timeline: Row, steps: int) -> Row | None:
    """The account after the first `steps` steps; other services' spans leave it unchanged."""
    accounts = (step["account"] for step in reversed(timeline["steps"][:steps]))
    return next((account for account in accounts if account is not None), None)

"""One step of a request's timeline: the account after it, what it changed, and what was found there. Pure.

Steps are counted from 1, as everywhere on the pages.
"""

from __future__ import annotations

from kvtrail.dashboard import wording
from kvtrail.dashboard.client import Row

NUMBERS = (
    "status", "epoch", "total", "computed", "matched", "returned", "allocated", "scheduled", "loaded", "stored", "lookups",
    "rejected", "refused", "outcome", "complete",
)  # fmt: skip
"""What is shown of an account, in this order; the last four where they say something."""
_SELDOM = {"rejected": 0, "refused": 0, "outcome": None, "complete": True}


def clamped(wanted: str | int, *, steps: int) -> int:
    """The step that is wanted, perhaps by an address: the nearest there is, and the first where it names none."""
    text = str(wanted)
    number = int(text) if text.isdecimal() and len(text) < 10 else 1
    return min(max(number, 1), steps)


def found_at(timeline: Row) -> dict[int, list[Row]]:
    """The findings by the step that completes their evidence: the last of their witness's events.

    Where its span is not there, it is the latest step before it, at the earliest the first.
    """
    steps = timeline["steps"]
    places = {step["span_id"]: number for number, step in enumerate(steps, 1)}
    found: dict[int, list[Row]] = {}
    for finding in timeline["findings"]:
        last = finding["witness"][-1] if finding["witness"] else {"span_id": "", "at_ns": finding["first_ns"]}
        place = places.get(last["span_id"])
        if place is None:
            place = max(1, sum(step["start_ns"] <= last["at_ns"] for step in steps))
        found.setdefault(place, []).append(finding)
    return dict(sorted(found.items()))


def neighbours(found: dict[int, list[Row]], *, step: int) -> tuple[int | None, int | None]:
    """The last step with a finding before this one, and the next one after it."""
    return max((n for n in found if n < step), default=None), min((n for n in found if n > step), default=None)


def account_rows(timeline: Row, *, step: int) -> list[Row]:
    """The account after the step: each number's name, its value, and its value before where that was another."""
    before, after = (_account(timeline, upto=number) for number in (step - 1, step))
    if after is None:
        return []
    # A request's first step changes nothing that was: there was no account.
    changed = {name for name in NUMBERS if before is not None and before[name] != after[name]}
    return [
        {
            "name": name,
            "value": wording.shown(after[name]),
            "before": wording.shown(before[name]) if before is not None and name in changed else None,
        }
        for name in NUMBERS
        if name in changed or name not in _SELDOM or after[name] != _SELDOM[name]
    ]


def title(timeline: Row, *, step: int) -> str:
    """The step in a few words: Step 7 of 12: lookup."""
    steps = timeline["steps"]
    return f"Step {wording.count(step)} of {wording.count(len(steps))}: {wording.kind(steps[step - 1]['name'])}"


def facts(timeline: Row, *, step: int, now_ns: int) -> list[str]:
    """When and where the step happened."""
    told = timeline["steps"][step - 1]
    since = told["start_ns"] - timeline["request"]["started_ns"]
    where = told["service"] if told["foreign"] else f"{told['role']} {told['rank'] or 0}"
    sign = "before" if since < 0 else "after"
    epoch = "" if told["epoch"] is None else f"epoch {told['epoch']}"
    facts = [
        f"{wording.clock(told['start_ns'], now_ns=now_ns)} UTC",
        f"{wording.duration(abs(since))} {sign} the arrival",
        f"took {wording.duration(told['end_ns'] - told['start_ns'])}",
        epoch,
        where,
    ]
    return [fact for fact in facts if fact]


def _account(timeline: Row, *, upto: int) -> Row | None:
    """The account after so many steps; other services' spans leave it as it was."""
    accounts = (step["account"] for step in reversed(timeline["steps"][:upto]))
    return next((account for account in accounts if account is not None), None)

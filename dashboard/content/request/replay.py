"""One step of a request: the account after it, and its changes; and the blocks that it names, by KV cache group. Steps count
from 1, as on every page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.request.account import number
from kvtrail.tracer.events.cache_groups import NULL_BLOCK, split
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.cause_words import group_name
from kvtrail.tracer.model.words import blocks, count, duration, kind, run, some, value, waiting

ACCOUNT = {
    "status": "status",
    "epoch": "preemptions",
    "total": "tokens of the request",
    "computed": "of these in vLLM",
    "matched": "matched in the store",
    "returned": "answer to the lookup",
    "allocated": "to be loaded",
    "scheduled": "run by the step",
    "loaded": "loaded",
    "stored": "stored",
    "lookups": "lookups",
    "loads": "loads",
    "waited_ns": "waited for KV",
    "recomputed": "recomputed",
    "rejected": "rejected drafts",
    "refused": "answers refused",
    "looked_at": "blocks checked",
    "wrong_blocks": "wrong blocks",
    "outcome": "how it ended",
    "missing": "what is missing",
}
"""The account's numbers in this order, with their names."""
_OMITTED = {
    **dict.fromkeys(("loads", "waited_ns", "recomputed", "rejected", "refused", "looked_at", "wrong_blocks"), 0),
    "outcome": None,
    "missing": None,
}
"""Numbers left out while they have this value."""


def clamped(wanted: str | int, *, steps: int) -> int:
    """The existing step nearest to the `wanted` one; the first if that is not a number, as in a mistyped URL."""
    digits = str(wanted)
    return min(max(int(digits) if digits.isdecimal() and len(digits) < 10 else 1, 1), steps)


def neighbours(with_findings: Collection[int], *, step: int) -> tuple[int | None, int | None]:
    """The steps with findings before and after this one."""
    before, after = ((n for n in with_findings if n < step), (n for n in with_findings if n > step))
    return max(before, default=None), min(after, default=None)


def changes(timeline: Row, *, step: int) -> list[Row]:
    """The account after the step beside the one before it: a row for each number, with both values as text and whether they
    differ; empty before the arrival."""
    before, after = (_account(timeline, each) for each in (step - 1, step))
    if after is None:
        return []
    return [
        {"name": name, "label": label, "value": _shown(after, name),
         "other": None if before is None else _shown(before, name), "differs": differs}
        for name, label in ACCOUNT.items()
        if (differs := before is not None and number(after, name) != number(before, name))
        or after[name] != _OMITTED.get(name, ...)
    ]  # fmt: skip


def _shown(account: Row, name: str) -> str:
    """A number of the account as text."""
    if name == "waited_ns":
        return waiting(account[name], account["wait_loads"])
    return value(number(account, name)).replace("_", " ")


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


def block_rows(step: Row, groups: Sequence[Row]) -> list[Row]:
    """A row for each KV cache group of a step that names blocks; none for any other step. `groups` are the engine's declared
    groups, in order; a single undeclared group has an unknown kind."""
    starts = step["numbers"].get("group_starts") or ()
    declared = zip_longest(_by_group(step), groups, starts)
    return [
        {
            "KV cache group": group_name(group, str((known or {}).get("kind", ""))),
            "Blocks": count(len(ids) - ids.count(NULL_BLOCK)),
            "Null blocks": count(ids.count(NULL_BLOCK)),
            "Block ids": blocks(block for block in ids if block != NULL_BLOCK) or "none",
            **({"Tokens of a block": count(known["block_size"]) if known else "not known"} if groups else {}),
            **({"From token": "not known" if start is None else count(start)} if starts else {}),
        }
        for group, (ids, known, start) in enumerate(declared)
        if ids is not None
    ]


def block_summary(step: Row) -> str:
    """The number of blocks that a step names, as text."""
    by_group = _by_group(step)
    held = sum(len(ids) - ids.count(NULL_BLOCK) for ids in by_group)
    return some(held, "block") + (f" in {some(len(by_group), 'KV cache group')}" if len(by_group) > 1 else "")


def latest_allocation(timeline: Row) -> Row | None:
    """The latest allocation that names its blocks, if the model has several KV cache groups."""
    named = (step for step in reversed(timeline["steps"]) if step["name"] == Kind.ALLOC and len(_by_group(step)) > 1)
    return next(named, None)


def _by_group(step: Row) -> list[Sequence[int]]:
    """The block ids that a step names, group by group; empty if it names none."""
    ids = step["numbers"].get("blocks_ids")
    return [] if step["foreign"] or ids is None else split(ids, step["numbers"].get("blocks_by_group"))

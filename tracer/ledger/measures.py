"""Measures of a request: the time in each phase, the time to its first token, and its tokens by cause. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.phases import Phase

NAMES = {
    Phase.QUEUED: "queued",
    Phase.LOOKUP: "lookup",
    Phase.WAITING: "load_wait",
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode",
    Phase.RUNNING: "running",
    Phase.PREEMPTED: "preempted",
}
"""The measured phases, and the names of their times."""
_ENDS = (Phase.DONE, Phase.STORE)
OTHERWISE = ("aborted", "error")
"""The outcomes of requests that finished before their output was complete."""


def measures_of(account: Account, causes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The measures of a request, as JSON-ready data; `causes` are its admissions from `Account.as_dict`.

    `times` has nanoseconds: `duration` of an ended request, `first_token` if it is recorded when the prompt was
    computed, and the time in each completed phase. `tokens` are the tokens of its prompts, over all
    admissions, by cause. `prefix` names the beginning of its prompt, and is empty if unknown.
    """
    tokens: dict[str, int] = {}
    prefix = ""
    for admission in causes:
        prefix = prefix or admission.get("prefix", "")
        for part in admission["parts"]:
            tokens[part["cause"]] = tokens.get(part["cause"], 0) + part["tokens"]
    return {"times": times_of(account), "tokens": tokens, "prefix": prefix}


def times_of(account: Account) -> dict[str, int]:
    """The nanoseconds of each measure of time that the request has."""
    begun_ns, ended_ns = account.started_ns, account.ended_ns
    changes = account.phases.changes()
    times: dict[str, int] = {}
    # If its engine ended, the last phase ends with the engine; otherwise it continues.
    for (at_ns, phase), (until_ns, _) in pairwise(changes if ended_ns is None else [*changes, (ended_ns, Phase.DONE)]):
        if phase in NAMES:
            times[NAMES[phase]] = times.get(NAMES[phase], 0) + max(0, until_ns - at_ns)
    if ended_ns is not None:
        times["duration"] = max(0, ended_ns - begun_ns)
    token_ns = _first_token_ns(account, changes)
    if token_ns is not None:
        times["first_token"] = max(0, token_ns - begun_ns)
    return {name: ns for name, ns in times.items() if ns or name == "duration"}


def _first_token_ns(account: Account, changes: list[tuple[int, Phase]]) -> int | None:
    """When the prompt was computed, from the first step after it; None if none is recorded."""
    for number, (at_ns, phase) in enumerate(changes):
        if phase is Phase.DECODE:
            return at_ns
        # A request for a single token ends with the step that computes the prompt.
        if phase in _ENDS and number and changes[number - 1][1] is Phase.PREFILL:
            return at_ns if account.status == "finished" and account.outcome not in OTHERWISE else None
    return None

"""What a request is measured by: the time in each phase, the time to its first token, and its tokens by cause. Pure."""

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
"""The phases that are measured, and the names of the time in them."""
_ENDS = (Phase.DONE, Phase.STORE)
OTHERWISE = ("aborted", "error")
"""The outcomes of requests that finished before their output was complete."""


def measures_of(account: Account, causes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The measures of a request, as JSON-ready data; `causes` are its admissions, as `Account.as_dict` gives them.

    `times` has nanoseconds: `duration` of a request that has ended, `first_token` where it is recorded when the prompt was
    computed, and the time in each phase that it has been in and left. `tokens` are those of its prompts, over all
    admissions, by cause. `prefix` names the beginning of its prompt, and is empty where that is not known.
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
    # What its engine's end has cut short lasts until then; of others the last phase goes on.
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
    """When the prompt was computed, as the first step after it shows; None where none is recorded."""
    for number, (at_ns, phase) in enumerate(changes):
        if phase is Phase.DECODE:
            return at_ns
        # The step that computes the prompt is the last one of a request that is asked for one token.
        if phase in _ENDS and number and changes[number - 1][1] is Phase.PREFILL:
            return at_ns if account.status == "finished" and account.outcome not in OTHERWISE else None
    return None

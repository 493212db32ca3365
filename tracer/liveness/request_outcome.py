"""The outcome of a request and the impact of a finding, from the request's account and the state of its engine.

A request's account has a `status` and, once it has ended, a reason (`Account.outcome`): only this module interprets these
strings. The outcome of an open request depends on its engine.
"""

from __future__ import annotations

from kvtrail.tracer.events.semconv import CUT_OFF, LOST_CONTACT
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.liveness.engine import EngineState
from kvtrail.tracer.model.findings import Severity
from kvtrail.tracer.model.outcomes import Impact, Outcome

ABORTED, ERROR = "aborted", "error"
"""vLLM's finish reasons."""
FINISHED, FAILED, ABANDONED = "finished", "failed", "abandoned"
"""The statuses of an ended account."""


_OF_OPEN = {
    EngineState.RUNNING: Outcome.RUNNING,
    EngineState.NOT_OBSERVED: Outcome.RUNNING,
    EngineState.DIED: Outcome.LOST,
    EngineState.DRAINED: Outcome.LOST,
    EngineState.REPLACED: Outcome.LOST,
    EngineState.LOST_CONTACT: Outcome.LOST_CONTACT,
}
"""The outcome of an open request, by the state of its engine."""


def outcome_of(status: str, reason: str | None, engine: EngineState) -> Outcome:
    """The outcome of a request, from its account's `status` and `outcome` (the reason), and the state of its engine."""
    return of_ending(ending_of(status, reason), engine)


def ending_of(status: str, reason: str | None) -> Outcome:
    """The ending of a request according to its account alone. If it has not ended, or contact with its engine was lost, the
    outcome also depends on the engine."""
    if has_failed(status) or reason == ERROR:
        return Outcome.FAILED
    if status == FINISHED:
        return Outcome.ABORTED if reason == ABORTED else Outcome.FINISHED
    if status == ABANDONED:
        return Outcome.LOST_CONTACT if reason == LOST_CONTACT else Outcome.LOST
    return Outcome.RUNNING


def of_ending(ending: Outcome, engine: EngineState) -> Outcome:
    """The outcome of a request with this ending, on an engine of this state."""
    if ending is Outcome.RUNNING:
        return _OF_OPEN[engine]
    if ending is Outcome.LOST_CONTACT and engine is not EngineState.LOST_CONTACT:
        return Outcome.LOST
    return ending


def described(status: str, reason: str | None, error: str | None) -> str:
    """How a request ended according to its account, in words: a finding of severity `crash` does not always crash the
    engine."""
    match status:
        case "failed":
            return f"a call about it raised {error}"
        case "finished":
            return f"it ended: {reason or 'how is not known'}"
        case "abandoned" if reason == LOST_CONTACT:
            return "contact with its engine was lost"
        case "abandoned":
            return "its engine ended before it did"
    return "the recording ends before it does"


def has_failed(status: str) -> bool:
    """Whether a call about a request raised."""
    return status == FAILED


def is_over(status: str, ended_ns: int | None) -> bool:
    """Whether a request has no further events, in any state of its engine."""
    return ended_ns is not None or has_failed(status)


def is_lost(account: Account) -> bool:
    """Whether a request is lost with its engine: it was open, or its blocks were held for another engine to read, as a
    prefill engine holds them for decode."""
    end = account.evidence.end
    is_held_for_another = end is not None and end.handoff is True and end.outcome != ABORTED
    return account.ended_ns is None or account.outcome in (CUT_OFF, LOST_CONTACT) or is_held_for_another


ABOUT_BYTES = "byte-drift"
"""The rule that detects reads of wrong KV."""


def impact_of(
    outcome: Outcome | None,
    *,
    rule: str,
    healed: int,
    count: int,
    is_cause: bool,
    severity: str = "",
    was_stopped: bool = False,
) -> Impact:
    """The impact of a finding that was seen `count` times: the guard healed it, or its request has this outcome, or it caused
    its engine's death. Without a known request, `outcome` is None. An engine that `was_stopped` loses its open requests
    independently of findings."""
    if healed >= count:
        return Impact.HEALED
    if is_cause:
        return Impact.DIED
    match outcome:
        case Outcome.FAILED:
            return Impact.FAILED
        case Outcome.LOST if not was_stopped:
            return Impact.LOST
        case _:
            if rule == ABOUT_BYTES:
                return Impact.WRONG_KV
            return Impact.NOT_KNOWN if severity == Severity.WRONG_OUTPUT else Impact.NO_HARM

"""Unknown verdicts: why, and what to do about them."""

from __future__ import annotations

from kvtrail.dashboard.client import Row
from kvtrail.tracer.model.findings import Unknown
from kvtrail.tracer.model.outcomes import MEANING, Outcome
from kvtrail.tracer.model.words import advice

NEVER_ENDED = (Outcome.LOST, Outcome.LOST_CONTACT)


def reason(name: str) -> tuple[str, str]:
    """A reason in words, and what to do about it. A newer tracer may have reasons that are not known here."""
    known = Unknown.__members__.get(name.upper())
    return (name.replace("_", " "), "") if known is None else (str(known), advice(known))


def of_request(request: Row) -> str:
    """Why a request's verdict is unknown, in a sentence or two; empty if it is known."""
    if not (name := request.get("unknown")):
        return ""
    if name == Unknown.OPEN.name.lower() and request.get("outcome") in NEVER_ENDED:
        return f"{MEANING[Outcome(request['outcome'])]} So its verdict stays unknown."
    why, todo = reason(name)
    return f"The verdict is unknown: {why}. {todo}"

"""Unknown verdicts: why, and what to do about them."""

from __future__ import annotations

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.tracer.model.findings import Unknown
from kvtrail.tracer.model.outcomes import MEANING, Outcome
from kvtrail.tracer.model.words import advice, count

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


def share(overview: Row) -> str:
    """The number of judgements that could not be made, in a line; empty if all could."""
    unknown = sum(overview["unknown"].values())
    if not unknown:
        return ""
    part = text.percent(unknown / max(unknown, overview["judgements"]))
    return f"{count(unknown)} of {count(overview['judgements'])} judgements ({part}) could not be made"


def rows(overview: Row) -> list[Row]:
    """A row for each reason, the most frequent first."""
    ordered = sorted(overview["unknown"].items(), key=lambda pair: -pair[1])
    return [
        {"Because": why, "Judgements": number, "What to do": todo}
        for name, number in ordered
        for why, todo in [reason(name)]
    ]

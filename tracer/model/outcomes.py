"""The words for the outcome of a request and for the impact of a finding; `liveness/request_outcome.py` chooses them."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a request. The values are part of the api."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"
    LOST = "lost"
    LOST_CONTACT = "lost_contact"
    RUNNING = "running"


MEANING = {
    Outcome.FINISHED: "It finished as its caller asked.",
    Outcome.ABORTED: "Its caller, or the engine as it was stopped, aborted it.",
    Outcome.FAILED: "A call of the connector about it raised, or vLLM finished it with an error.",
    Outcome.LOST: "It was open when its engine ended: its caller got no end.",
    Outcome.LOST_CONTACT: "It was open when contact with its engine was lost; its outcome is not known.",
    Outcome.RUNNING: "It has not ended.",
}
"""The meaning of each outcome."""


class Impact(StrEnum):
    """The impact of a finding, as far as it can be observed."""

    HEALED = "healed"
    NO_HARM = "no harm seen"
    NOT_KNOWN = "harm not known"
    """Its request continued, possibly with another request's KV: only the bytes would show it."""
    FAILED = "request failed"
    DIED = "engine died"
    LOST = "request lost"
    WRONG_KV = "wrong KV read"


HARM = (Impact.DIED, Impact.FAILED, Impact.LOST, Impact.WRONG_KV)

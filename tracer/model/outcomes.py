"""What became of a request, and what a finding did: what can be said once more is known than its own events."""

from __future__ import annotations

from enum import StrEnum

from kvtrail.tracer.events.semconv import UNHEARD
from kvtrail.tracer.model.launches import State

ABORTED, ERROR = "aborted", "error"
"""vLLM's own words for how a request finished."""


class Outcome(StrEnum):
    """What became of a request."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"
    LOST = "lost"
    UNHEARD = "unheard"
    RUNNING = "running"


class Did(StrEnum):
    """What a finding did, as far as it shows."""

    HEALED = "healed"
    NO_HARM = "no harm seen"
    FAILED = "request failed"
    DIED = "engine died"
    LOST = "request lost"
    WRONG_KV = "wrong KV read"


HARM = (Did.DIED, Did.FAILED, Did.LOST, Did.WRONG_KV)
ABOUT_BYTES = frozenset({"byte-drift", "byte-early", "byte-rot"})
_OF_OPEN = {
    State.DIED: Outcome.LOST,
    State.DRAINED: Outcome.LOST,
    State.REPLACED: Outcome.LOST,
    State.SILENT: Outcome.UNHEARD,
}


def outcome(status: str, ended: str | None, engine: State) -> Outcome:
    """What became of a request, by its account's `status` and `outcome`, and by how its engine is."""
    if status == "failed" or ended == ERROR:
        return Outcome.FAILED
    if status == "finished":
        return Outcome.ABORTED if ended == ABORTED else Outcome.FINISHED
    if status == "abandoned":
        return Outcome.UNHEARD if ended == UNHEARD and engine is State.SILENT else Outcome.LOST
    return _OF_OPEN.get(engine, Outcome.RUNNING)


def did(became: Outcome | None, *, rule: str, healed: int, count: int, is_cause: bool) -> Did:
    """What a finding did that was seen `count` times: the guard healed it, or it is what became of its request; or it is the
    cause of its engine's death. Without a request, or one that is not known any more, `became` is None. That wrong KV was
    read is seen by rules about bytes alone."""
    if healed >= count:
        return Did.HEALED
    if is_cause:
        return Did.DIED
    match became:
        case Outcome.FAILED:
            return Did.FAILED
        case Outcome.LOST:
            return Did.LOST
        case _:
            return Did.WRONG_KV if rule in ABOUT_BYTES else Did.NO_HARM

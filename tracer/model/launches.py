"""How the launches of engines went: whether one runs, has died, was drained, or is only not heard of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvtrail.tracer.events.semconv import NO_GOODBYE


class State(StrEnum):
    """What is known of an engine."""

    RUNNING = "running"
    SILENT = "silent"
    """Nothing was heard of it for a while, and nothing explains that."""
    DIED = "died"
    """An exception ended it, or it ended without a goodbye and requests were lost with it."""
    DRAINED = "drained"
    """It said goodbye and named no exception, or nothing was lost with it."""
    REPLACED = "replaced"
    """Nothing was heard of it any more, and another engine came in its place."""
    UNSEEN = "unseen"
    """It gives no signs of life and has none to give, or nobody hears it who could tell."""


FINAL = (State.DIED, State.DRAINED)
"""What an engine itself has said; no silence changes it."""


class DeathCause(StrEnum):
    """How an engine was lost."""

    EXCEPTION = "exception"
    KILLED = "killed"
    """Its process ended without a goodbye, and requests were lost with it."""
    LOST_CONTACT = "lost_contact"
    """It fell silent: it was killed with everything around it, or the network between is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The finding that a death is put down to: its id, its rule and title, and its request; empty if it has none."""

    id: str
    rule: str
    title: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of an engine. Times are Unix nanoseconds, by the engine's clock.

    Attributes:
        engine: vLLM's engine id.
        launch: what its recorders say of the launch; empty in an older vLLM, all of whose launches are one then.
        state: how it is, or how it ended.
        began_ns: the first that was heard of it.
        ended_ns: its last sign, once it has ended or is silent.
        ended_by: the exception that ended it, its class and the beginning of its text.
        lost: requests that were open when it ended, or whose blocks it kept for another engine.
        cause: of its death; None if nothing was found that might have caused it.
    """

    engine: str
    launch: str
    state: State
    began_ns: int
    ended_ns: int | None = None
    ended_by: str | None = None
    lost: int = 0
    cause: Cause | None = None

    @property
    def death(self) -> DeathCause | None:
        """How it was lost; None while it runs, and for an end that a rollout, a drain or a scale-down explains."""
        if self.state is State.SILENT:
            return DeathCause.LOST_CONTACT
        if self.state is not State.DIED:
            return None
        return DeathCause.KILLED if self.ended_by == NO_GOODBYE else DeathCause.EXCEPTION


_RANKS = (State.DIED, State.DRAINED, State.RUNNING, State.REPLACED, State.SILENT, State.UNSEEN)


def latest(launches: Iterable[Launch]) -> dict[str, Launch]:
    """By engine, its last launch."""
    last: dict[str, Launch] = {}
    for launch in sorted(launches, key=lambda each: each.began_ns):
        last[launch.engine] = launch
    return last


def agreed(told: Collection[Launch]) -> Launch:
    """What several tracers make of one launch: an end that the engine told itself, or else that somebody hears it."""
    return min(told, key=lambda each: (_RANKS.index(each.state), -(each.ended_ns or 0)))

"""Ends of hand-offs as facts, and their sums by the engines of a pair. Pure and bounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Event, Side

MAX_FLOWS = 1_000
"""Maximum number of remembered pairs of engines; beyond that the oldest is forgotten."""
NOBODY = ""
"""Placeholder for the taking engine if no taking request is known."""


class Outcome(StrEnum):
    """How a hand-off ended, on the side that reports the end."""

    READ = "read"
    """Giving engine: the blocks were freed because they had been read."""
    EXPIRED = "expired"
    """Giving engine: the lease expired."""
    FREED = "freed"
    """Giving engine: the blocks were freed for an unrecorded reason."""
    LOADED = "loaded"
    """Taking engine: the load succeeded."""
    FAILED = "failed"
    """Taking engine: the load failed."""
    NOT_LOADED = "not_loaded"
    """Taking engine: the request ended without a load: it was aborted, or needed none."""
    DECLINED = "declined"
    """Taking engine: the request was refused, or its client disconnected, before it was scheduled."""


OF_SIDE = {
    Side.GIVES: (Outcome.READ, Outcome.EXPIRED, Outcome.FREED),
    Side.TAKES: (Outcome.LOADED, Outcome.FAILED, Outcome.NOT_LOADED, Outcome.DECLINED),
}
"""The outcomes that each side decides."""


class HandedOver(NamedTuple):
    """A hand-off has ended on one side.

    Attributes:
        event: the event that ended it.
        side: the side of the event's engine.
        lasted_ns: giving engine: how long the blocks were kept; taking engine: the time since the
            request's arrival. By this engine's own clock.
    """

    event: Event
    side: Side
    outcome: Outcome
    lasted_ns: int


@dataclass(slots=True)
class Flow:
    """Sums of the hand-offs from one engine to another.

    Attributes:
        handoffs: number of taking requests, or of hand-offs that ended without one.
        tokens: their tokens.
        outcomes: the outcomes on both sides.
        waited_ns: total time from the arrival of the taking requests to the ends of their successful loads.
    """

    handoffs: int = 0
    tokens: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    waited_ns: int = 0

    @property
    def mean_wait_ns(self) -> int | None:
        """Mean time from the arrival of a taking request to the end of its load; None if none has loaded."""
        loaded = self.outcomes[Outcome.LOADED]
        return self.waited_ns // loaded if loaded else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data, with the outcomes that occurred."""
        return {
            "handoffs": self.handoffs,
            "tokens": self.tokens,
            "outcomes": {outcome.value: self.outcomes[outcome] for outcome in Outcome if self.outcomes[outcome]},
            "mean_wait_ns": self.mean_wait_ns,
        }


class Flows(BoundedDict[tuple[str, str], Flow]):
    """The sums by giving and taking engine; those of a new pair are 0. Another thread must iterate over a copy of the items,
    which `list` makes at once."""

    def __init__(self) -> None:
        super().__init__(MAX_FLOWS)

    def __missing__(self, engines: tuple[str, str]) -> Flow:
        flow = self[engines] = Flow()
        return flow

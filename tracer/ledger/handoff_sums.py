"""How hand-offs end, each end a fact, and their sums by the engines of a pair. Pure and bounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Event, Side

MAX_FLOWS = 1_000
"""Pairs of engines that are remembered; beyond that the oldest is forgotten."""
NOBODY = ""
"""In place of the engine that takes, where no request that takes the hand-off is known."""


class Outcome(StrEnum):
    """How a hand-off ended, on the side that says so."""

    READ = "read"
    """Of the engine that gives: the blocks were given back since they had been read."""
    EXPIRED = "expired"
    """The lease had run out."""
    FREED = "freed"
    """The blocks were given back, and it is not recorded why."""
    LOADED = "loaded"
    """Of the engine that takes: the load went well."""
    FAILED = "failed"
    """The load failed."""
    NOT_LOADED = "not_loaded"
    """The request ended without a load: it was aborted, or needed nothing."""
    DECLINED = "declined"
    """The request was refused, or its client left, before the engine could schedule it."""


OF_SIDE = {
    Side.GIVES: (Outcome.READ, Outcome.EXPIRED, Outcome.FREED),
    Side.TAKES: (Outcome.LOADED, Outcome.FAILED, Outcome.NOT_LOADED, Outcome.DECLINED),
}
"""The outcomes that each side decides."""


class HandedOver(NamedTuple):
    """A hand-off has ended on one side.

    Attributes:
        event: what ended it.
        side: that of the engine of the event.
        lasted_ns: of the engine that gives, how long the blocks were kept; of the one that takes, the time from the
            request's arrival. By this engine's own clock.
    """

    event: Event
    side: Side
    outcome: Outcome
    lasted_ns: int


@dataclass(slots=True)
class Flow:
    """What one engine has handed over to another.

    Attributes:
        handoffs: requests that take, or, where nobody does, hand-offs that ended so.
        tokens: of those.
        outcomes: of both sides.
        waited_ns: from the arrival of the requests that take to the ends of their loads, those that went well.
    """

    handoffs: int = 0
    tokens: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    waited_ns: int = 0

    @property
    def mean_wait_ns(self) -> int | None:
        """From the arrival of a request that takes to the end of its load; None where none has loaded."""
        loaded = self.outcomes[Outcome.LOADED]
        return self.waited_ns // loaded if loaded else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data; of the outcomes those that occurred."""
        return {
            "handoffs": self.handoffs,
            "tokens": self.tokens,
            "outcomes": {outcome.value: self.outcomes[outcome] for outcome in Outcome if self.outcomes[outcome]},
            "mean_wait_ns": self.mean_wait_ns,
        }


class Flows:
    """The sums by the engine that gives and the one that takes."""

    def __init__(self) -> None:
        self._flows: BoundedDict[tuple[str, str], Flow] = BoundedDict(MAX_FLOWS)

    def of(self, giver: str, taker: str) -> Flow:
        """The sums of a pair of engines."""
        flow = self._flows.get((giver, taker))
        if flow is None:
            flow = self._flows[giver, taker] = Flow()
        return flow

    def known(self) -> list[tuple[tuple[str, str], Flow]]:
        """All of them. Another thread than the one that enters may ask."""
        return list(self._flows.items())  # a copy in one go

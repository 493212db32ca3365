"""What another engine has handed over to a request, as the request's own parameters say. Pure.

What that engine says itself may be heard later, or never: no cause depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from kvtrail.tracer.causes.cache_model import BlockChange
from kvtrail.tracer.events.events import Handoff
from kvtrail.tracer.model.causes import PEER, Part


class HandedOver(Struct, frozen=True, gc=False):
    """A hand-off, as the request that takes it received it.

    Attributes:
        fact: the event that shows it.
        epoch: the request's epoch then: what was handed over is read once.
        tokens: of the prompt, those with KV that is handed over; None where that is not said.
        engine: the engine that gives; empty where it is not named.
    """

    fact: BlockChange
    epoch: int
    tokens: int | None
    engine: str

    @classmethod
    def by(cls, event: Handoff, fact: BlockChange) -> HandedOver:
        """The hand-off of an event. What has no name is kept by nobody, so nothing is handed over."""
        tokens = event.handoff_tokens if event.handoff_keys else 0
        return cls(fact, event.epoch, tokens, event.handoff_peer or "")


def named(parts: Iterable[Part], handed: HandedOver) -> list[Part]:
    """The parts, those of the hand-off with the engine that gives."""
    return [
        replace(part, detail=replace(part.detail, engine=handed.engine))
        if part.tier == PEER and handed.engine
        else part
        for part in parts
    ]

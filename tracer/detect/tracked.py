"""The detector's records of requests and recorders, each with its waiting events."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtrail.tracer.causes.causes import Causes
from kvtrail.tracer.events.events import Event, RequestStart
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.ordering import Stream
from kvtrail.tracer.rules.rule import Pending
from kvtrail.tracer.rules.rule_set import Tally

Key = tuple[str, str]
"""A request: its engine and its id."""


@dataclass(slots=True)
class TrackedRequest:
    """A request.

    Attributes:
        account: the account of the current request with this id; an id may be reused.
        launch: the launch of the engine that the request belongs to.
        streams: its events, by recorder.
        past: recorders and launches of earlier requests with this id; their events are too late.
        checked: whether any fact was checked.
        broken: whether a rule failed.
        waits_ns: the time since which it may be waiting, by its recorder's clock; 0 if it does not wait.
    """

    account: Account
    launch: str | None
    streams: dict[str, Stream] = field(default_factory=dict)
    past: frozenset[str | None] = frozenset()
    checked: bool = False
    broken: bool = False
    waits_ns: int = 0

    def is_past(self, event: Event) -> bool:
        """Whether the event belongs to an earlier request with the same id."""
        return event.recorder in self.past or event.launch in self.past

    def is_over_by(self, event: Event) -> bool:
        """Whether the event belongs to another request with the same id, in another launch of the engine."""
        known = self.account.recorder
        return event.launch != self.launch or (isinstance(event, RequestStart) and known not in ("", event.recorder))


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of a request, and the tally of the deadline rule that found it."""

    tally: Tally
    pending: Pending


@dataclass(slots=True)
class TrackedRecorder:
    """A recorder.

    Attributes:
        engine: the state of the engine from its events.
        causes: why tokens of its requests were hits or misses.
        order: its events.
        waiting: requests that may be waiting, the longest first.
        closed_at_ns: arrival of its last heartbeat, if it has ended.
        asked_later: early events, each with a wait of its request at that time.
    """

    engine: Engine
    causes: Causes = field(default_factory=Causes)
    order: Stream = field(default_factory=Stream)
    waiting: dict[Key, None] = field(default_factory=dict)
    closed_at_ns: int = 0
    asked_later: list[tuple[Event, Wait]] = field(default_factory=list)

"""The lives of the requests of an engine: each with its events, its account after them, and its phases. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from kvtrail.tracer.events.events import Event, RequestStart
from kvtrail.tracer.events.semconv import ROOTS
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.phases import Phase


@dataclass(slots=True)
class Life:
    """A request, from its arrival to its end: its account, and the events that were applied to it, in order."""

    account: Account
    events: list[Event] = field(default_factory=list)

    @property
    def start_ns(self) -> int:
        return min(event.start_ns for event in self.events)

    @property
    def end_ns(self) -> int:
        return max(event.end_ns for event in self.events)

    def phases(self) -> list[tuple[int, int, Phase]]:
        """(from, to, phase) in order of time, in Unix nanoseconds, without empty ones and without what follows its end."""
        changes = [*self.account.phases.changes(), (self.end_ns, Phase.DONE)]
        return [
            (begins_ns, until_ns, phase)
            for (begins_ns, phase), (until_ns, _) in pairwise(changes)
            if begins_ns < until_ns and phase is not Phase.DONE
        ]


def lives(events: Iterable[Event]) -> list[Life]:
    """The requests of one engine that these events are of, in order. An id that is used again is another request."""
    found: list[Life] = []
    latest: dict[str, Life] = {}
    ended: set[str] = set()
    for event in events:
        id_ = event.request
        if id_ is None:
            continue
        if id_ not in latest or (id_ in ended and isinstance(event, RequestStart)):
            latest[id_] = Life(Account(event.engine, id_))
            found.append(latest[id_])
            ended.discard(id_)
        life = latest[id_]
        life.events.append(event)
        if (fact := life.account.apply(event)) is not None:
            life.account.phases.enter(fact)
        if event.kind in ROOTS:
            ended.add(id_)
    return found

"""How the transfers of an engine's connectors get on: which is next, and how much they have to load. Pure.

A load that has been open for long is not stuck while its connector is busy with others: many do their transfers one after the
other, or share their bandwidth. So a rule counts from the last end of a transfer that began before the load or with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Alloc, Event

BURST_NS = 10 * 10**9
"""Transfers that begin within this time begin together."""
MAX_ENDED = 512
"""Transfers remembered after their end."""
MAX_LOADS = 4096
"""Asynchronous loads remembered: those with lost ends are forgotten first."""


@dataclass(slots=True)
class TransferFlow:
    """The transfers of one engine. Unlike those of `Engine`, its open loads are kept where events are missing: too many of
    them, and too many ends, make a rule more patient, too few would accuse."""

    _loads: dict[str, Alloc] = field(default_factory=dict)
    """Asynchronous loads without a known end, by request."""
    _ended: deque[tuple[Event | None, Event]] = field(default_factory=lambda: deque(maxlen=MAX_ENDED))
    """The latest ends of transfers, and what began each; None where that is not known."""
    _resumed: Event | None = None
    """The first event after the last missing ones."""

    def lose(self, before: Event) -> None:
        """Events are missing before this one; any of them may have been an end."""
        self._resumed = before

    def loads(self, alloc: Alloc) -> None:
        """An asynchronous load has begun."""
        self._loads[alloc.request or ""] = alloc
        if len(self._loads) > MAX_LOADS:
            del self._loads[next(iter(self._loads))]

    def received(self, event: Event) -> None:
        """The load of the event's request has ended."""
        self.ended(self._loads.pop(event.request or "", None), event)

    def ended(self, began: Event | None, event: Event) -> None:
        """A transfer has ended that an event began."""
        self._ended.append((began, event))

    def loading(self, connector_id: str) -> int:
        """The tokens of a connector's asynchronous loads that are open."""
        return sum(load.allocated for load in self._loads.values() if load.connector_id == connector_id)

    def turn(self, event: Event, *, by_number: int) -> Event:
        """When it was the turn of an event's connector to do what it began with it, by the event of a number: at once, or at
        the last end of a transfer that had begun before or with it. Where events are missing, the last of these may have been
        such an end."""
        resumed = self._resumed
        latest = resumed if resumed is not None and event.sequence < resumed.sequence <= by_number else event
        for began, ended in reversed(self._ended):
            if ended.sequence < latest.sequence:
                break
            if ended.sequence <= by_number and ended.request != event.request and _may_delay(began, event):
                return ended
        return latest


def _may_delay(began: Event | None, event: Event) -> bool:
    """Whether a transfer may have been before another one in its connector's queue, or beside it."""
    if began is None:
        return True
    return began.connector_id == event.connector_id and began.end_ns <= event.end_ns + BURST_NS

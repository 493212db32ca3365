"""Callers that gave up while their requests waited for a connector: each too soon for a deadline, all of them not. Pure.

It follows the requests of a connector together, in the order of their engine, in which no account is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvtrail.tracer.events.events import Alloc, Event, Lookup, RequestEnd

ABORTED = "aborted"
"""The outcome of a request that its caller ended."""
ASKED_AGAIN_NS = 5 * 10**9
"""A request was still being deferred if it was asked again so soon before its end."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Consecutive requests that were given up while they waited for one connector, which has ended nobody's waiting since.

    Attributes:
        first: when the first of them began to wait.
        last: the end of the latest.
        count: how many there are.
        waited_ns: how long the connector is known to have done nothing since the first began to wait.
        counted_ns: how much of it counts.
    """

    first: Event
    last: RequestEnd
    count: int
    waited_ns: int = 0
    counted_ns: int = 0


@dataclass(slots=True)
class GivenUps:
    """Follows who waits for each connector of an engine, and who gave up.

    Attributes:
        rows: by connector.
    """

    rows: dict[str, GivenUp] = field(default_factory=dict)
    _deferred: dict[str, tuple[Lookup, Lookup]] = field(default_factory=dict)
    """The first and the last of a row of answers 'ask me later' that goes on, by request."""

    def lose(self) -> None:
        """Events are missing, and any of them may have ended somebody's waiting."""
        self._deferred.clear()
        self.rows.clear()

    def enter_lookup(self, event: Lookup) -> None:
        """Note an answer of a connector."""
        request = event.request or ""
        if event.returned is None and event.error is None:
            first, _ = self._deferred.get(request, (event, event))
            self._deferred[request] = (first, event)
        elif self._deferred.pop(request, None) is not None:
            self.rows.pop(event.connector_id, None)

    def enter_received(self) -> None:
        """Note the end of a load; a MultiConnector reports it to all its children."""
        self.rows.clear()

    def enter_end(self, event: RequestEnd) -> None:
        """Note the end of a request."""
        self._deferred.pop(event.request or "", None)

    def since(self, event: RequestEnd, load: Alloc | None) -> tuple[Event | None, Lookup | None]:
        """Since when a request waits for a connector that its caller ends, and, where it is deferred, when the connector was
        asked last; None if it does not wait. `load` is its asynchronous load, if one is open."""
        if event.outcome != ABORTED:
            return None, None
        return (load, None) if load is not None else self._deferred.get(event.request or "", (None, None))

    def with_end(self, since: Event, event: RequestEnd) -> GivenUp:
        """The row that the end of a request is the latest of, which waited since an event."""
        row = self.rows.get(since.connector_id)
        return GivenUp(since, event, 1) if row is None else replace(row, last=event, count=row.count + 1)

"""Names idle requests in heartbeats, so that a lost event does not make their state unknown forever."""

from __future__ import annotations

from collections.abc import Mapping

MAX_NAMED = 64
"""Maximum number of requests named in one heartbeat; the omitted ones come first in the next."""
Idle = tuple[tuple[str, ...], tuple[int, ...]]
"""Ids of requests, with their number of events."""


class IdleRequests:
    """Remembers which requests had an event since the last heartbeat."""

    def __init__(self) -> None:
        self._before: Mapping[str, int] = {}
        self._named: dict[str, None] = {}
        """Requests named since the round began."""

    def select(self, events: Mapping[str, int]) -> Idle | None:
        """The requests that the next heartbeat names, from the number of events of each."""
        before, self._before = self._before, events
        idle = [name for name, count in events.items() if before.get(name) == count]
        due = [name for name in idle if name not in self._named]
        if len(due) < min(MAX_NAMED, len(idle)):  # the round ends here
            self._named.clear()
            due += [name for name in idle if name not in due]
        named = due[:MAX_NAMED]
        self._named.update(dict.fromkeys(named))
        return (tuple(named), tuple(events[name] for name in named)) if named else None

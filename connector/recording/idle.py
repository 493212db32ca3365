"""Requests of which nothing happens, named in signs of life: so that no loss makes unknown for ever what they wait for."""

from __future__ import annotations

from collections.abc import Mapping

MOST = 64
"""Requests named in one sign of life; those that are left out come first in the next."""
Idle = tuple[tuple[str, ...], tuple[int, ...]]
"""Ids of requests, and how many events each has had."""


class IdleRequests:
    """Remembers which requests had an event since the last sign of life."""

    def __init__(self) -> None:
        self._before: Mapping[str, int] = {}
        self._named: dict[str, None] = {}
        """Named since the round began."""

    def told(self, events: Mapping[str, int]) -> Idle | None:
        """What the next sign of life says, if these requests are there and have had so many events."""
        before, self._before = self._before, events
        idle = [name for name, count in events.items() if before.get(name) == count]
        due = [name for name in idle if name not in self._named]
        if len(due) < min(MOST, len(idle)):  # the round ends here
            self._named.clear()
            due += [name for name in idle if name not in due]
        named = due[:MOST]
        self._named.update(dict.fromkeys(named))
        return (tuple(named), tuple(events[name] for name in named)) if named else None

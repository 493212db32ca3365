"""Messages between two engines, for probes: events in order. The request of some events is named later.

An engine may be asked for a hand-off before it has the request, by the name that both engines use for it (`transfer_id`,
`kv_request_id`). The event then waits until the probe names the request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from threading import Lock
from typing import Any

from kvtrail.connector.known.probe import MAX_PENDING, ProbeEvent
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.semconv import Kind

MAX_NAMED = 65_536
"""Maximum number of hand-offs with a remembered request."""
MAX_UNNAMED = 4_096
"""Maximum number of hand-offs whose request is not yet known. Beyond it, the requests of the oldest stay unknown."""
MAX_WAITING = 64
"""Maximum number of events that wait for one name."""


class Messages:
    """Events in the order in which they were seen, until the probe is asked for them. Connectors' threads may add events."""

    def __init__(self) -> None:
        self._seen: deque[ProbeEvent] = deque(maxlen=MAX_PENDING)
        self._requests: BoundedDict[str, str] = BoundedDict(MAX_NAMED)
        self._unnamed: BoundedDict[str, list[ProbeEvent]] = BoundedDict(
            MAX_UNNAMED, on_drop=lambda _, events: self._seen.extend(events)
        )
        self._failure: Exception | None = None
        """The error that prevented an event from being noted."""
        self._lock = Lock()

    def __bool__(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._seen) or self._failure is not None

    def take(self) -> list[ProbeEvent]:
        """The events since the last call.

        Raises:
            Exception: one of them could not be noted.
        """
        if not self:
            return []
        failure, self._failure = self._failure, None
        with self._lock:
            seen = list(self._seen)
            self._seen.clear()
        if failure is not None:
            raise failure
        return seen

    def name(self, key: str, request_id: str) -> None:
        """Assign the hand-off that both engines call `key` to this request."""
        with self._lock:
            self._requests[key] = request_id
            self._seen.extend(each._replace(request_id=request_id) for each in self._unnamed.pop(key, ()))

    def note(self, kind: Kind, request_id: str | None, **values: Any) -> None:
        """Note an event of a request, or of none."""
        with self._lock:
            self._seen.append(ProbeEvent.of(kind, request_id, **values))

    def note_of(self, key: str, kind: Kind, **values: Any) -> None:
        """Note an event of a hand-off's request."""
        with self._lock:
            event = ProbeEvent.of(kind, self._requests.get(key), **values)
            if event.request_id is not None:
                self._seen.append(event)
                return
            waiting = self._unnamed.get(key)
            if waiting is None:
                self._unnamed[key] = waiting = []
            if len(waiting) < MAX_WAITING:
                waiting.append(event)

    def give_up(self, key: str) -> None:
        """Note that the request of this hand-off will never be named."""
        with self._lock:
            self._seen.extend(self._unnamed.pop(key, ()))

    def failed(self, error: Exception) -> None:
        """Note that an event could not be noted and is missing."""
        self._failure = error


def blocks_of_both(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The values of a `kv.xfer` that name the blocks of both engines, by KV cache group. Empty if they do not correspond
    block by block, as with padding of recurrent states."""
    if [len(group) for group in ours] != [len(group) for group in theirs]:
        return {}
    return {
        "blocks_ids": tuple(map(int, chain.from_iterable(ours))),
        "blocks_by_group": tuple(map(len, ours)) if len(ours) > 1 else None,
        "peer_blocks_ids": tuple(map(int, chain.from_iterable(theirs))),
    }

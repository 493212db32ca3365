"""The requests of a recording, each with its events from its start to its end.

The events are sorted, but not judged: a re-drive needs them as they were, even those of requests with incomplete accounts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Event, Lookup, RequestEnd, RequestStart
from kvtrail.tracer.events.hash_chains import Chain, Chains

UNKNOWN_OUTPUT = 16
"""Number of tokens that a request generates if the recording does not contain it."""


@dataclass(slots=True)
class RecordedRequest:
    """A request of a recording.

    Attributes:
        id: the engine's, with a suffix `~2`, `~3` if it had been used before.
        events: all of its events, in order.
        start, end: its start and its end; None if not recorded.
        lookups: its lookups, in order.
        chain: the hashes of its full blocks, with output.
    """

    id: str
    events: list[Event] = field(default_factory=list)
    start: RequestStart | None = None
    end: RequestEnd | None = None
    lookups: list[Lookup] = field(default_factory=list)
    chain: Chain = field(default_factory=Chain)

    @property
    def length(self) -> int:
        """Number of tokens of its prompt; 1 if not recorded."""
        first = self.lookups[0] if self.lookups else None
        known = (self.start.total if self.start else None, first.total if first else None, 1)
        return next(total for total in known if total is not None)

    @property
    def max_tokens(self) -> int:
        """Number of tokens that it generates."""
        if self.end is not None and self.end.output and self.end.outcome != "aborted":
            return self.end.output
        return (self.start and self.start.limit) or UNKNOWN_OUTPUT

    @property
    def hashes(self) -> tuple[str, ...] | None:
        """The hashes of its full blocks, with output, in hexadecimal digits; None if they are not recorded."""
        if self.chain.is_whole:
            return tuple(each.hex() for each in self.chain.hashes)
        short = self.length < ((self.start and self.start.block_size) or 1)
        return () if short else None


def recorded_requests(events: Iterable[Event]) -> dict[str, RecordedRequest]:
    """The requests by id, in the order of their first events."""
    requests: dict[str, RecordedRequest] = {}
    latest: dict[str, RecordedRequest] = {}
    used: Counter[str] = Counter()
    chains: defaultdict[str, Chains] = defaultdict(Chains)
    for event in events:
        if event.request is None:
            continue
        request = latest.get(event.request)
        if request is None or (isinstance(event, RequestStart) and request.end is not None):
            request = RecordedRequest(use(event.request, used))
            requests[request.id] = latest[event.request] = request
        request.events.append(event)
        if isinstance(event, RequestStart | Lookup | RequestEnd):
            chains[event.engine].add(request.chain, event)
        match event:
            case RequestStart() if request.start is None:  # each child of a MultiConnector records it
                request.start = event
            case RequestEnd() if request.end is None:
                request.end = event
            case Lookup():
                request.lookups.append(event)
    return requests


def use(request_id: str, used: Counter[str]) -> str:
    """A unique name for a request with this id; `used` counts the uses of each id."""
    used[request_id] += 1
    return request_id if used[request_id] == 1 else f"{request_id}~{used[request_id]}"

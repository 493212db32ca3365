"""The transfers of an engine's connectors: whether they still end, which one is next, and the amount to be loaded. Pure.

A load that has been open for long is not stuck while its connector is busy with others: many connectors run transfers one
after the other, or share their bandwidth. So a rule counts from the last end of a transfer that began no later than the load.
If a thread of the connector has died, none of its transfers ends any more: several are open, and no end is reported although
the scheduler makes steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Alloc, Event, Heartbeat, Job, StorePlan
from kvtrail.tracer.ledger.recorder_clocks import SIGN_NS, SILENCE_NS

SEVERAL = 3
"""Minimum numbers of ended and of open transfers before missing ends are counted."""


@dataclass(slots=True)
class TransferEnds:
    """The transfers of one connector in one direction.

    Attributes:
        open: the open transfers, by number or request, the oldest first.
        writes: the open store that writes a chunk, by key.
        ended: number of ended transfers.
        longest_ns: the longest duration of an ended transfer.
        last: the latest end.
        missed_ns: recorded time with steps and several open transfers, since the latest end.
        steps: the scheduler's steps in that time.
    """

    open: dict[Job | str, Event] = field(default_factory=dict)
    writes: dict[str, StorePlan] = field(default_factory=dict)
    ended: int = 0
    longest_ns: int = 0
    last: Event | None = None
    missed_ns: int = 0
    steps: int = 0

    def begin(self, key: Job | str, event: Event) -> None:
        """Enter a transfer that has begun. An open transfer with the same key is dropped."""
        self._close(key)
        self.open[key] = event
        if isinstance(event, StorePlan) and not event.chunk_present:
            self.writes.update(dict.fromkeys(event.chunk_keys or (), event))

    def end(self, key: Job | str, event: Event, took_ns: int) -> None:
        """Enter the end of a transfer, whether it succeeded or failed."""
        if not self._close(key):
            return
        self.ended += 1
        self.longest_ns = max(self.longest_ns, took_ns)
        self.last, self.missed_ns, self.steps = event, 0, 0

    def forget(self, request: str | None = None) -> None:
        """Stop expecting the ends of a request's transfers, or of all transfers without a request: they may have been
        dropped."""
        for key in [key for key, event in self.open.items() if request is None or event.request == request]:
            self._close(key)
        if len(self.open) < SEVERAL:
            self.missed_ns = self.steps = 0

    def pass_time(self, before: Heartbeat, beat: Heartbeat) -> None:
        """Add the time between two consecutive heartbeats. Time without a scheduler step does not count, because the
        connector was not asked then."""
        steps = (beat.scheduler_step or 0) - (before.scheduler_step or 0)
        if steps <= 0 or len(self.open) < SEVERAL:
            return
        passed_ns = beat.end_ns - before.end_ns
        self.missed_ns += passed_ns if 0 <= passed_ns <= SILENCE_NS else SIGN_NS
        self.steps += steps

    def _close(self, key: Job | str) -> bool:
        """Returns whether the transfer was open."""
        began = self.open.pop(key, None)
        if isinstance(began, StorePlan):
            for chunk in began.chunk_keys or ():
                if self.writes.get(chunk) is began:
                    del self.writes[chunk]
        return began is not None


BURST_NS = 10 * 10**9
"""Transfers that begin within this time begin together."""
MAX_ENDED = 512
"""Maximum number of transfers remembered after their end."""
MAX_LOADS = 4096
"""Maximum number of remembered asynchronous loads: loads with lost ends are forgotten first."""


@dataclass(slots=True)
class TransferFlow:
    """The transfers of one engine. Unlike those of `Engine`, its open loads are kept if events are missing: too many of them,
    and too many ends, delay a finding; too few would cause a wrong one."""

    _loads: dict[str, Alloc] = field(default_factory=dict)
    """Asynchronous loads without a known end, by request."""
    _ended: deque[tuple[Event | None, Event]] = field(default_factory=lambda: deque(maxlen=MAX_ENDED))
    """The latest ends of transfers, and the event that began each; None if unknown."""
    _resumed: Event | None = None
    """The first event after the last missing ones."""

    def mark_gap(self, before: Event) -> None:
        """Note that events are missing before this one; any of them may have been an end."""
        self._resumed = before

    def loads(self, alloc: Alloc) -> None:
        """Enter the start of an asynchronous load."""
        self._loads[alloc.request or ""] = alloc
        if len(self._loads) > MAX_LOADS:
            del self._loads[next(iter(self._loads))]

    def received(self, event: Event) -> None:
        """Enter the end of the load of the event's request."""
        self.ended(self._loads.pop(event.request or "", None), event)

    def ended(self, began: Event | None, event: Event) -> None:
        """Enter the end of a transfer that an event began."""
        self._ended.append((began, event))

    def loading(self, connector_id: str) -> int:
        """The tokens of a connector's open asynchronous loads."""
        return sum(load.allocated for load in self._loads.values() if load.connector_id == connector_id)

    def turn(self, event: Event, *, by_number: int) -> Event:
        """When an event's transfer was next in its connector's queue, as of the event with a number: at once, or at the last
        end of a transfer that began no later. If events are missing, the last of them may have been such an end."""
        resumed = self._resumed
        latest = resumed if resumed is not None and event.sequence < resumed.sequence <= by_number else event
        for began, ended in reversed(self._ended):
            if ended.sequence < latest.sequence:
                break
            if ended.sequence <= by_number and ended.request != event.request and _may_delay(began, event):
                return ended
        return latest


def _may_delay(began: Event | None, event: Event) -> bool:
    """Whether a transfer may have been ahead of another one in its connector's queue, or concurrent with it."""
    if began is None:
        return True
    return began.connector_id == event.connector_id and began.end_ns <= event.end_ns + BURST_NS

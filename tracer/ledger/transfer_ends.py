"""Whether the transfers of a connector still end, one direction at a time. Pure.

A single transfer that takes long says little. A thread of the connector that has died ends none of them any more: several are
open, the scheduler makes steps, in which ends are reported, and not one comes. It follows transfers, not requests: those of a
connector in one direction, whoever's they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Event, Heartbeat, Job, StorePlan
from kvtrail.tracer.ledger.recorded_time import SIGN_NS, SILENCE_NS

SEVERAL = 3
"""How many transfers must have ended before, and how many must be open, before their ends are missed."""


@dataclass(slots=True)
class TransferEnds:
    """The transfers of one connector in one direction.

    Attributes:
        open: those that have begun and not ended, by number or request, the oldest first.
        writes: the open store that writes a chunk, by key.
        ended: how many have ended.
        longest_ns: the longest time that one of them took.
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
        """A transfer has begun; one that had its number is given up."""
        self._close(key)
        self.open[key] = event
        if isinstance(event, StorePlan) and not event.chunk_present:
            self.writes.update(dict.fromkeys(event.chunk_keys or (), event))

    def end(self, key: Job | str, event: Event, took_ns: int) -> None:
        """A transfer has ended, well or not."""
        if not self._close(key):
            return
        self.ended += 1
        self.longest_ns = max(self.longest_ns, took_ns)
        self.last, self.missed_ns, self.steps = event, 0, 0

    def forget(self, request: str | None = None) -> None:
        """Nothing is expected any more of a request's transfers, or of any: their ends may be dropped."""
        for key in [key for key, event in self.open.items() if request is None or event.request == request]:
            self._close(key)
        if len(self.open) < SEVERAL:
            self.missed_ns = self.steps = 0

    def pass_time(self, before: Heartbeat, beat: Heartbeat) -> None:
        """Two consecutive heartbeats tell the scheduler's steps between them. Time without a step does not count: nobody
        asked the connector then."""
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

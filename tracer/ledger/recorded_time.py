"""A recorder's own time: how long something has taken, as its events and heartbeats say. Pure.

Deadlines are judged in this time and in no other. It advances with the recorder's events only, so nobody is stuck while a
recorder is silent; and a jump of its host's clock is no time that has passed.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Event, Heartbeat

SILENCE_NS = 15 * 10**9
"""A recorder gives a heartbeat every 5 seconds. A longer time without any event is silence, or a jump of the clock."""
SIGN_NS = 5 * 10**9
"""What such a silence counts for."""
BACK_NS = 10**9
"""By so much may the times of consecutive events go back; beyond it the clock was set back."""
MAX_JUMPS = 1000
"""Jumps remembered per recorder; the oldest are forgotten first."""


@dataclass(slots=True)
class RecordedTime:
    """The time of one recorder. Its events enter in the order of their numbers.

    Attributes:
        now_ns: the time of its latest event.
        number: the number of its last event.
    """

    now_ns: int = 0
    number: int = -1
    _clock_ns: int = 0
    """What its host's clock said at the latest event."""
    _gives_signs: bool = False
    """Whether the recorder has given one, or declares what only kvtrail's recorders do."""
    _now_off_ns: int = 0
    """By how much its host's clock is off now."""
    _from: list[int] = field(default_factory=list)
    """Numbers from which on its host's clock is off by more than before, and by how much in all."""
    _off_ns: list[int] = field(default_factory=list)

    def enter(self, event: Event) -> None:
        """Note the recorder's next event."""
        if not self._gives_signs:
            self._gives_signs = event.capabilities is not None or event.kind is Heartbeat.kind
        at_ns, clock_ns = event.end_ns, self._clock_ns
        if not -BACK_NS <= at_ns - clock_ns <= SILENCE_NS:
            self._jump(event, at_ns - clock_ns)
        if at_ns > clock_ns:
            self._clock_ns = at_ns
        self.number = event.sequence
        now_ns = at_ns - self._now_off_ns
        if now_ns > self.now_ns:
            self.now_ns = now_ns

    def of(self, event: Event) -> int:
        """The time of one of the events that have entered, in the nanoseconds of `now_ns`."""
        place = bisect_right(self._from, event.sequence) - 1 if self._from else -1
        return event.end_ns - (self._off_ns[place] if place >= 0 else 0)

    def _jump(self, event: Event, passed_ns: int) -> None:
        """The clock says that a long time has passed, or less than none. A history without heartbeats, such as a log, has
        nothing but its clock."""
        if self.number < 0 or (passed_ns > 0 and not self._gives_signs):
            return
        self._now_off_ns += passed_ns - SIGN_NS if passed_ns > 0 else passed_ns
        self._from.append(event.sequence)
        self._off_ns.append(self._now_off_ns)
        del self._from[:-MAX_JUMPS], self._off_ns[:-MAX_JUMPS]
        self._clock_ns = event.end_ns

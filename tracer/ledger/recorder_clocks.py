"""The clocks of a recorder: its own time, and the part of it that deadline rules count. Pure.

Time advances only with the recorder's events, so no deadline passes while a recorder sends nothing, and a jump of its host's
clock does not count. A deadline runs only while the awaited event is possible: on a busy engine, a request waits for a slot
as long as others run, and the end of a transfer is read only in a step.

A recorder that observes vLLM's scheduler reports its time with spare capacity (`Heartbeat.scheduler_spare_ns`). For any
other, such as a log or an older one, time counts only if the engine was idle: no request ran, none loaded, and none held
blocks after its end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Alloc, Event, Heartbeat, RequestEnd
from kvtrail.tracer.events.semconv import Kind

SILENCE_NS = 15 * 10**9
"""A recorder sends a heartbeat every 5 seconds. A longer time without any event is an outage, or a jump of the clock."""
SIGN_NS = 5 * 10**9
"""The counted time of such a gap."""
BACK_NS = 10**9
"""Maximum decrease between the times of consecutive events; a larger one means that the clock was set back."""
MAX_JUMPS = 1000
"""Maximum number of jumps remembered per recorder; the oldest are forgotten first."""


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
    """The host clock's time at the latest event."""
    _gives_signs: bool = False
    """Whether the recorder has sent a heartbeat, or declares properties that only kvtrail's recorders have."""
    _now_off_ns: int = 0
    """The current offset of its host's clock."""
    _from: list[int] = field(default_factory=list)
    """Event numbers from which its host's clock has a new total offset, with the offset."""
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
        """The time of an entered event, in the nanoseconds of `now_ns`."""
        place = bisect_right(self._from, event.sequence) - 1 if self._from else -1
        return event.end_ns - (self._off_ns[place] if place >= 0 else 0)

    def _jump(self, event: Event, passed_ns: int) -> None:
        """Handle a large or negative advance of the clock. A history without heartbeats, such as a log, has only its
        clock."""
        if self.number < 0 or (passed_ns > 0 and not self._gives_signs):
            return
        self._now_off_ns += passed_ns - SIGN_NS if passed_ns > 0 else passed_ns
        self._from.append(event.sequence)
        self._off_ns.append(self._now_off_ns)
        del self._from[:-MAX_JUMPS], self._off_ns[:-MAX_JUMPS]
        self._clock_ns = event.end_ns


BEAT_NS = 5 * 10**9
"""The interval between heartbeats, and between updates of the clocks if there are no heartbeats."""
HOLDS_NS = 660 * 10**9
"""Time after which an open load, or blocks held after the end, no longer make the engine busy: there is a finding by then."""
MAX_MOMENTS = 4096
"""Number of remembered points of each clock: the last hours."""


class CountedTime:
    """The counted part of a recorder's time: a sum that is known at some points; the latest ones are remembered."""

    __slots__ = ("_at_ns", "_sums_ns")

    def __init__(self) -> None:
        self._at_ns, self._sums_ns = array("q"), array("q")

    def add(self, from_ns: int, until_ns: int, counted_ns: int) -> None:
        """Add `counted_ns` for the time from `from_ns`, the end of the last addition, to `until_ns`."""
        at, sums = self._at_ns, self._sums_ns
        if not at:
            at.append(from_ns)
            sums.append(0)
        at.append(until_ns)
        sums.append(sums[-1] + counted_ns)
        if len(at) > MAX_MOMENTS:
            del at[: MAX_MOMENTS // 2], sums[: MAX_MOMENTS // 2]

    def between(self, from_ns: int, until_ns: int) -> int:
        """The counted time between two moments, as known at the later one, so that the answer never changes. For times long
        ago, the result may be too low."""
        at, sums = self._at_ns, self._sums_ns
        last, first = bisect_right(at, until_ns) - 1, bisect_left(at, from_ns)
        if last < first or not at:
            return 0
        before = sums[first]
        if first and at[first] > from_ns:  # linear in between
            part = (at[first] - from_ns) / (at[first] - at[first - 1])
            before -= int(part * (sums[first] - sums[first - 1]))
        return sums[last] - before


@dataclass(slots=True)
class DeadlineClocks:
    """The time in which the scheduler of one recorder could have acted for waiting requests. Its events enter in order.

    Attributes:
        spare: time in which it could have admitted one more request, or run one with a received load.
        stepping: time in which it made steps, or was not paused: ends of transfers are reported in steps.
        running: the known running requests.
        is_paused: whether it was paused at its last heartbeat, for example for an update of the weights.
        is_known: whether all running and loading requests are known: no event is missing, and no request is omitted.
    """

    spare: CountedTime = field(default_factory=CountedTime)
    stepping: CountedTime = field(default_factory=CountedTime)
    running: set[str] = field(default_factory=set)
    is_paused: bool = False
    is_known: bool = True
    _is_idle: bool = False
    """Whether nothing runs, loads, or holds blocks after its end."""
    _idle_ns: int = 0
    """The idle time since the last addition."""
    _now_ns: int = 0
    _added_ns: int = 0
    """The time of the last addition."""
    _has_heartbeats: bool = False
    _steps: int | None = None
    _spare_ns: int | None = None
    """The recorder's last report."""

    def mark_gap(self) -> None:
        """Note that events are missing: the running and loading requests are unknown."""
        self.running.clear()
        self.is_known = False

    def enter(self, event: Event, now_ns: int, loads: Mapping[str, Alloc], kept: Mapping[str, RequestEnd]) -> None:
        """Note the recorder's next event, and the asynchronous loads and kept blocks that are open after it."""
        kind = event.kind
        if self.running and self._has_heartbeats and kind not in _TURNS:
            return  # it is not idle, and this does not change
        if self._is_idle:
            self._idle_ns += now_ns - self._now_ns
        elif not self._now_ns:
            self._added_ns = now_ns
        self._now_ns = now_ns
        if kind is _SCHEDULE:
            self.running.add(event.request or "")
        elif kind in _STOPS:
            self.running.discard(event.request or "")
        elif type(event) is Heartbeat:
            self._enter_heartbeat(event)
        if not self._has_heartbeats and now_ns - self._added_ns >= BEAT_NS:
            self._add(now_ns, self._idle_ns, steps=True)
        self._is_idle = (
            not self.running
            and self.is_known
            and not (loads and _are_open(loads, now_ns))
            and not (kept and _are_open(kept, now_ns))
        )

    def _enter_heartbeat(self, event: Heartbeat) -> None:
        now_ns, reported_ns = self._now_ns, event.scheduler_spare_ns
        was_paused, self.is_paused = self.is_paused, bool(event.scheduler_paused)
        steps = event.scheduler_step is None or event.scheduler_step != self._steps
        if reported_ns is not None and not (was_paused or self.is_paused or event.scheduler_running):
            steps = True  # or it could have made steps: it is not paused, and not within a step
        spare_ns = self._idle_ns if steps and not self.is_paused else 0
        if reported_ns is not None and self._spare_ns is not None:
            spare_ns = max(spare_ns, min(reported_ns - self._spare_ns, now_ns - self._added_ns))
        self._has_heartbeats, self._steps, self._spare_ns = True, event.scheduler_step, reported_ns
        self._add(now_ns, spare_ns, steps=steps)

    def _add(self, now_ns: int, spare_ns: int, *, steps: bool) -> None:
        self.spare.add(self._added_ns, now_ns, spare_ns)
        self.stepping.add(self._added_ns, now_ns, now_ns - self._added_ns if steps else 0)
        self._added_ns, self._idle_ns = now_ns, 0


_SCHEDULE = Kind.SCHEDULE
_STOPS = frozenset({Kind.PREEMPT, Kind.REQUEST, Kind.CUT_OFF})
"""The kinds of events after which a request does not run."""
_TURNS = _STOPS | {Kind.SCHEDULE, Kind.HEARTBEAT}
"""The kinds of events that may begin or end an idle time, or report one, while requests run."""


def _are_open(held: Mapping[str, Event], now_ns: int) -> bool:
    """Whether any of these has been open briefly enough to count as busy. The list is not empty, the oldest first."""
    latest: Event = next(reversed(held.values()))  # type: ignore[call-overload]
    return now_ns - latest.end_ns < max(HOLDS_NS, (getattr(latest, "lease_s", None) or 0) * 10**9)

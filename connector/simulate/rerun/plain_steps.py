"""Puts back the steps that a recording leaves out: a running request decoded one token into a block that it held.

At level `detailed` a step is recorded where it says something new (`connector/tracing/steps.py`). A connector was called for
the others, too. Where a request was in each of them follows from its recorded steps, their numbers, and its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvtrail.tracer.events.events import Event, Evict, Flush, Plan, Preempt, PrefixCache, RequestEnd, Schedule, Stats

STEP_EVENTS = (Preempt, Schedule, Stats, Plan, Evict, Flush)
"""What one step records, all at one time."""
_PLAIN = "plain-"
"""What the span ids of the steps begin with that are put back."""


def is_plain(event: Event) -> bool:
    """Whether the event is of a step that was put back."""
    return event.span_id.startswith(_PLAIN)


def leaves_out(events: Sequence[Event]) -> bool:
    """Whether the recorder leaves out steps that say nothing new; older ones recorded all or nearly none."""
    return any(isinstance(event, Schedule) and event.scheduler_tokens is not None for event in events)


def with_plain_steps(events: Sequence[Event]) -> list[Event]:
    """The events of one connector, with a `Schedule` for each step of a request that the recording leaves out. A request that
    did not run in all of the steps between two recorded ones ran in the first of them: its return is recorded.

    What vLLM's cache gains and loses is no call, and may stand between the events of a step: it is left out."""
    events = [event for event in events if not isinstance(event, PrefixCache)]
    told = _Told()
    for step in _steps(events):
        told.enter(step)
    plain = told.plain()
    out: list[Event] = []
    insert_at = done = 0
    number_of = {step[0].sequence: number for number, step in told.steps}
    for event in events:
        is_step = isinstance(event, STEP_EVENTS)
        number = number_of.get(event.sequence) if is_step else getattr(event, "scheduler_step", None)
        if number is not None:
            begun = out[insert_at - 1] if insert_at else event
            silent = [row for n in range(done, number) for row in _rows(plain.pop(n, ()), begun, later_ns=1 + n - done)]
            out[insert_at:insert_at] = silent
            if is_step:
                out += _rows(plain.pop(number, ()), event, later_ns=0)
            done = max(done, number + is_step)
        out.append(event)
        if number is not None or is_step:
            insert_at = len(out)
    return out


def _steps(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """The steps that recorded something, and the ends of requests."""
    held: list[Event] = []
    for event in events:
        if held and not (isinstance(event, STEP_EVENTS) and event.start_ns == held[0].start_ns):
            yield held
            held = []
        if isinstance(event, STEP_EVENTS):
            held.append(event)
        elif isinstance(event, RequestEnd):
            yield [event]
    if held:
        yield held


@dataclass(slots=True)
class _Point:
    """A recorded step of a request, or its end: its number, where it begins and ends, and an event that shows it."""

    number: int
    begin: int | None
    end: int
    event: Event


@dataclass(frozen=True, slots=True)
class _Row:
    """What a step runs of the request of an event."""

    event: Event
    computed: int
    scheduled: int = 1
    drafted: int = 0


class _Told:
    """What the recorded steps say of each request's epochs.

    Attributes:
        steps: them, with their numbers.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[int, Sequence[Event]]] = []
        self._points: defaultdict[tuple[str, int], list[_Point]] = defaultdict(list)
        self._detailed: set[tuple[str, int]] = set()
        self._next = 0

    def enter(self, step: Sequence[Event]) -> None:
        """Enter the next step, or the end of a request."""
        if isinstance(event := step[0], RequestEnd):
            if (points := self._points.get((event.request or "", event.epoch))) and event.scheduler_step is not None:
                points.append(_Point(event.scheduler_step, event.computed, event.computed or 0, event))
            return
        number = self._number(step)
        self._next = number + 1
        self.steps.append((number, step))
        for event in step:
            key = (event.request or "", event.epoch)
            if isinstance(event, Preempt):
                before = self._points.get((event.request or "", event.epoch - 1))
                if before:
                    before.append(_Point(number, None, 0, event))
            elif isinstance(event, Schedule | Plan) and event.computed is not None and event.scheduled:
                if isinstance(event, Schedule) and event.drafted is not None:
                    self._detailed.add(key)
                points = self._points[key]
                if not (points and points[-1].number == number):
                    points.append(_Point(number, event.computed, event.computed + event.scheduled, event))

    def plain(self) -> dict[int, list[_Row]]:
        """By number of the step: what it runs of requests without recording it as a step of theirs."""
        found: defaultdict[int, list[_Row]] = defaultdict(list)
        for key in self._detailed:
            points = self._points[key]
            for point in points:
                if isinstance(plan := point.event, Plan):
                    row = _Row(plan, plan.computed or 0, plan.scheduled or 0, plan.drafted or 0)
                    found[point.number].append(row)
            last = points[-1]
            if not isinstance(last.event, RequestEnd | Preempt):
                points.append(_Point(self._next, None, 0, last.event))
            for before, after in pairwise(points):
                free = range(before.number + 1, after.number)
                count = len(free) if after.begin is None else after.begin - before.end
                for ran, number in enumerate(free[: max(0, count)]):
                    found[number].append(_Row(before.event, before.end + ran))
        return found

    def _number(self, step: Sequence[Event]) -> int:
        """The number of a step. One that only plans is told by how far its requests have got."""
        for event in step:
            if isinstance(event, Schedule | Preempt) and event.scheduler_step is not None:
                return event.scheduler_step
        guessed = self._next
        for event in step:
            points = self._points.get((event.request or "", event.epoch))
            if isinstance(event, Plan) and event.scheduled and event.computed is not None and points:
                guessed = max(guessed, points[-1].number + 1 + event.computed - points[-1].end)
        return guessed


def _rows(rows: Sequence[_Row], beside: Event, *, later_ns: int) -> list[Event]:
    """Steps of requests, recorded beside another event, or so much later."""
    return [
        Schedule(
            engine=row.event.engine,
            recorder=row.event.recorder,
            sequence=beside.sequence,
            connector=row.event.connector,
            connector_id=row.event.connector_id,
            role=row.event.role,
            start_ns=beside.end_ns + later_ns,
            end_ns=beside.end_ns + later_ns,
            span_id=f"{_PLAIN}{row.event.request}-{row.event.epoch}-{row.computed}",
            trace_id=row.event.trace_id,
            request=row.event.request,
            external=row.event.external,
            epoch=row.event.epoch,
            block_size=row.event.block_size,
            chunk_size=row.event.chunk_size,
            computed=row.computed,
            scheduled=row.scheduled,
            drafted=row.drafted,
            blocks_ids=(),
        )
        for row in rows
    ]

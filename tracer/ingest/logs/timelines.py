"""What a log shows of each request, a line for each moment."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.line_patterns import Reading
from kvtrail.tracer.ingest.logs.lines import Record
from kvtrail.tracer.model.findings import clock

MAX_REQUESTS = 10_000
"""The most timelines kept; beyond that the least remarkable one is dropped, and of those the least recently used."""
MAX_MOMENTS = 200
MAX_REPORTED = 5
"""Timelines that an audit prints."""
NOT_NAMED = ""


@dataclass(slots=True)
class Timeline:
    """The moments of one request.

    Attributes:
        request: its id; empty for all lines that name none.
        begins: the number of its first line.
        moments: in words, at most `MAX_MOMENTS`; `left_out` counts the others.
        remarkable: whether a line of it is.
        stored_since: tokens stored since its last lookup, if there was one: it ran in between.
    """

    request: str
    begins: int
    moments: list[str] = field(default_factory=list)
    left_out: int = 0
    remarkable: bool = False
    stored_since: int | None = None

    def lines(self) -> Iterator[str]:
        """The timeline in words."""
        yield f"request {self.request}" if self.request else "requests that the log does not name"
        yield from (f"  {moment}" for moment in self.moments)
        if self.left_out:
            yield f"  ... and {self.left_out} moments more"

    def implied(self, reading: Reading) -> str:
        """Enter the numbers of a line; returns a preemption that they imply although no line reports it."""
        stored = self.stored_since
        if reading.kind in (Kind.LOOKUP, Kind.RANK_LOOKUP) and "total" in reading.fields:
            self.stored_since = 0
            if stored:
                return (
                    f"it ran in between, since {stored} tokens were stored, and now it is asked about again: it was"
                    " preempted, although no line says so"
                )
        elif stored is not None and reading.kind is Kind.STORE:
            self.stored_since = stored + reading.fields["count"]
        elif stored is not None and reading.kind is Kind.PREEMPT:
            self.stored_since = 0  # the log reports it
        return ""


class Timelines:
    """The timelines of one log."""

    def __init__(self) -> None:
        self._timelines: OrderedDict[str, Timeline] = OrderedDict()
        self.forgotten = 0

    def add(self, record: Record, reading: Reading) -> None:
        """Add a moment to the timeline of the reading's request."""
        name = reading.request or NOT_NAMED
        timeline = self._timelines.get(name)
        if timeline is None:
            timeline = self._timelines[name] = Timeline(name, record.number)
            if len(self._timelines) > MAX_REQUESTS:
                self._forget()
        self._timelines.move_to_end(name)
        implied = timeline.implied(reading)
        timeline.remarkable |= reading.remarkable
        if len(timeline.moments) >= MAX_MOMENTS:
            timeline.left_out += 1
            return
        if implied:
            timeline.moments.append(f"{' ' * 12}  {implied}")
        notes = f"line {record.number}"
        if not record.logged:
            notes += ", without a time of its own"
        if record.rank:
            notes += f", rank {record.rank}"
        timeline.moments.append(f"{clock(record.at_ns)}  {reading.words} ({notes})")

    def digest(self) -> list[str]:
        """A few timelines, the remarkable ones first, then by their first lines, and how many there are beyond them."""
        kept = self._timelines.values()
        chosen = sorted(kept, key=lambda each: (not each.remarkable, each.request == NOT_NAMED, each.begins))[
            :MAX_REPORTED
        ]
        lines = [line for timeline in chosen for line in (*timeline.lines(), "")]
        if left := len(kept) + self.forgotten - len(chosen):
            lines += [f"And of {left} more; `kvtrail replay LOG --request ID` shows any of them.", ""]
        return lines

    def _forget(self) -> None:
        kept = self._timelines.values()
        oldest = next((each for each in kept if not each.remarkable), next(iter(kept)))
        del self._timelines[oldest.request]
        self.forgotten += 1

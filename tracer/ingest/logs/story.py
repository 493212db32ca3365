"""What a log shows of each request, a line for each moment, and what usually follows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.lines import Record
from kvtrail.tracer.ingest.logs.readings import Reading
from kvtrail.tracer.model.findings import clock

MAX_REQUESTS = 10_000
"""The most stories kept; beyond that the least remarkable one is dropped, and of those the least recently used."""
MAX_MOMENTS = 200
MAX_REPORTED = 5
"""Stories that an audit prints."""
NOT_NAMED = ""


@dataclass(slots=True)
class Story:
    """The moments of one request, and the facts on which the outlook rests."""

    request: str
    begins: int
    """The line with which it begins."""
    moments: list[str] = field(default_factory=list)
    left_out: int = 0
    remarkable: bool = False
    stored_since: int = 0
    """Tokens stored since the last lookup: the request ran in between."""
    looked_up: bool = False
    computed: int | None = None
    matched_of_old: int | None = None
    """What a lookup found, where vLLM had computed all of it already."""
    failed: bool = False

    def lines(self) -> Iterator[str]:
        """The story in words."""
        yield f"request {self.request}" if self.request else "requests that the log does not name"
        yield from (f"  {moment}" for moment in self.moments)
        if self.left_out:
            yield f"  ... and {self.left_out} moments more"
        if self.request:
            yield from (f"  {line}" for line in self._outlook())

    def _outlook(self) -> Iterator[str]:
        """What the log does not show, and what usually follows, as far as the facts allow."""
        if self.failed:
            yield (
                "What the log cannot tell: which lookup gave the answer that was allocated for. An answer that comes from"
                " the connector's memory is not printed, nor is what was computed then."
            )
        elif self.matched_of_old is not None and self.computed is not None:
            h, c = self.matched_of_old, self.computed
            yield (
                "What comes next is not in the log, so it is unknown. Where there is no room for the request at once, it is"
                f" asked about again, and LMCache up to 0.3.10 answers from its memory (LMCache #2158): {h} again, from"
                f" which nothing is subtracted. Then {h} tokens are allocated where LMCache expects {h} - {c} = {h - c},"
                " its assertion fails, and the engine dies."
            )


class Stories:
    """The stories of one log."""

    def __init__(self) -> None:
        self._stories: OrderedDict[str, Story] = OrderedDict()
        self.forgotten = 0

    def add(self, record: Record, reading: Reading) -> None:
        """Add a moment to the story of the reading's request."""
        name = reading.request or NOT_NAMED
        story = self._stories.get(name)
        if story is None:
            story = self._stories[name] = Story(name, record.number)
            if len(self._stories) > MAX_REQUESTS:
                self._forget()
        self._stories.move_to_end(name)
        between = _understood(story, reading)
        story.remarkable |= reading.remarkable
        if len(story.moments) >= MAX_MOMENTS:
            story.left_out += 1
            return
        if between:
            story.moments.append(f"{' ' * 12}  {between}")
        notes = f"line {record.number}"
        if not record.logged:
            notes += ", without a time of its own"
        if record.rank:
            notes += f", rank {record.rank}"
        story.moments.append(f"{clock(record.at_ns)}  {reading.words} ({notes})")

    def all(self) -> Sequence[Story]:
        """All stories, in the order of their beginnings; lines without a request come last."""
        return sorted(self._stories.values(), key=lambda story: (story.request == NOT_NAMED, story.begins))

    def digest(self) -> list[str]:
        """A few stories, the remarkable ones first, and how many there are beyond them."""
        chosen = sorted(self.all(), key=lambda story: not story.remarkable)[:MAX_REPORTED]
        lines = [line for story in chosen for line in (*story.lines(), "")]
        if left := len(self._stories) + self.forgotten - len(chosen):
            lines += [f"And of {left} more; `kvtrail replay LOG --request ID` shows any of them.", ""]
        return lines

    def _forget(self) -> None:
        oldest = next((s for s in self._stories.values() if not s.remarkable), next(iter(self._stories.values())))
        del self._stories[oldest.request]
        self.forgotten += 1


def _understood(story: Story, reading: Reading) -> str:
    """Keep the facts of a reading; returns what the numbers imply although no line says it."""
    between = ""
    if reading.kind is Kind.ALLOC:
        story.failed = True
    elif "total" in reading.fields and "matched" in reading.fields:  # a lookup, whether or not all of it was printed
        if story.looked_up and story.stored_since:
            between = (
                f"it ran in between, since {story.stored_since} tokens were stored, and now it is asked about again: it"
                " was preempted, although no line says so"
            )
        computed, matched = reading.fields.get("computed"), reading.fields["matched"]
        story.matched_of_old = matched if computed is not None and 0 < matched < computed else None
        story.computed, story.stored_since, story.looked_up = computed, 0, True
    elif reading.kind is Kind.STORE:
        story.stored_since += reading.fields["count"]
    elif reading.kind is Kind.PREEMPT:
        story.stored_since = 0  # the log does say it
    return between

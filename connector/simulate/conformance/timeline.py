"""The history of a failure as a picture's parts: for each request its phases and calls, in the order in which they happened.
Pure.

Time would say nothing here, since the model is a fake and a step takes as long as the machine needs. So events stand side by
side, in their order.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import ROOTS, Kind
from kvtrail.tracer.history.lives import Life, lives
from kvtrail.tracer.ledger.phases import Phase
from kvtrail.tracer.model.words import described, kind

MOST_LANES = 8
"""Requests that are drawn; of more, those that the failure names, and then the first ones."""
MOST_EVENTS = 300
"""Events that are drawn; of more, the last ones."""
NOT_DRAWN = frozenset({Kind.HEARTBEAT, Kind.STATS, Kind.HOLDINGS, Kind.PREFIX_CACHE})
"""What is recorded beside the calls."""
ENGINE = "the engine"
END = "end"


@dataclass(frozen=True, slots=True)
class Mark:
    """A call.

    Attributes:
        number: its place in the order of all, from 1.
        row: its kind in words; marks of one kind are in one row.
        text: what it says.
        proof: its label in the failure's explanation, or "".
        raised: the error of the call, or "".
    """

    number: int
    row: str
    text: str
    proof: str = ""
    raised: str = ""


@dataclass(slots=True)
class Lane:
    """A request, or the engine itself.

    Attributes:
        name: of the request.
        phases: the phase, and where it begins and ends on the axis of events.
        marks: its calls, in order.
    """

    name: str
    phases: list[tuple[Phase, float, float]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def rows(self) -> list[str]:
        """The kinds of its calls, in the order in which each came first."""
        return list(dict.fromkeys(mark.row for mark in self.marks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What is drawn.

    Attributes:
        lanes: the requests in the order of their arrival, then the engine.
        events: how many are drawn.
        left_out: what is not drawn, in a sentence; "" if all is.
    """

    lanes: Sequence[Lane]
    events: int
    left_out: str = ""


def timeline(events: Sequence[Event], *, named: str = "", proofs: Mapping[str, str] | None = None) -> Timeline:
    """The timeline of a history.

    Args:
        events: in order.
        named: a text with the ids of the requests that matter most.
        proofs: labels of events in an explanation, by span id.
    """
    proofs = proofs or {}
    found = [life for its_events in _by_engine(events).values() for life in lives(its_events)]
    chosen = _chosen(found, named, proofs)
    of_chosen = {id(event) for life in chosen for event in life.events}
    drawn = [each for each in events if each.kind not in NOT_DRAWN and (each.request is None or id(each) in of_chosen)]
    kept = drawn[-MOST_EVENTS:]
    numbers = {id(event): number for number, event in enumerate(kept, 1)}
    moments = list(accumulate((event.end_ns for event in kept), max))

    def mark(event: Event) -> Mark:
        return Mark(
            number=numbers[id(event)],
            row=END if event.kind in ROOTS else kind(event.kind),
            text=described(event.kind, event.numbers()),
            proof=proofs.get(event.span_id, ""),
            raised=event.error or "",
        )

    lanes = []
    several = len({event.engine for event in events}) > 1
    for life in chosen:
        marks = [mark(event) for event in life.events if id(event) in numbers]
        if not marks:
            continue
        name = f"{life.account.request} of {life.account.engine[:8]}" if several else life.account.request
        placed = ((phase, _place(begin, moments), _place(end, moments)) for begin, end, phase in life.phases())
        lanes.append(Lane(name, [each for each in placed if each[1] < each[2]], marks))
    if own := [mark(event) for event in kept if event.request is None]:
        lanes.append(Lane(ENGINE, [], own))
    return Timeline(
        lanes=lanes,
        events=len(kept),
        left_out=_left_out(len(found) - len(chosen), len(drawn) - len(kept)),
    )


def _by_engine(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.engine, []).append(event)
    return found


def _chosen(found: Sequence[Life], named: str, proofs: Collection[str]) -> list[Life]:
    """Those that are drawn, in the order of their arrival."""

    def matters(life: Life) -> bool:
        name = re.escape(life.account.request)
        proves = any(event.span_id in proofs for event in life.events)
        return proves or re.search(rf"(?<![\w-]){name}(?![\w-])", named) is not None

    first = sorted(found, key=lambda life: (not matters(life), life.start_ns))[:MOST_LANES]
    return sorted(first, key=lambda life: life.start_ns)


def _place(at_ns: int, moments: Sequence[int]) -> float:
    """Where a time is on the axis of events, between the one before it and the one after."""
    after = bisect_right(moments, at_ns)
    if after == 0 or after == len(moments):
        return float(max(1, after))
    before = moments[after - 1]
    return after + (at_ns - before) / (moments[after] - before)


def _left_out(requests: int, events: int) -> str:
    parts = [f"{requests:,} other requests" if requests > 1 else "1 other request"] if requests else []
    parts += [f"the first {events:,} events" if events > 1 else "the first event"] if events else []
    return f"Not drawn: {' and '.join(parts)}; the trace has them." if parts else ""

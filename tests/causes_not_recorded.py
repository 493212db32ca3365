"""What recordings may lack, and what a tracer that hears them says of why tokens were no hits: the same runs, recorded in
many ways."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from kvtrail.tracer.detect.detector import GRACE_NS, Detector
from kvtrail.tracer.events.events import Event, Heartbeat, Lookup, PrefixCache, RequestEnd, RequestStart
from kvtrail.tracer.ledger.facts import Breakdown

BATCH = 64
"""Events that a recorder sends together, so early in a run."""
LATE = 2 * BATCH
"""How far an event may come behind its place."""
EVERYTHING, RESTARTED = "everything recorded", "tracer restarted"

LeaveOut = Callable[[Sequence[Event], random.Random], Sequence[Event]]


def _whole(events: Sequence[Event], rng: random.Random) -> Sequence[Event]:
    return events


def _without_cache_events(events: Sequence[Event], rng: random.Random) -> Sequence[Event]:
    return [_emptied(event) if _is_of_store(event) is False else event for event in events]


def _without_probe(events: Sequence[Event], rng: random.Random) -> Sequence[Event]:
    return [_emptied(event) if _is_of_store(event) else structs.replace(event, capabilities="{}") for event in events]


def _is_of_store(event: Event) -> bool | None:
    """Whether it reports what the connector's store gains and loses, or vLLM's own cache; None: neither."""
    return event.pool_tier is not None if isinstance(event, PrefixCache) else None


def _without_both(events: Sequence[Event], rng: random.Random) -> Sequence[Event]:
    return _without_probe(_without_cache_events(events, rng), rng)


def _without_hashes(events: Sequence[Event], rng: random.Random) -> Sequence[Event]:
    hashes = ("block_hashes", "block_first", "block_after", "block_seen")
    return [
        structs.replace(event, **{name: None for name in hashes if hasattr(event, name)})
        if isinstance(event, (RequestStart, Lookup, RequestEnd))
        else event
        for event in events
    ]


def _emptied(event: Event) -> Event:
    """An event in its place that says nothing: a number without an event would be a loss."""
    common = {name: getattr(event, name) for name in ("engine", "recorder", "sequence", "role", "start_ns", "end_ns")}
    return Heartbeat(**common)


def _losing(share: float) -> LeaveOut:
    return lambda events, rng: [event for event in events if rng.random() >= share]


def _losing_batches(share: float) -> LeaveOut:
    return lambda events, rng: [event for some in _batches(events) if rng.random() >= share for event in some]


def _batches(events: Sequence[Event]) -> list[Sequence[Event]]:
    return [events[first : first + BATCH] for first in range(0, len(events), BATCH)]


def _shuffled(events: Sequence[Event], rng: random.Random) -> Sequence[Event]:
    places = [(number + rng.randrange(LATE), number) for number in range(len(events))]
    return [events[number] for _, number in sorted(places)]


NOT_RECORDED: Mapping[str, LeaveOut] = {
    EVERYTHING: _whole,
    "spans out of order": _shuffled,
    "no cache events": _without_cache_events,
    "no probe": _without_probe,
    "neither of them": _without_both,
    "no block hashes": _without_hashes,
    "0.1 % lost": _losing(0.001),
    "1 % lost": _losing(0.01),
    "10 % lost": _losing(0.1),
    "0.1 % lost in batches": _losing_batches(0.001),
    "1 % lost in batches": _losing_batches(0.01),
    "10 % lost in batches": _losing_batches(0.1),
    RESTARTED: _whole,
}
"""By what is left out. In the last one a tracer that starts in the middle goes on with what the one before has stored."""
NOTHING_LACKS = (EVERYTHING, "spans out of order")
"""The ways in which all is recorded."""


def heard(events: Sequence[Event], what: str, *, seed: int) -> list[Breakdown]:
    """What a tracer says of the admissions in a recording without this; the latest of each."""
    recorded = NOT_RECORDED[what](events, random.Random(seed))
    if what != RESTARTED:
        return _Hearing().hear(recorded)
    half = len(recorded) // 2
    before = _Hearing()
    said = before.hear(recorded[:half], is_over=False)
    ended = {event.request for event in recorded[:half] if isinstance(event, RequestEnd)}
    again = [event for event in recorded[:half] if event.request is not None and event.request not in ended]
    after = _Hearing(came_before={event.recorder: event.sequence for event in recorded[:half]})
    known = {breakdown.event.sequence for breakdown in said}
    return said + [each for each in after.hear([*again, *recorded[half:]]) if each.event.sequence not in known]


class _Hearing:
    """A tracer's detector, and the admissions that it has explained."""

    def __init__(self, came_before: Mapping[str, int] | None = None) -> None:
        self._final: dict[int, Breakdown] = {}
        self._detector = Detector(rules=(), on_causes=self._explained, came_before=came_before)

    def _explained(self, event: Event, breakdown: Breakdown) -> None:
        self._final[breakdown.event.sequence] = breakdown

    def hear(self, events: Sequence[Event], *, is_over: bool = True) -> list[Breakdown]:
        """Hear events in the order in which they arrive; when all is over, also what is not final is said."""
        at_ns = 0
        for some in _batches(events):
            at_ns += GRACE_NS // 4
            self._detector.feed(some, at_ns=at_ns)
            self._detector.settle(before_ns=at_ns - GRACE_NS)
        if is_over:
            self._detector.settle()
        open_ = (each for account in self._detector.accounts.values() for each in account.causes) if is_over else ()
        return list({**{each.event.sequence: each for each in open_}, **self._final}.values())

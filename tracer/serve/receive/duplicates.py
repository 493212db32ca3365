"""What has come before, so that nothing is stored or counted twice. Pure.

A sender that hears no answer sends the same request again. A Collector in between may send the same events in other requests;
those are known by their recorders' numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.ledger.ordering import SeenNumbers
from kvtrail.tracer.store import MOST_RECEIPTS

MOST_RECORDERS = 100_000
"""Recorders whose numbers are remembered; the longest silent are forgotten first."""


@dataclass(slots=True)
class Arrived:
    """What is new in a request.

    Attributes:
        fresh: the events that were not there before.
        again: those that were.
        seen: by recorder: the numbers that are known with this request.
    """

    fresh: list[Event] = field(default_factory=list)
    again: list[Event] = field(default_factory=list)
    seen: dict[str, SeenNumbers] = field(default_factory=dict)

    def seen_as_text(self) -> dict[str, str]:
        """The numbers, as a store keeps them."""
        return {recorder: numbers.as_text() for recorder, numbers in self.seen.items()}


class Arrivals:
    """The requests and the events that are stored."""

    def __init__(self, receipts: Iterable[bytes], seen: Mapping[str, str]) -> None:
        self._receipts = OrderedDict.fromkeys(receipts)
        self._seen = OrderedDict((recorder, SeenNumbers.from_text(text)) for recorder, text in seen.items())

    def last(self) -> dict[str, int]:
        """By recorder, the highest number that came."""
        return {recorder: numbers.last for recorder, numbers in self._seen.items()}

    def has(self, digest: bytes) -> bool:
        """Whether this very request is stored."""
        return digest in self._receipts

    def compare(self, events: Sequence[Event]) -> Arrived:
        """What is new among events. It is known only when it is confirmed."""
        arrived = Arrived()
        for recorder, run in groupby(events, key=attrgetter("recorder")):
            some = list(run)
            seen = arrived.seen.get(recorder)
            if seen is None:
                known = self._seen.get(recorder)
                seen = arrived.seen[recorder] = SeenNumbers() if known is None else known.copy()
            first = some[0].sequence
            if first == seen.last + 1 and [event.sequence for event in some] == list(range(first, first + len(some))):
                seen.extend(len(some))  # nearly always: the next ones
                arrived.fresh += some
                continue
            for event in some:
                (arrived.fresh if seen.add(event.sequence) else arrived.again).append(event)
        return arrived

    def confirm(self, digest: bytes, arrived: Arrived) -> None:
        """A request is stored."""
        self._receipts[digest] = None
        if len(self._receipts) > MOST_RECEIPTS:
            self._receipts.popitem(last=False)
        for recorder, numbers in arrived.seen.items():
            self._seen[recorder] = numbers
            self._seen.move_to_end(recorder)
        while len(self._seen) > MOST_RECORDERS:
            self._seen.popitem(last=False)

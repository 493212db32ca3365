"""What the offload saved in a list of events, as `kvtrail audit --savings` has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.offline import OfflineDetector
from kvtrail.tracer.history.savings import RecordedSavings, Saved
from kvtrail.tracer.savings.minute_sums import HOUR_S, MINUTE_S, StepKey


def saved_of(events: Sequence[Event]) -> list[Saved]:
    """By engine and connector."""
    savings = RecordedSavings()
    detector = OfflineDetector(rules=(), savings=savings)
    detector.feed(events)
    detector.close()
    return savings.saved(())


def given(saved: Saved, chunks: int) -> float:
    """The share of all tokens asked for that a store of this capacity would have given."""
    assert saved.memory is not None
    return saved.memory.given(chunks).share * saved.memory.wanted / saved.worth.asked


def stored(at_s: int, measure: str, value: int, *, connector: str = "c") -> Counter[StepKey]:
    """A sum as a store keeps it: by the minute and by the hour."""
    return Counter(
        {(step_s, at_s // step_s * step_s, "e", connector, 0, measure): value for step_s in (MINUTE_S, HOUR_S)}
    )

"""Whether a minimized history is what it should be, judged apart from how it was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.minimize import Minimized
from kvtrail.tracer.history.prerequisites import prerequisites
from kvtrail.tracer.model.findings import Finding


def findings(events: Sequence[Event]) -> dict[str, Finding]:
    """What the rules find in a whole history, by id."""
    detector = Detector()
    found = [*detector.feed(events), *detector.settle(), *detector.tick()]
    return {finding.id: finding for finding in found}


def numbered(events: Sequence[Event]) -> list[Event]:
    """The events as a history without gaps."""
    sequences: Counter[str] = Counter()
    of_request: Counter[tuple[str, str | None, str]] = Counter()
    renumbered = []
    for event in events:
        key = (event.engine, event.request, event.recorder)
        renumbered.append(replace(event, sequence=sequences[event.recorder], request_sequence=of_request[key]))
        sequences[event.recorder] += 1
        of_request[key] += 1
    return renumbered


def assert_minimal(result: Minimized) -> None:
    """Nothing of a history without gaps can be left out: no event, not even with what rests on it; no request."""
    events = result.history.events
    rests = prerequisites(events)
    shown = findings(events)
    assert result.finding == shown[result.finding.id]

    def still_shown(gone: set[int]) -> bool:
        left = findings(numbered([event for index, event in enumerate(events) if index not in gone]))
        found = left.get(result.finding.id)
        return (
            found is not None
            and (found.numbers, found.witness) == (result.finding.numbers, result.finding.witness)
            and left.keys() <= shown.keys()
            and all(f.count <= shown[f.id].count for f in left.values())
        )

    for index, event in enumerate(events):
        gone = {index}
        while more := {i for i, grounded in enumerate(rests) if i not in gone and not gone.isdisjoint(grounded)}:
            gone |= more
        assert not still_shown(gone), f"{event.kind} {event.sequence} can be left out with {len(gone) - 1} more"
    for request in {event.request for event in events if event.request is not None}:
        assert not still_shown({index for index, event in enumerate(events) if event.request == request}), request

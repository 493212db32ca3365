"""Which rules each call of a history breaks, and a history whose answers are another connector's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding


class Judge:
    """The rules over one history, event by event, so that it is known which event broke which rule."""

    def __init__(self) -> None:
        self._detector = Detector()
        self._broken: dict[str, dict[str, str]] = {}

    def hear(self, event: Event) -> None:
        """Enter an event."""
        for finding in self._detector.feed([event]):
            self._broken.setdefault(event.span_id, {})[finding.rule] = finding.explanation

    def close(self) -> None:
        """No more events will come: those that wait for missing ones are judged without them."""
        for finding in self._detector.settle():
            self._broken.setdefault(_last(finding), {})[finding.rule] = finding.explanation

    def broken(self, events: Iterable[Event]) -> dict[str, str]:
        """The rules that these events broke, each with its words on it."""
        found: dict[str, str] = {}
        for event in events:
            found.update(self._broken.get(event.span_id, {}))
        return found


class Retold:
    """Events told anew: some left out, some put in, and numbered as a recorder would have. What is missing in the
    recording stays missing: its gaps are kept."""

    def __init__(self) -> None:
        self._recorded: dict[tuple[str, str | None], int] = {}
        self._told: Counter[tuple[str, str | None]] = Counter()

    def instead(self, recorded: Event, events: Iterable[Event]) -> list[Event]:
        """The events that stand in the place of a recorded one, numbered; none leaves it out."""
        self._keep_gap((recorded.recorder, None), recorded.sequence)
        if recorded.request is not None:
            self._keep_gap((recorded.recorder, recorded.request), recorded.request_sequence)
        return [self._numbered(event) for event in events]

    def _keep_gap(self, key: tuple[str, str | None], number: int) -> None:
        missing = number - self._recorded.get(key, -1) - 1
        self._told[key] += max(0, missing)
        self._recorded[key] = number

    def _numbered(self, event: Event) -> Event:
        sequence, of_request = self._next((event.recorder, None)), event.request_sequence
        if event.request is not None:
            of_request = self._next((event.recorder, event.request))
        return replace(event, sequence=sequence, request_sequence=of_request)

    def _next(self, key: tuple[str, str | None]) -> int:
        self._told[key] += 1
        return self._told[key] - 1


def _last(finding: Finding) -> str:
    """The span that broke the rule; of one that was broken several times, the first."""
    return finding.witness[-1].span_id

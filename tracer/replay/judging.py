"""What is found in a history, and where in it each finding is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvtrail.tracer.detect.detector import Detector, Key
from kvtrail.tracer.detect.rules import Rule
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding, Verdict

TELL_EVERY = 1000
"""Events after which whoever waits is told of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the rules say of a history.

    Attributes:
        found: the findings, each as it stood when it was made, by the index of the event that brought it; of one that
            waited for a missing event, of the last event that it names.
        again: findings that were seen once more, as they stood when they were made, by the index of the event.
        late: findings that no event brought: what the request waited for has not come by the end of the history.
        verdicts: each request's verdict at the end, by engine and request.
        missing: events that the numbers say are missing.
    """

    found: Mapping[int, tuple[Finding, ...]] = field(default_factory=dict)
    again: Mapping[int, tuple[Finding, ...]] = field(default_factory=dict)
    late: tuple[Finding, ...] = ()
    verdicts: Mapping[Key, Verdict] = field(default_factory=dict)
    missing: int = 0


def judge(
    events: Sequence[Event], *, rules: Sequence[Rule] | None = None, on_events: Callable[[int], None] | None = None
) -> Judged:
    """Judge the events, which stand in their order, one by one; `on_events` hears how many more have been judged."""
    detector = Detector(rules=rules)
    found: dict[int, list[Finding]] = {}
    again: dict[int, list[Finding]] = {}
    known: dict[str, Finding] = {}

    def note(finding: Finding, index: int) -> None:
        if (first := known.get(finding.id)) is not None:
            again.setdefault(index, []).append(first)
        else:
            made = known[finding.id] = replace(finding)  # the detector goes on counting in its own
            found.setdefault(index, []).append(made)

    for index, event in enumerate(events):
        for finding in detector.feed([event]):
            note(finding, index)
        if on_events is not None and (index + 1) % TELL_EVERY == 0:
            on_events(TELL_EVERY)
    if settled := detector.settle():
        # They waited for events that are missing. They belong to where they happened, not to where the waiting ended.
        places = {event.span_id: index for index, event in enumerate(events)}
        for finding in settled:
            note(finding, places[finding.witness[-1].span_id])
    late = [replace(finding) for finding in detector.tick()]
    return Judged(
        found={index: tuple(made) for index, made in found.items()},
        again={index: tuple(seen) for index, seen in again.items()},
        late=tuple(sorted(late, key=lambda finding: (finding.first_ns, finding.id))),
        verdicts={key: detector.verdict(account) for key, account in detector.accounts.items()},
        missing=detector.missing,
    )


def found_in(events: Sequence[Event]) -> dict[str, Finding]:
    """What an audit finds in these events, by id."""
    detector = Detector()
    found = [*detector.feed(events), *detector.settle(), *detector.tick()]
    return {finding.id: finding for finding in found}

"""The findings of a history, each with the event that triggered it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.tracked import Key as RequestKey
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.model.findings import Finding, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The judgements of the rules about a history.

    Attributes:
        found: findings in their first state, by the index of the event that triggered them. A finding that had to wait for a
            missing event belongs to the last event of its witness.
        again: findings that recurred, in their first state, by the index of the event that confirmed them.
        late: findings without an event: something was still missing at the end of the history.
        verdicts: each request's verdict at the end, by engine and request.
        missing: number of missing events, from gaps in the numbers.
    """

    found: Mapping[int, tuple[Finding, ...]]
    again: Mapping[int, tuple[Finding, ...]]
    late: tuple[Finding, ...]
    verdicts: Mapping[RequestKey, Verdict]
    missing: int


def judge(events: Sequence[Event]) -> Judged:
    """Judge events, which are in order, one by one."""
    detector = Detector()
    found: dict[int, list[Finding]] = {}
    again: dict[int, list[Finding]] = {}
    known: dict[str, Finding] = {}

    def note(finding: Finding, index: int) -> None:
        if (first := known.get(finding.id)) is not None:
            again.setdefault(index, []).append(first)
        else:
            made = known[finding.id] = replace(finding)  # the detector continues to count in its copy
            found.setdefault(index, []).append(made)

    for index, event in enumerate(events):
        for finding in detector.feed([event]):
            note(finding, index)
    if settled := detector.settle():
        # They waited for missing events. Their index is where they happened, not where the wait ended.
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


def findings_of(events: Sequence[Event]) -> dict[str, Finding]:
    """The findings of an audit of these events, by id."""
    detector = Detector()
    found = [*detector.feed(events), *detector.settle(), *detector.tick()]
    return {finding.id: finding for finding in found}

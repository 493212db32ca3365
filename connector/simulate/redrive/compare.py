"""How closely a run follows the recording that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvtrail.connector.simulate.redrive.workload import Life, lives_of
from kvtrail.tracer.model.events import Event, Lookup
from kvtrail.tracer.model.findings import Finding

Told = tuple[int, int, int, int | None, int | None, bool, bool | None]
"""Of a lookup: epoch, total, computed, matched, the connector's own answer, asynchronous, remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where a request first went another way.

    Attributes:
        request: its id in the scenario.
        lookup: the number of the lookup, from 0.
        recorded, driven: what the lookup was asked and answered; None where there was none any more.
    """

    request: str
    lookup: int
    recorded: Told | None
    driven: Told | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """The run beside the recording.

    Attributes:
        lookups: recorded lookups; `same_lookups` of them had the same numbers and the same answer, at the same place of
            their request's story.
        driven_lookups: lookups of the run.
        preemptions, driven_preemptions: how often requests were preempted.
        hits, driven_hits: external tokens that lookups answered, the last answer before each admission only.
        divergence: the first one, by the recording's time; None if all is the same.
        findings, driven_findings: (rule, request), of the recording and of the run.
    """

    lookups: int
    same_lookups: int
    driven_lookups: int
    preemptions: int
    driven_preemptions: int
    hits: int
    driven_hits: int
    divergence: Divergence | None
    findings: tuple[tuple[str, str], ...]
    driven_findings: tuple[tuple[str, str], ...]

    @property
    def same_findings(self) -> tuple[tuple[str, str], ...]:
        """Found in both, for the same request."""
        return tuple(each for each in self.findings if each in self.driven_findings)

    @property
    def same_rules(self) -> tuple[str, ...]:
        """Rules that found something in both, be it for another request."""
        return tuple(sorted({rule for rule, _ in self.findings} & {rule for rule, _ in self.driven_findings}))


def compare(
    recorded: Mapping[str, Life],
    findings: Sequence[Finding],
    driven: Sequence[Event],
    driven_findings: Sequence[Finding],
) -> Closeness:
    """Hold a run against its recording; findings and events are whole."""
    now = lives_of(_of_one_connector(driven))
    divergences: list[tuple[int, Divergence]] = []
    same = 0
    for name, life in recorded.items():
        mine = now[name].lookups if name in now else []
        first: Divergence | None = None
        for number, (one, other) in enumerate(zip_longest(life.lookups, mine)):
            if one is not None and other is not None and told(one) == told(other):
                same += 1
            elif one is None and life.end is None:
                break  # the recording ends before the request does
            elif first is None:
                first = Divergence(
                    request=name,
                    lookup=number,
                    recorded=None if one is None else told(one),
                    driven=None if other is None else told(other),
                )
                divergences.append(((one or life.lookups[-1] if life.lookups else life.start).start_ns, first))
    divergences.sort(key=lambda pair: pair[0])
    return Closeness(
        lookups=sum(len(life.lookups) for life in recorded.values()),
        same_lookups=same,
        driven_lookups=sum(len(life.lookups) for life in now.values()),
        preemptions=sum(len(life.preemptions) for life in recorded.values()),
        driven_preemptions=sum(len(life.preemptions) for life in now.values()),
        hits=sum(_hits(life) for life in recorded.values()),
        driven_hits=sum(_hits(life) for life in now.values()),
        divergence=divergences[0][1] if divergences else None,
        findings=_named(findings),
        driven_findings=_named(driven_findings),
    )


def told(lookup: Lookup) -> Told:
    """What a lookup was asked and answered."""
    return (
        lookup.epoch,
        lookup.total,
        lookup.computed,
        lookup.matched,
        lookup.answer,
        lookup.is_async,
        lookup.cached,
    )


def in_words(lookup: Told | None) -> str:
    """A lookup as a sentence's part."""
    if lookup is None:
        return "no such lookup"
    epoch, total, computed, matched, answer, is_async, cached = lookup
    held = "" if matched is None else f", {matched} matched"
    how = (", asynchronously" if is_async else "") + (", from memory" if cached else "")
    said = "'ask me later'" if answer is None else f"{answer}"
    return f"{computed} of {total} computed in epoch {epoch}{held}, answered {said}{how}"


def _of_one_connector(events: Sequence[Event]) -> list[Event]:
    """Without what other children of a MultiConnector tell."""
    first: Any = next((e.connector_id for e in events if isinstance(e, Lookup)), None)
    return [event for event in events if not isinstance(event, Lookup) or event.connector_id == first]


def _hits(life: Life) -> int:
    last: dict[int, int] = {}
    for lookup in life.lookups:
        last[lookup.epoch] = lookup.answer or 0
    return sum(last.values())


def _named(findings: Sequence[Finding]) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys((finding.rule, finding.request) for finding in findings))

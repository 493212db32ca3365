"""Compares a run with the recording that it drives again: every lookup, every allocation, and the findings.

Only answers to the same question are compared, and each is shown with the rules that it breaks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from kvtrail.connector.recording.exceptions import without_place
from kvtrail.connector.simulate.redrive.recorded import RecordedRequest
from kvtrail.connector.simulate.run import Played
from kvtrail.tracer.events.events import Alloc, Event, Lookup, Preempt
from kvtrail.tracer.history.judging import judge
from kvtrail.tracer.ledger.account import SCHEDULER
from kvtrail.tracer.model.findings import Finding, by_weight

LOOKUP, ALLOCATION = "lookup", "allocation"
Facts = Mapping[str, Any]
Broken = Mapping[str, Mapping[str, str]]
"""The rules that each event broke, by its span id, with their explanations."""


class Outcome(StrEnum):
    """How an answer compares with the recorded one."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of the connector beside the recorded one.

    Attributes:
        number: its index among all answers, in the recorded order.
        request: the request's id in the scenario.
        epoch: the request's preemption epoch.
        call: LOOKUP or ALLOCATION.
        at_ns: the recorded time, Unix nanoseconds; for an answer that was not recorded, the time of the one before it.
        asked: the scheduler's question: the numbers of all tokens and of computed tokens; for an allocation, of external
            tokens and of blocks. As recorded, or as in this run if nothing was recorded.
        recorded, driven: the answers; None if there was no such call. The answer to an allocation is empty or an error.
        outcome: how they compare.
        reason: why they cannot be compared; empty if they can.
        recorded_breaks, driven_breaks: the rules that the answers broke.
        explanation: the explanations of the rules that only this run's answer broke, or else of those that the recorded
            one broke.
    """

    number: int
    request: str
    epoch: int
    call: str
    at_ns: int
    asked: Facts
    recorded: Facts | None
    driven: Facts | None
    outcome: Outcome
    reason: str = ""
    recorded_breaks: tuple[str, ...] = ()
    driven_breaks: tuple[str, ...] = ()
    explanation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A run beside its recording.

    Attributes:
        answers: every recorded answer, in the order of the recording, and those that only the run has.
        preemptions, driven_preemptions: number of preemptions of all requests.
        hits, driven_hits: number of external tokens that lookups found; only the last answer before each admission counts.
        findings, driven_findings: (rule, request) of each finding of the recording and of the run.
        error: the error that ended the recorded engine; None if it lived.
        doubts: why the re-drive, rather than the connector, may cause a difference, in sentences.
    """

    answers: tuple[Answer, ...]
    preemptions: int
    driven_preemptions: int
    hits: int
    driven_hits: int
    findings: tuple[tuple[str, str], ...]
    driven_findings: tuple[tuple[str, str], ...]
    error: str | None
    doubts: tuple[str, ...]

    @property
    def parting(self) -> Answer | None:
        """The first answer that differs from the recorded one or cannot be compared."""
        return next((each for each in self.answers if each.outcome is not Outcome.SAME), None)

    @property
    def first(self) -> Answer | None:
        """The first different answer."""
        return next((each for each in self.answers if each.outcome is Outcome.DIFFERENT), None)

    @property
    def outcomes(self) -> Counter[Outcome]:
        """The number of answers with each outcome."""
        return Counter(each.outcome for each in self.answers)

    @property
    def same_findings(self) -> tuple[tuple[str, str], ...]:
        """The findings of both, for the same request."""
        return tuple(each for each in self.findings if each in self.driven_findings)

    @property
    def same_rules(self) -> tuple[str, ...]:
        """The rules with findings in both, even if for another request."""
        return tuple(sorted({rule for rule, _ in self.findings} & {rule for rule, _ in self.driven_findings}))

    @property
    def has_compared(self) -> bool:
        """Whether any answer could be compared."""
        return bool(self.outcomes[Outcome.SAME] or self.outcomes[Outcome.DIFFERENT])


def compare(
    recorded: Mapping[str, RecordedRequest],
    events: Sequence[Event],
    driven: Mapping[str, RecordedRequest],
    played: Played,
    doubts: Sequence[str],
) -> Comparison:
    """Compare a run with its recording.

    Args:
        recorded, driven: the requests of both, by the scenario's ids.
        events: the events of the recording.
        doubts: as in `Comparison`.
    """
    findings, broken = _judged(events)
    _, broken_now = _judged(played.events if played.findings else ())
    return Comparison(
        answers=tuple(_answers(_pairs(recorded, driven), played, doubts, broken, broken_now)),
        preemptions=sum(isinstance(event, Preempt) for each in recorded.values() for event in each.events),
        driven_preemptions=sum(isinstance(event, Preempt) for each in driven.values() for event in each.events),
        hits=sum(map(_hits, recorded.values())),
        driven_hits=sum(map(_hits, driven.values())),
        findings=_named(findings),
        driven_findings=_named(played.findings),
        error=next((e.error for e in events if e.error is not None and e.role == SCHEDULER), None),
        doubts=tuple(doubts),
    )


def same_error(recorded: str, driven: str) -> bool:
    """Whether two errors have the same class and the same numbers in their texts, since their wording differs between
    versions."""

    def signature(error: str) -> tuple[str, list[str]]:
        name, _, text = without_place(error).partition(":")
        return name, re.findall(r"\d+", text)

    return signature(recorded) == signature(driven)


Call = Lookup | Alloc
_Pair = tuple[str, Call | None, Call | None]
"""A request's recorded call, and the call of the run with the same index in the same epoch."""


def _pairs(recorded: Mapping[str, RecordedRequest], driven: Mapping[str, RecordedRequest]) -> list[_Pair]:
    """All calls of both, in the order of the recording."""
    placed: list[tuple[tuple[int, int], _Pair]] = []
    for name, request in recorded.items():
        then, now = _by_epoch(request), _by_epoch(driven.get(name))
        place = (request.events[0].start_ns, request.events[0].sequence)
        for epoch in sorted({*then, *now}):
            for one, other in zip_longest(then.get(epoch, ()), now.get(epoch, ())):
                if one is not None:
                    place = (one.start_ns, one.sequence)
                elif request.end is None:
                    break  # the recording ends before the request does
                placed.append((place, (name, one, other)))
    return [pair for _, pair in sorted(placed, key=lambda each: each[0])]


def _by_epoch(request: RecordedRequest | None) -> dict[int, list[Call]]:
    calls: dict[int, list[Call]] = {}
    for event in () if request is None else request.events:
        if isinstance(event, Lookup | Alloc):
            calls.setdefault(event.epoch, []).append(event)
    return calls


def _answers(
    pairs: Sequence[_Pair], played: Played, doubts: Sequence[str], broken: Broken, broken_now: Broken
) -> Iterator[Answer]:
    """Each answer beside the recorded one, with the rules that they broke in the recording and in the run."""
    doubt, at_ns = next(iter(doubts), ""), 0
    for number, (name, one, other) in enumerate(pairs):
        event = one or other
        assert event is not None
        at_ns = event.start_ns if one is not None else at_ns
        outcome, reason = Outcome.NOT_COMPARABLE, ""
        if one is None:
            reason = "the recording has no such call"
        elif other is None:
            reason = "there was no such call this time" + ("; the engine had died" if played.error else "")
        elif not _same_question(one, other):
            reason = "the scheduler asked something else this time"
        elif _same(_answer(one), _answer(other)):
            outcome = Outcome.SAME
        elif doubt and not _found_the_same(one, other):
            reason = doubt
        else:
            outcome = Outcome.DIFFERENT
        if outcome is not Outcome.SAME and not doubts:
            doubt = doubt or f"since #{number} the run takes another course, so the store may hold something else"
        was = {} if one is None else broken.get(one.span_id, {})
        now = {} if other is None else broken_now.get(other.span_id, {})
        shown = {rule: text for rule, text in now.items() if rule not in was} or was
        yield Answer(
            number=number,
            request=name,
            epoch=event.epoch,
            call=LOOKUP if isinstance(event, Lookup) else ALLOCATION,
            at_ns=at_ns,
            asked=_question(event),
            recorded=None if one is None else _answer(one),
            driven=None if other is None else _answer(other),
            outcome=outcome,
            reason=reason,
            recorded_breaks=tuple(sorted(was)),
            driven_breaks=tuple(sorted(now)),
            explanation=" ".join(shown[rule] for rule in sorted(shown)),
        )


def _question(event: Call) -> Facts:
    if isinstance(event, Lookup):
        return {"total": event.total, "computed": event.computed}
    return {"total": event.total, "external": event.allocated, "blocks": event.blocks_count}


def _answer(event: Call) -> Facts:
    facts: dict[str, Any] = {} if event.error is None else {"error": event.error}
    if isinstance(event, Lookup):
        facts |= {"returned": event.answer, "is_async": event.is_async}
        facts |= {"matched": event.matched, "cached": event.cached}
    return facts


def _same_question(one: Call, other: Call) -> bool:
    """Whether the questions agree in everything that both record."""
    then, now = _question(one), _question(other)
    return type(one) is type(other) and all(now[name] in (None, then[name]) for name in then if then[name] is not None)


def _same(recorded: Facts, driven: Facts) -> bool:
    """Whether two answers mean the same to the scheduler. What the store held and where the answer came from do not count."""
    if "error" in recorded and "error" in driven:
        return same_error(recorded["error"], driven["error"])
    return all(recorded.get(name) == driven.get(name) for name in ("returned", "is_async", "error"))


def _found_the_same(one: Call, other: Call) -> bool:
    """Whether the store held the same for both, so that only the connector can cause the difference."""
    if not isinstance(one, Lookup) or not isinstance(other, Lookup) or one.matched is None:
        return False
    return one.matched == other.matched


def _judged(events: Sequence[Event]) -> tuple[list[Finding], Broken]:
    """The findings, and the rules that each event broke."""
    judged = judge(events)
    broken: dict[str, dict[str, str]] = {}
    for index, findings in (*judged.found.items(), *judged.again.items()):
        rules = broken.setdefault(events[index].span_id, {})
        rules.update((finding.rule, finding.explanation) for finding in findings)
    return by_weight([*judged.late, *(finding for found in judged.found.values() for finding in found)]), broken


def _hits(request: RecordedRequest) -> int:
    last = {lookup.epoch: lookup.answer or 0 for lookup in request.lookups}
    return sum(last.values())


def _named(findings: Sequence[Finding]) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys((finding.rule, finding.request) for finding in findings))

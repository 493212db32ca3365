"""Asks the rules, counts judgements by rule, and makes findings from drifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.detect.tracked import Key
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, WORST_FIRST, Drift, Finding, Judgement, Unknown
from kvtrail.tracer.rules.rule_set import Judge, Judges, Tally

MAX_FINDINGS = 200
"""Maximum number of findings of one request: a rule may be broken in each of its epochs."""
ELSEWHERE = "elsewhere/"
"""Prefix of the names of recorders that report to another sidecar, which makes the findings about their requests."""
JudgesByField = Sequence[tuple[str, Sequence[tuple[Tally, Judge]]]]
"""The judges of one kind of event, by the field that the event must have (`Rule.only_with`)."""


def by_field(judges: Judges) -> dict[Kind, JudgesByField]:
    """Group the judges of each kind of event by the field that an event must have a value in."""
    grouped: dict[Kind, dict[str, list[tuple[Tally, Judge]]]] = {}
    for kind, those in judges.items():
        for tally, judge in those:
            grouped.setdefault(kind, {}).setdefault(tally.rule.only_with, []).append((tally, judge))
    return {kind: list(each.items()) for kind, each in grouped.items()}


@dataclass(slots=True)
class Judgements:
    """The findings of a detector.

    Attributes:
        on_error: called with an exception of a rule, or of the accounting, and its name.
        findings: by request and id.
    """

    on_error: Callable[[str, Exception], None] | None
    findings: dict[Key, dict[str, Finding]] = field(default_factory=dict)
    _touched: dict[str, Finding] = field(default_factory=dict)

    def take(self) -> list[Finding]:
        """The findings that are new, or recurred, since the last call."""
        touched, self._touched = self._touched, {}
        return list(touched.values())

    def ask(self, judges: JudgesByField, event: Event, known: Account | Engine) -> Judgement:
        """Ask rules about an event, with the state before it. Returns `Unknown.RULE` if one of them failed, otherwise `OK` if
        one of them said so, otherwise None."""
        said: Judgement = None
        has_failed = False
        for needed, those in judges:
            if needed and getattr(event, needed) is None:
                continue
            for tally, judge in those:
                try:
                    judgement = judge(event, known)
                    if judgement is OK:
                        tally.ok += 1
                        said = OK
                    elif judgement is not None:
                        self.record(tally, judgement)
                except Exception as error:
                    self.failed(tally, error)
                    has_failed = True
        return Unknown.RULE if has_failed else said

    def known(self, fresh: Finding) -> Finding | None:
        """The finding that a new one repeats. If a request has very many, it is the last one of the rule."""
        held = self.findings.get((fresh.engine, fresh.request), {})
        if len(held) >= MAX_FINDINGS and fresh.id not in held:
            return next((finding for finding in reversed(held.values()) if finding.rule == fresh.rule), None)
        return held.get(fresh.id)

    def record(self, tally: Tally, judgement: Unknown | Drift | tuple[Drift, ...]) -> None:
        """Count a judgement other than `OK`; a drift becomes a finding, or is counted in the finding that it repeats."""
        if isinstance(judgement, Unknown):
            tally.unknown[judgement] += 1
        elif isinstance(judgement, Drift):
            if judgement.witness[-1].recorder.startswith(ELSEWHERE):
                return
            finding = tally.rule.finding(judgement)
            known = self.known(finding)
            if (
                known is None
                and tally.rule.yields_to_other_rules
                and (finding.engine, finding.request) in self.findings
            ):
                return
            if judgement.grown and known is not None:
                if known.witness[-1].span_id == finding.witness[-1].span_id:
                    self.update(tally, known, finding)
                return
            if known is None:
                finding.explanation = tally.rule.explain(finding)
                self.findings.setdefault((finding.engine, finding.request), {})[finding.id] = finding
            else:
                known.count += 1
                known.healed += finding.healed
                known.last_ns = max(known.last_ns, finding.last_ns)
                if WORST_FIRST[finding.severity] < WORST_FIRST[known.severity]:
                    known.severity, known.numbers, known.witness = finding.severity, finding.numbers, finding.witness
                    known.explanation = tally.rule.explain(known)
                finding = known
            tally.drift += 1
            self._touched[finding.id] = finding
        else:
            for each in judgement:
                self.record(tally, each)

    def update(self, tally: Tally, known: Finding, fresh: Finding) -> None:
        """Update a finding that is reported differently now: its numbers have grown, or it also happened earlier."""
        known.numbers, known.witness = fresh.numbers, fresh.witness
        known.first_ns, known.last_ns = fresh.first_ns, fresh.last_ns
        known.explanation = tally.rule.explain(known)
        self._touched[known.id] = known

    def failed(self, what: Tally | str, error: Exception) -> None:
        """Handle an exception of a rule, or of the accounting."""
        if isinstance(what, Tally):
            what.unknown[Unknown.RULE] += 1
        if self.on_error is not None:
            self.on_error(what if isinstance(what, str) else what.rule.id, error)

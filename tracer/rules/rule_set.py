"""All rules, and the set of rules that judge a history, by kind of event, with the number of each rule's verdicts."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.unsupported import kinds_missing
from kvtrail.tracer.model.findings import Judgement, Unknown, Verdict
from kvtrail.tracer.rules import pages
from kvtrail.tracer.rules.rule import DeadlineRule, EngineRule, PairRule, RequestRule, Rule

Judge = Callable[[Any, Any], Judgement]


def _incomplete(judge: Judge) -> Judge:
    """A rule's judge for an account with missing events."""
    return lambda event, account: None if judge(event, account) is None else account.missing


def _blind(judge: Judge) -> Judge:
    """A rule's judge for an engine with requests that are not recorded."""
    return lambda event, engine: None if judge(event, engine) is None else engine.blind


@dataclass(slots=True)
class Tally:
    """A rule, and the number of times that it gave each verdict."""

    rule: Rule
    ok: int = 0
    drift: int = 0
    unknown: Counter[Unknown] = field(default_factory=Counter)


Judges = dict[Kind, list[tuple[Tally, Judge]]]
"""The rules' judges with their tallies, by kind of event."""


class RuleSet:
    """The rules that judge a history, by kind of event, and the number of each rule's verdicts.

    Attributes:
        for_requests: the judges for an account with missing events, and for any other.
        for_engines: the judges for an engine with requests that are not recorded, and for any other.
        for_pairs: the same, for the rules that judge both engines of a hand-off.
        deadlines: the rules with a deadline.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.for_requests: tuple[Judges, Judges] = ({}, {})
        self.for_engines: tuple[Judges, Judges] = ({}, {})
        self.for_pairs: tuple[Judges, Judges] = ({}, {})
        self.deadlines: list[tuple[Tally, DeadlineRule]] = []
        self._tallies = [Tally(rule) for rule in sorted(rules, key=lambda rule: rule.yields_to_other_rules)]
        for tally in self._tallies:
            rule = tally.rule
            if isinstance(rule, DeadlineRule):
                self.deadlines.append((tally, rule))
            elif isinstance(rule, RequestRule | EngineRule):
                of_requests = isinstance(rule, RequestRule)
                of_engines = self.for_pairs if isinstance(rule, PairRule) else self.for_engines
                partial, whole = self.for_requests if of_requests else of_engines
                unsure = _incomplete if of_requests else _blind
                for kind in rule.kinds:
                    whole.setdefault(kind, []).append((tally, rule.judge))
                    judge = unsure(rule.judge) if rule.needs_history else rule.judge
                    partial.setdefault(kind, []).append((tally, judge))

    def request_over(self, declared: str) -> None:
        """Count `unknown` for the rules that need what the engine of an ended request declares as unsupported."""
        missing = kinds_missing(declared)
        lacking = {tally.rule.id: tally for tally in self._tallies if not missing.isdisjoint(tally.rule.kinds)}
        for tally in lacking.values():
            tally.unknown[Unknown.VERSION] += 1

    @property
    def verdicts(self) -> Counter[tuple[str, Verdict]]:
        """The number of times that each rule, by its id, gave each verdict; verdicts that were never given are left out."""
        counted: Counter[tuple[str, Verdict]] = Counter()
        for tally in self._tallies:
            counted[tally.rule.id, Verdict.OK] += tally.ok
            counted[tally.rule.id, Verdict.DRIFT] += tally.drift
            counted[tally.rule.id, Verdict.UNKNOWN] += tally.unknown.total()
        return +counted

    @property
    def unknown(self) -> Counter[tuple[str, Unknown]]:
        """The number of times that each rule, by its id, could not decide, by reason."""
        counted: Counter[tuple[str, Unknown]] = Counter()
        for tally in self._tallies:
            counted.update({(tally.rule.id, why): count for why, count in tally.unknown.items()})
        return counted


@cache
def all_rules() -> Sequence[Rule]:
    """Every rule that has a page in these folders, by id: the classes of the module beside the page."""
    names = (f"{__package__}.{path.parent.name}.{path.stem}" for path in pages.files().values())
    return [
        value()
        for module in map(importlib.import_module, names)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__
    ]

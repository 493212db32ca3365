"""The rules that judge, by the kinds of events they judge, and how often each gave which verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.engine_state import Engine
from kvtrail.tracer.detect.rules import DeadlineRule, EngineRule, RequestRule, Rule
from kvtrail.tracer.model.findings import Judgement, Verdict
from kvtrail.tracer.model.semconv import Kind


@dataclass(slots=True)
class Tally:
    """A rule, and how often it gave each verdict."""

    rule: Rule
    ok: int = 0
    drift: int = 0
    unknown: int = 0


class Court:
    """Rules at hand for every kind of event.

    Attributes:
        by_kind: the rules that judge requests.
        by_engine: the rules that judge engines.
        deadlines: the rules that judge what has not happened.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.by_kind: dict[Kind, list[tuple[Tally, Callable[[Any, Account], Judgement]]]] = {}
        self.by_engine: dict[Kind, list[tuple[Tally, Callable[[Any, Engine], Judgement]]]] = {}
        self.deadlines: list[tuple[Tally, DeadlineRule]] = []
        self._tallies = [Tally(rule) for rule in rules]
        for tally in self._tallies:
            rule = tally.rule
            for kind in rule.kinds:
                if isinstance(rule, RequestRule):
                    self.by_kind.setdefault(kind, []).append((tally, rule.judge))
                elif isinstance(rule, EngineRule):
                    self.by_engine.setdefault(kind, []).append((tally, rule.judge))
            if isinstance(rule, DeadlineRule):
                self.deadlines.append((tally, rule))

    @property
    def verdicts(self) -> Counter[tuple[str, Verdict]]:
        """How often each rule, by its id, gave each verdict; those that were never given are left out."""
        given = {
            (tally.rule.id, verdict): count
            for tally in self._tallies
            for verdict, count in (
                (Verdict.OK, tally.ok),
                (Verdict.DRIFT, tally.drift),
                (Verdict.UNKNOWN, tally.unknown),
            )
        }
        return +Counter(given)

"""The rules: one file each. Adding a rule means adding a file here (and its tests and documentation).

A rule file defines one rule with a docstring that begins with its title, states the invariant as a formula and names its
source. It judges one event at a time, against the request's account or the engine as it stood before that event, or is asked
about requests that wait.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.engine_state import Engine
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, witnesses
from kvtrail.tracer.model.semconv import Kind

E = TypeVar("E", bound=Event, contravariant=True)
"""The events that a rule judges: those of its kinds."""


class Rule(ABC):
    """An invariant and the words for its breach."""

    id: ClassVar[str]
    severity: ClassVar[Severity]
    kinds: ClassVar[frozenset[Kind]]
    """The kinds of events that this rule judges."""
    hint: ClassVar[str]
    """What usually causes the drift, and what to do about it."""
    classes: ClassVar[tuple[str, ...]]
    """The classes of the taxonomy of drift that it decides: C1, C2, ..."""

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return (type(self).__doc__ or self.id).strip().splitlines()[0].rstrip(".")

    def finding(self, drift: Drift) -> Finding:
        """The drift as a finding about the request of its last witness, without its explanation."""
        last = drift.witness[-1]
        return Finding(
            rule=self.id,
            title=self.title,
            severity=self.severity,
            engine=last.engine,
            request=last.request or "",
            external=last.external or "",
            trace_id=last.trace_id,
            connector=last.connector,
            epoch=last.epoch,
            first_ns=last.start_ns,
            last_ns=last.start_ns,
            count=1,
            healed=int(drift.healed),
            numbers=drift.numbers,
            witness=witnesses(drift.witness),
            hint=self.hint,
        )

    @abstractmethod
    def explain(self, finding: Finding) -> str:
        """The contradiction in sentences, from the finding's data alone."""


class RequestRule(Rule, Generic[E]):
    """Judges the events of a request, in their order, by its account."""

    @abstractmethod
    def judge(self, event: E, account: Account) -> Judgement:
        """Judge one event of the rule's kinds; `account` is the request's as it stood before the event.

        A rule that leans on the account's history must answer `Verdict.UNKNOWN` when `account.complete` is False.
        """


class EngineRule(Rule, Generic[E]):
    """Judges the events of an engine, in their order, by what is known of it across its requests."""

    @abstractmethod
    def judge(self, event: E, engine: Engine) -> Judgement:
        """Judge one event of the rule's kinds; `engine` is as it stood before the event. It must answer `Verdict.UNKNOWN`
        where it leans on history and `engine.complete` is False."""


class DeadlineRule(Rule):
    """Judges what has not happened: asked from time to time about every request that waits for something."""

    kinds: ClassVar[frozenset[Kind]] = frozenset()

    @abstractmethod
    def overdue(self, account: Account, now_ns: int) -> Drift | None:
        """The drift, if the request has waited too long at `now_ns`."""


@dataclass(slots=True)
class Tally:
    """A rule, and how often it gave each verdict."""

    rule: Rule
    ok: int = 0
    drift: int = 0
    unknown: int = 0


class RuleSet:
    """The rules that judge, by kind of event, and how often each gave which verdict.

    Attributes:
        for_requests, for_engines: for each kind of event, the rules that judge it and their tallies.
        deadlines: the rules that judge what has not happened.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.for_requests: dict[Kind, list[tuple[Tally, Callable[[Any, Account], Judgement]]]] = {}
        self.for_engines: dict[Kind, list[tuple[Tally, Callable[[Any, Engine], Judgement]]]] = {}
        self.deadlines: list[tuple[Tally, DeadlineRule]] = []
        self._tallies = [Tally(rule) for rule in rules]
        for tally in self._tallies:
            rule = tally.rule
            for kind in rule.kinds:
                if isinstance(rule, RequestRule):
                    self.for_requests.setdefault(kind, []).append((tally, rule.judge))
                elif isinstance(rule, EngineRule):
                    self.for_engines.setdefault(kind, []).append((tally, rule.judge))
            if isinstance(rule, DeadlineRule):
                self.deadlines.append((tally, rule))

    @property
    def verdicts(self) -> Counter[tuple[str, Verdict]]:
        """How often each rule, by its id, gave each verdict; verdicts that were never given are left out."""
        return +Counter(
            {
                (tally.rule.id, verdict): count
                for tally in self._tallies
                for verdict, count in (
                    (Verdict.OK, tally.ok),
                    (Verdict.DRIFT, tally.drift),
                    (Verdict.UNKNOWN, tally.unknown),
                )
            }
        )


@cache
def all_rules() -> Sequence[Rule]:
    """Every rule in this folder, by id."""
    modules = [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
        if info.name != "__main__"
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__
    }
    return sorted((cls() for cls in classes), key=lambda rule: rule.id)


def page(rule: Rule) -> str:
    """A rule's part of the documentation page."""
    text = inspect.cleandoc(type(rule).__doc__ or "")
    return f"## `{rule.id}`\n\nSeverity: {rule.severity}.\n\n{text}\n\nUsually: {rule.hint}\n"


def as_markdown() -> str:
    """The documentation page of the rules, made of their docstrings."""
    parts = [
        "# Rules\n\nGenerated from the rules' docstrings by `python benchmarks/recall.py --write`; a test fails when the two"
        " differ.\n\nSymbols, all counting tokens: N of the request, c computed by vLLM, h matched in the connector's"
        " store,"
        " e returned by a lookup, x allocated.\n\nFor tests and demos, a known bug can be injected into any connector as"
        " `Faulty:<fault>:<connector>`: the fault `stale-lookup` is found by the rule of the same name.\n"
    ]
    return "\n".join(parts + [page(rule) for rule in all_rules()])

"""The rules, one file each, and the rule set that applies them.

A rule file defines one rule. Its docstring begins with its title, states the invariant as a formula and names its source. To
add a rule, add such a file, an incident and two look-alikes (tests/incidents), and a fault (tests/faults).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import Kind, Level
from kvtrail.tracer.events.unsupported import kinds_missing
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.deadline_clocks import CountedTime
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Unknown, Verdict, witnesses
from kvtrail.tracer.model.words import singular


class KnownBy(StrEnum):
    """How a rule detects a fault."""

    COUNT = "a wrong count"
    """A number, a key or an order of events contradicts another one: known with the event that does."""
    BYTES = "wrong bytes"
    """A block holds other bytes than were computed: known when it is checked."""
    EXCEPTION = "an exception"
    """A call raised."""
    DEADLINE = "a deadline"
    """Something that could have happened did not, for a long time."""


class Groups(StrEnum):
    """What a rule says of a model with several KV cache groups."""

    INDEPENDENT = "independent of them"
    """It judges calls and counts of tokens, which are the same for all groups."""
    EACH = "judged for each of them"
    FULL = "judged for the first group of full attention"
    """Its blocks hold all tokens; what other groups store and load is part of the same transfers."""
    UNKNOWN = "not judged"


E = TypeVar("E", bound=Event, contravariant=True)
"""The events that a rule judges: those of its kinds."""


class Rule(ABC):
    """An invariant, and the explanation of its violation.

    The docstring's first line is its title. The events that it judges are its type parameter: `RequestRule[Alloc]` judges
    allocations, `EngineRule[LoadPlan | StorePlan]` two kinds of events.
    """

    id: ClassVar[str]
    severity: ClassVar[Severity]
    """The worst that its drift can do."""
    harm_may_be_unknown: ClassVar[bool] = False
    """Whether some of its drifts are only a `BROKEN_CONTRACT`: those that are not known to have done harm."""
    classes: ClassVar[tuple[str, ...]]
    """The classes of the taxonomy of drift that it decides: C1, C2, ..."""
    hint: ClassVar[str]
    """What usually causes the drift, and how to mend it."""
    mitigation: ClassVar[str] = ""
    """What keeps a production engine right until then."""
    needs_history: ClassVar[bool] = True
    """Whether each of its judgements is `unknown` where the request's history is incomplete, or where the engine as a
    whole is recorded incompletely. If False, the rule decides this itself."""
    known_by: ClassVar[KnownBy] = KnownBy.COUNT
    groups: ClassVar[Groups] = Groups.INDEPENDENT
    level: ClassVar[Level] = Level.BASIC
    """The least level of recording at which it finds its drift."""
    steps_back: ClassVar[bool] = False
    """Whether it is silent about a request in which another rule has found something, which explains it better."""
    explanation: ClassVar[str] = ""
    """A format string: `{0}` is the first witness (see `Witness.__format__`), `{name}` is one of the finding's numbers."""
    kinds: ClassVar[frozenset[Kind]] = frozenset()
    """The kinds of the events that it judges; derived from its type parameter."""
    only_with: ClassVar[str] = ""
    """A field of its events: it is not asked about those that have None there."""
    State: ClassVar[type[Any] | None] = None
    """What it alone remembers, and how that follows events."""
    of_pairs: ClassVar[bool] = False
    """Whether it judges by what both engines of a hand-off report: whether it is one of `rules/handoffs`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        parameters = [each for base in getattr(cls, "__orig_bases__", ()) for each in get_args(base)]
        events = [event for each in parameters for event in get_args(each) or (each,)]
        cls.kinds = frozenset(event.kind for event in events if isinstance(event, type) and issubclass(event, Event))
        cls.of_pairs = cls.__module__.startswith(f"{__name__}.handoffs.")

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return (type(self).__doc__ or self.id).strip().splitlines()[0].rstrip(".")

    @property
    def severities(self) -> tuple[Severity, ...]:
        """Those that its findings may have, worst first."""
        return (self.severity, Severity.BROKEN_CONTRACT) if self.harm_may_be_unknown else (self.severity,)

    @property
    def advice(self) -> str:
        """The hint, and the mitigation if there is one."""
        return f"{self.hint} {self.mitigation}".rstrip()

    def finding(self, drift: Drift) -> Finding:
        """The drift as a finding about the request of its last witness, without its explanation."""
        last = drift.witness[-1]
        return Finding(
            rule=self.id,
            title=self.title,
            severity=drift.severity or self.severity,
            engine=last.engine,
            request=last.request or "",
            external=last.external or "",
            trace_id=next((e.trace_id for e in reversed(drift.witness) if e.kind is not Kind.SCHEDULE), last.trace_id),
            connector=last.connector if drift.connector is None else drift.connector,
            epoch=last.epoch,
            first_ns=last.start_ns,
            last_ns=last.start_ns,
            count=1,
            healed=int(drift.healed),
            numbers=drift.numbers,
            witness=witnesses(drift.witness),
            hint=self.advice,
        )

    def explain(self, finding: Finding) -> str:
        """The contradiction in sentences, from the finding's data alone."""
        text = self.template(finding).format(*finding.witness, **{**finding.numbers, **self.values(finding)})
        return singular(text)

    def template(self, finding: Finding) -> str:
        """The explanation's format string, for a rule that has several. No text of an event may be part of it."""
        return self.explanation

    def values(self, finding: Finding) -> dict[str, Any]:
        """Values for the explanation that are not among the finding's numbers."""
        return {}


class RequestRule(Rule, Generic[E]):
    """Judges the events of a request, in order, by its account.

    What it alone remembers of a request is `account.states[State]`; see `ledger/rule_states.py`.
    """

    @abstractmethod
    def judge(self, event: E, account: Account) -> Judgement:
        """Judge one event; `account` is the request's as it was before the event.

        Returns `OK`, a `Drift`, the reason as an `Unknown` if the recorded events cannot decide it, or None if the
        rule does not apply to the event.
        """


class EngineRule(Rule, Generic[E]):
    """Judges the events of an engine, in order, by its state across requests.

    What it alone remembers of an engine is `engine.states[State]`; see `ledger/rule_states.py`.
    """

    @abstractmethod
    def judge(self, event: E, engine: Engine) -> Judgement:
        """Judge one event, as `RequestRule.judge` does; `engine` is as it was before the event. It holds what is known:
        where a fact is absent since events are missing, the answer is `engine.missing`."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Something that a request waits for, by a rule with a deadline.

    Attributes:
        since: the event since which it waits, of the scheduler's side.
        drift: what it is if it waits too long; `waited_s` and `counted_s` are added to its numbers.
        within_s: how much counted time it may take, in seconds.
        counted: which part of the recorder's time counts.
        in_turn: whether it counts only since the connector has ended what it had begun before.
        asked_s: counted time at least, in seconds, whatever part of the time counts.
    """

    since: Event
    drift: Drift
    within_s: float
    counted: CountedTime
    in_turn: bool = False
    asked_s: float = 0.0


class DeadlineRule(Rule):
    """Judges what has not happened though it could have. The detector asks it about the requests that wait: at their
    recorder's heartbeats, and when their next event comes.

    Its time is that of `DeadlineClocks`: it counts only while the scheduler, or another engine, could do what the request
    waits for. The findings' numbers have `waited_s`, all the time that has passed, and `counted_s`, that part of it.
    """

    known_by = KnownBy.DEADLINE
    after_s: ClassVar[float]
    """How much counted time a request may wait at least, in seconds; connectors may declare that they wait for longer."""

    @abstractmethod
    def pending(self, account: Account, engine: Engine) -> Pending | None:
        """What the request waits for; None if it waits for nothing by this rule."""


Judge = Callable[[Any, Any], Judgement]


def _incomplete(judge: Judge) -> Judge:
    """A rule's judge for an account with missing events."""
    return lambda event, account: None if judge(event, account) is None else account.missing


def _blind(judge: Judge) -> Judge:
    """A rule's judge for an engine with requests that are not recorded."""
    return lambda event, engine: None if judge(event, engine) is None else engine.blind


@dataclass(slots=True)
class Tally:
    """A rule, and how often it gave each verdict."""

    rule: Rule
    ok: int = 0
    drift: int = 0
    unknown: Counter[Unknown] = field(default_factory=Counter)


Judges = dict[Kind, list[tuple[Tally, Judge]]]
"""By kind of event: the rules' judges, with their tallies."""


class RuleSet:
    """The rules that judge, by kind of event, and how often each gave which verdict.

    Attributes:
        for_requests: the judges for an account with missing events, and for any other.
        for_engines: the judges for an engine with requests that are not recorded, and for any other.
        for_pairs: the same, of the rules that judge both engines of a hand-off.
        deadlines: the rules that judge what has not happened.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.for_requests: tuple[Judges, Judges] = ({}, {})
        self.for_engines: tuple[Judges, Judges] = ({}, {})
        self.for_pairs: tuple[Judges, Judges] = ({}, {})
        self.deadlines: list[tuple[Tally, DeadlineRule]] = []
        self._tallies = [Tally(rule) for rule in sorted(rules, key=lambda rule: rule.steps_back)]
        for tally in self._tallies:
            rule = tally.rule
            if isinstance(rule, DeadlineRule):
                self.deadlines.append((tally, rule))
            elif isinstance(rule, RequestRule | EngineRule):
                of_requests = isinstance(rule, RequestRule)
                of_engines = self.for_pairs if rule.of_pairs else self.for_engines
                partial, whole = self.for_requests if of_requests else of_engines
                unsure = _incomplete if of_requests else _blind
                for kind in rule.kinds:
                    whole.setdefault(kind, []).append((tally, rule.judge))
                    judge = unsure(rule.judge) if rule.needs_history else rule.judge
                    partial.setdefault(kind, []).append((tally, judge))

    def request_over(self, declared: str) -> None:
        """A request has ended in an engine that declares this as unsupported: rules that need it are `unknown`."""
        missing = kinds_missing(declared)
        for tally in self._tallies:
            if not missing.isdisjoint(tally.rule.kinds):
                tally.unknown[Unknown.VERSION] += 1

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
                    (Verdict.UNKNOWN, tally.unknown.total()),
                )
            }
        )

    @property
    def unknown(self) -> Counter[tuple[str, Unknown]]:
        """How often each rule, by its id, could not decide, by the reason."""
        return Counter({(tally.rule.id, why): count for tally in self._tallies for why, count in tally.unknown.items()})


@cache
def all_rules() -> Sequence[Rule]:
    """Every rule in these folders, by id."""
    modules = [
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(__path__, f"{__name__}.")
        if not info.name.endswith("__main__")
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
    about = f"Severity: {', or '.join(rule.severities)}. Level: `{rule.level}`. Known by {rule.known_by}."
    about += f" Several [groups](groups.md): {rule.groups}."
    return f"## `{rule.id}`\n\n{about}\n\n{text}\n\nUsually: {rule.advice}\n"


def as_markdown() -> str:
    """The documentation page of the rules, made of their docstrings."""
    parts = [
        "# Rules\n\nGenerated from the rules' docstrings by `python benchmarks/recall.py --write`; a test fails when the two"
        " differ.\n\nSymbols, all counting tokens: N of the request, c computed by vLLM, h matched in the connector's"
        " store, e returned by a lookup, x allocated.\n\nA rule's level is the least [level](settings.md) of recording at"
        " which it finds its drift; at `detailed`, the default, all of them do.\n\nA request's verdict is `drift` if a rule"
        " found something, `ok` if at least one rule judged it, nothing of it is missing and it has ended, and `unknown`"
        " otherwise. `ok` says that the recorded numbers of the connector and the scheduler agree with each other, as far as"
        " these rules look. It says nothing of the request's outcome: one that failed with HTTP 500, was aborted, or was slow"
        " may be `ok`. Nor does it say that the answer is right: bytes are judged only where they were compared.\n\n"
        "For tests and demos, a known bug can be injected into any connector as `Faulty:<fault>:<connector>`. Four come with"
        " kvtrail: `stale-lookup`, `over-report` and `under-report`, which the rules of the same names find, and"
        " `blocks-exchanged`, which `byte-drift` finds; the tests have one for each rule. Rules about bytes judge what the"
        " engine's workers found when they compared blocks (`kv.block_check`).\n"
    ]
    return "\n".join(parts + [page(rule) for rule in all_rules()])

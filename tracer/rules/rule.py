"""What a rule is: the base classes, by what they judge.

The base class says by what a rule judges: a request's account (`RequestRule`), the state of an engine (`EngineRule`), both
engines of a hand-off (`PairRule`), or what has not happened in time (`DeadlineRule`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from string import Formatter
from typing import Any, ClassVar, Generic, TypeVar, get_args

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.ledger.recorder_clocks import CountedTime
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, witnesses
from kvtrail.tracer.model.words import singular
from kvtrail.tracer.rules import pages
from kvtrail.tracer.rules.pages import Page

E = TypeVar("E", bound=Event, contravariant=True)
"""The events that a rule judges: those of its kinds."""


class Rule(ABC):
    """An invariant, and the explanation of its violation.

    The events that it judges are its type parameter: `RequestRule[Alloc]` judges allocations, `EngineRule[Lookup | Evict]`
    two kinds of events. A rule that has to be judged by two things has two classes in its module, with the same id.
    """

    id: ClassVar[str]
    """The name of its module, which is that of its page, with hyphens."""
    needs_history: ClassVar[bool] = True
    """Whether each of its judgements is `unknown` where the request's history is incomplete, or where the engine as a
    whole is recorded incompletely. If False, the rule decides this itself."""
    yields_to_other_rules: ClassVar[bool] = False
    """Whether it is silent about a request in which another rule has found something, which explains it better."""
    kinds: ClassVar[frozenset[Kind]] = frozenset()
    """The kinds of the events that it judges; derived from its type parameter."""
    only_with: ClassVar[str] = ""
    """A field of its events: it is not asked about those that have None there."""
    State: ClassVar[type[Any] | None] = None
    """What it alone remembers, and how that follows events: see `ledger/rule_states.py`."""
    shares_state: ClassVar[bool] = False
    """Whether all engines have one such state together."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        parameters = [each for base in getattr(cls, "__orig_bases__", ()) for each in get_args(base)]
        events = [event for each in parameters for event in get_args(each) or (each,)]
        cls.kinds = frozenset(event.kind for event in events if isinstance(event, type) and issubclass(event, Event))
        if cls.__module__ != __name__ and not hasattr(cls, "id"):
            cls.id = pages.rule_id(cls.__module__.rpartition(".")[2])

    @cached_property
    def page(self) -> Page:
        """Its words."""
        return pages.page(self.id)

    def finding(self, drift: Drift) -> Finding:
        """The drift as a finding about the request of its last witness, without its explanation."""
        last = drift.witness[-1]
        return Finding(
            rule=self.id,
            title=self.page.title,
            severity=drift.severity or self.page.severity,
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
            hint=self.page.hint,
        )

    def explain(self, finding: Finding) -> str:
        """The contradiction in sentences, from the finding's data alone."""
        values = {"last": finding.witness[-1], **finding.numbers, **self.values(finding)}
        known = {name: value for name, value in values.items() if value or type(value) in (int, float)}
        texts = self.page.texts(finding.numbers.get("where"))
        fitting = [text for name, text in texts.items() if name not in values or name in known]
        written = (_written(text, finding, known) for text in fitting)
        main = next(filter(None, written), None) or _SENTENCES.vformat(fitting[-1], finding.witness, values)
        further = filter(None, (_written(text, finding, known) for text in self.page.further))
        return singular(" ".join((main, *further)))

    def values(self, finding: Finding) -> dict[str, Any]:
        """Values for the explanation that are not among the finding's numbers."""
        return {}


class _Sentences(Formatter):
    """Formats explanations. Of a list, the first six items are named."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Mapping):
            return "; ".join(f"{name}: {self.format_field(each, '')}" for name, each in value.items())
        if isinstance(value, list | tuple):
            shown = ", ".join(map(str, value[:MOST_NAMED])) or "none"
            return f"{shown}, ... ({len(value)} in all)" if len(value) > MOST_NAMED else shown
        return str(super().format_field(value, format_spec))


MOST_NAMED = 6
"""Items of a list that an explanation names."""
_SENTENCES = _Sentences()


def _written(text: str, finding: Finding, values: Mapping[str, Any]) -> str | None:
    """The explanation as text; None if the finding lacks a value that it names."""
    try:
        return _SENTENCES.vformat(text, finding.witness, values)
    except LookupError:
        return None


class RequestRule(Rule, Generic[E]):
    """Judges the events of a request in order, by its account and by the rule's own state (`account.states[State]`)."""

    @abstractmethod
    def judge(self, event: E, account: Account) -> Judgement:
        """Judge one event; `account` is the request's as it was before the event.

        Returns `OK`, a `Drift`, the reason as an `Unknown` if the recorded events cannot decide it, or None if the
        rule does not apply to the event.
        """


class EngineRule(Rule, Generic[E]):
    """Judges the events of an engine in order, by the engine's state across requests and by the rule's own state
    (`engine.states[State]`)."""

    @abstractmethod
    def judge(self, event: E, engine: Engine) -> Judgement:
        """Judge one event, as `RequestRule.judge` does; `engine` is as it was before the event. It holds what is known:
        where a fact is absent since events are missing, the answer is `engine.missing`."""


class PairRule(EngineRule[E]):
    """Judges by what both engines of a hand-off report, in the order in which the sidecar hears of it (`engine.handoffs`)."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Something that a request waits for, by a rule with a deadline.

    Attributes:
        since: the event since which it waits, of the scheduler's side.
        drift: what it is if it waits too long; `waited_s` and `counted_s` are added to its numbers.
        within_s: how much counted time it may take, in seconds.
        counted: which part of the recorder's time counts.
        after_earlier_transfers: whether it counts only since the connector has ended what it had begun before.
        min_active_s: counted time at least, in seconds, whatever part of the time counts.
    """

    since: Event
    drift: Drift
    within_s: float
    counted: CountedTime
    after_earlier_transfers: bool = False
    min_active_s: float = 0.0


class DeadlineRule(Rule):
    """Judges what has not happened though it could have. The detector asks it about the requests that wait: at their
    recorder's heartbeats, and when their next event comes.

    Its time is that of `DeadlineClocks`: it counts only while the scheduler, or another engine, could do what the request
    waits for. The findings' numbers have `waited_s`, all the time that has passed, and `counted_s`, that part of it.
    """

    after_s: ClassVar[float]
    """How much counted time a request may wait at least, in seconds; connectors may declare that they wait for longer."""

    @abstractmethod
    def pending(self, account: Account, engine: Engine) -> Pending | None:
        """What the request waits for; None if it waits for nothing by this rule."""

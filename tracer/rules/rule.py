"""The base classes of rules.

A rule's base class determines its input: a request's account (`RequestRule`), the state of an engine (`EngineRule`), both
engines of a hand-off (`PairRule`), or the time that something has been pending (`DeadlineRule`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
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
"""The types of the events that a rule judges."""


class Rule(ABC):
    """An invariant, and the explanation of its violation.

    Its type parameter is the type of the events that it judges: `RequestRule[Alloc]` judges allocations,
    `EngineRule[Lookup | Evict]` judges two kinds of events. A rule with two different inputs has two classes in its module,
    with the same id.
    """

    id: ClassVar[str]
    """The name of its module and page, with hyphens."""
    needs_history: ClassVar[bool] = True
    """Whether each of its judgements is `unknown` if the history of the request, or of the engine as a whole, is incomplete.
    If False, the rule decides this itself."""
    yields_to_other_rules: ClassVar[bool] = False
    """Whether it reports nothing about a request with a finding of another rule, which explains the fault better."""
    kinds: ClassVar[frozenset[Kind]] = frozenset()
    """The kinds of the events that it judges; derived from its type parameter."""
    only_with: ClassVar[str] = ""
    """A field of its events. The rule is not asked about events in which this field is None. Without block ids, this saves
    5 % of the detector's time."""
    State: ClassVar[type[Any] | None] = None
    """The class of the rule's own state, which is updated by events: see `ledger/rule_states.py`."""
    shares_state: ClassVar[bool] = False
    """Whether all engines share one such state."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        parameters = [each for base in getattr(cls, "__orig_bases__", ()) for each in get_args(base)]
        events = [event for each in parameters for event in get_args(each) or (each,)]
        cls.kinds = frozenset(event.kind for event in events if isinstance(event, type) and issubclass(event, Event))
        if cls.__module__ != __name__ and not hasattr(cls, "id"):
            cls.id = pages.rule_id(cls.__module__.rpartition(".")[2])

    @property
    def page(self) -> Page:
        """The rule's page."""
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
    """Formats explanations. Only the first six items of a list are named."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Mapping):
            return "; ".join(f"{name}: {self.format_field(each, '')}" for name, each in value.items())
        if isinstance(value, list | tuple):
            shown = ", ".join(map(str, value[:MOST_NAMED])) or "none"
            return f"{shown}, ... ({len(value)} in all)" if len(value) > MOST_NAMED else shown
        return str(super().format_field(value, format_spec))


MOST_NAMED = 6
"""Maximum number of items of a list that an explanation names."""
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
        """Judge one event; `account` is the request's account before the event.

        Returns `OK`, a `Drift`, the reason as an `Unknown` if the recorded events cannot decide it, or None if the
        rule does not apply to the event.
        """


class EngineRule(Rule, Generic[E]):
    """Judges the events of an engine in order, by the engine's state across requests and by the rule's own state
    (`engine.states[State]`)."""

    @abstractmethod
    def judge(self, event: E, engine: Engine) -> Judgement:
        """Judge one event, as `RequestRule.judge` does; `engine` is the engine's state before the event. It holds only known
        facts. If a fact is absent because events are missing, return `engine.missing`."""


class PairRule(EngineRule[E]):
    """Judges by the reports of both engines of a hand-off, in the order of arrival at the sidecar (`engine.handoffs`)."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Something that a request waits for, by a rule with a deadline.

    Attributes:
        since: the scheduler-side event since which it waits.
        drift: the drift if it waits too long; `waited_s` and `counted_s` are added to its numbers.
        within_s: the maximum counted time, in seconds.
        counted: which part of the recorder's time counts.
        after_earlier_transfers: whether time counts only once the connector has ended all transfers that it began before.
        min_active_s: the minimum counted time, in seconds, whatever part of the time counts.
    """

    since: Event
    drift: Drift
    within_s: float
    counted: CountedTime
    after_earlier_transfers: bool = False
    min_active_s: float = 0.0


class DeadlineRule(Rule):
    """Judges requests for which something has not happened though it could have. The detector asks it about waiting requests
    at their recorder's heartbeats, and when their next event arrives.

    `DeadlineClocks` measures the time: it counts only while the scheduler, or another engine, could do what the request waits
    for. In a finding's numbers, `waited_s` is the whole time, and `counted_s` is the counted part.
    """

    after_s: ClassVar[float]
    """The counted time that a request may wait, in seconds. Connectors may declare a longer time."""

    @abstractmethod
    def pending(self, account: Account, engine: Engine) -> Pending | None:
        """What the request waits for; None if it waits for nothing by this rule."""

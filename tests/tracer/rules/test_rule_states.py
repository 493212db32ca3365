"""What a rule remembers itself, and the events that it is asked about."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from history import history
from msgspec import structs

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Alloc, Event, Lookup
from kvtrail.tracer.events.handlers import handlers
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Judgement
from kvtrail.tracer.rules.rule import EngineRule, RequestRule, Rule
from kvtrail.tracer.rules.rule_set import all_rules


@dataclass
class Seen:
    """The requests of the lookups before."""

    requests: list[str | None] = field(default_factory=list)

    def _enter_lookup(self, event: Lookup, known: Account | Engine) -> None:
        self.requests.append(event.request)


ASKED: list[list[str | None]] = []
"""What the rule below remembered, each time that it was asked."""


class OfEngine(EngineRule[Alloc]):
    id = "of-engine"
    State = Seen

    def judge(self, event: Alloc, engine: Engine) -> Judgement:
        ASKED.append(engine.states[Seen].requests.copy())
        return OK


class OfAllEngines(OfEngine):
    id = "of-all-engines"
    shares_state = True


class OfRequest(RequestRule[Alloc]):
    id = "of-request"
    State = Seen

    def judge(self, event: Alloc, account: Account) -> Judgement:
        ASKED.append(account.states[Seen].requests.copy())
        return OK


def asked(rule: Rule, *events: Event) -> list[list[str | None]]:
    ASKED.clear()
    detector = Detector(rules=[rule])
    detector.feed(events)
    detector.settle()
    return ASKED.copy()


A = history("L 300 c0 -> 0\nA 0", request="a")
B = [structs.replace(event, sequence=event.sequence + len(A)) for event in history("L 300 c0 -> 0\nA 0", request="b")]


def test_a_state_has_what_came_before_the_event_that_is_judged() -> None:
    assert asked(OfEngine(), *A, *B) == [["a"], ["a", "b"]]


def test_each_request_has_a_state_of_its_own() -> None:
    assert asked(OfRequest(), *A, *B) == [["a"], ["b"]]


def test_a_state_of_an_engine_is_forgotten_where_events_are_missing_and_a_shared_one_is_not() -> None:
    later = [structs.replace(event, sequence=event.sequence + 1) for event in B]
    assert asked(OfEngine(), *A, *later) == [["a"], ["b"]]
    assert asked(OfAllEngines(), *A, *later) == [["a"], ["a", "b"]]


def test_engines_share_a_state_that_their_rule_shares() -> None:
    other = history("L 300 c0 -> 0\nA 0", request="b", engine="other", recorder="other")
    assert asked(OfEngine(), *A, *other) == [["a"], ["b"]]
    assert asked(OfAllEngines(), *A, *other) == [["a"], ["a", "b"]]


@pytest.mark.parametrize("rule", [rule for rule in all_rules() if rule.State is not None], ids=lambda rule: rule.id)
def test_each_method_of_a_state_that_follows_events_names_a_kind(rule: Rule) -> None:
    assert rule.State is not None
    follow = {name for name in dir(rule.State) if name.startswith("_enter_")}
    assert follow == {name for name in follow if getattr(rule.State, name) in handlers(rule.State).values()} != set()


class OnlyWithAnError(RequestRule[Alloc]):
    id = "only-with-an-error"
    only_with = "error"

    def judge(self, event: Alloc, account: Account) -> Judgement:
        ASKED.append([event.error])
        return None


def test_a_rule_that_needs_a_field_is_not_asked_about_events_without_it() -> None:
    failed = structs.replace(A[-1], error="raised")
    assert asked(OnlyWithAnError(), *A) == []
    assert asked(OnlyWithAnError(), *A[:-1], failed) == [["raised"]]

"""Sums of savings and of the estimated effect of more memory, event by event; each event counts once, however often it is
read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvtrail.tracer.capacity.online_curve import STRETCH_S, OnlineMissRatioCurve
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.facts import Breakdown, Fact
from kvtrail.tracer.ledger.handoff_sums import HandedOver
from kvtrail.tracer.savings.counter import SavingsCounter
from kvtrail.tracer.savings.waste import WastedTokens, wasted_of
from kvtrail.tracer.serve.errors import InternalErrors, Where


class Sums:
    """Listens to a detector.

    Attributes:
        savings: the sums to be written.
        wasted: tokens that admissions recomputed, to be written.
        handed_over: the ends of hand-offs to be counted.
        online_curve: the estimated hit rate at other store sizes.
        is_recalling: whether a start reads back events: these are already summed up, but are tracked, since later events are
            compared with them.
    """

    def __init__(self, summed_before: Mapping[str, int], errors: InternalErrors) -> None:
        """`summed_before` has the highest number in the sums of an earlier tracer, by recorder."""
        self.savings = SavingsCounter()
        self.wasted: list[WastedTokens] = []
        self.handed_over: list[HandedOver] = []
        self.is_recalling = False
        self.online_curve, self._errors = OnlineMissRatioCurve(), errors
        self._summed_before = dict(summed_before)
        self._read_back: set[tuple[str, int]] = set()

    def expect_again(self, events: Iterable[Event]) -> None:
        """Note that events are about to be read back."""
        self._read_back.update((event.recorder, event.sequence) for event in events if event.request is not None)

    def expect_first(self, events: Iterable[Event]) -> None:
        """Note that events with known numbers are about to be judged for the first time."""
        for event in events:
            if event.sequence <= self._summed_before.get(event.recorder, -1):
                self._summed_before[event.recorder] = event.sequence - 1

    def entered(self, event: Event, _: Account) -> None:
        """Note that an event was entered into its account and its fact summed up."""
        if self._read_back:
            self._read_back.discard((event.recorder, event.sequence))

    def sum_up(self, fact: Fact, account: Account) -> None:
        """Enter a fact into the phases of its request, and sum it up. If its event was read back, the sums are stored
        already."""
        event = fact.event
        try:
            account.phases.enter(fact)
        except Exception as error:
            self._errors.count(Where.PHASES, error, f"a phase of {account.request} is not shown")
        try:
            if self._read_back and (event.recorder, event.sequence) in self._read_back:
                self.savings.recall(fact, account)
                if self.is_recalling:
                    self.online_curve.enter(fact)
            else:
                self.savings.enter(fact, account)
                if measures := self.online_curve.enter(fact):
                    self.savings.sums.add(event, measures, stretch_s=STRETCH_S)
        except Exception as error:
            self._errors.count(Where.SAVINGS, error, f"span {event.span_id} is not summed up")

    def explain(self, by: Event, breakdown: Breakdown) -> None:
        """Sum up the parts of a prompt that an event has made final, unless an earlier tracer has done so."""
        event = breakdown.event
        try:
            if by.sequence > self._summed_before.get(by.recorder, -1):
                self.savings.explain(breakdown)
                self.wasted += wasted_of(breakdown)
                self.savings.sums.add(event, self.online_curve.admitted(breakdown), stretch_s=STRETCH_S)
            elif self.is_recalling:
                self.online_curve.admitted(breakdown)
        except Exception as error:
            self._errors.count(Where.SAVINGS, error, f"the causes of span {event.span_id} are not summed up")

    def handoff_ended(self, ended: HandedOver) -> None:
        """Count a hand-off that has ended on one side, unless an earlier tracer has counted it."""
        if ended.event.sequence > self._summed_before.get(ended.event.recorder, -1):
            self.handed_over.append(ended)

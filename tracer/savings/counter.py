"""Sums the tokens, lookups, bytes and time that the offload handled, as facts arrive.

Pure, and bounded: each sum belongs to a minute, an engine, a connector, an epoch and a measure. Anything that is undecided
because of a missing event is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Event, Lookup
from kvtrail.tracer.ledger.account import SCHEDULER, Account
from kvtrail.tracer.ledger.facts import (
    Admitted,
    Breakdown,
    Copied,
    Ended,
    Fact,
    LoadReceived,
    LookedUp,
    Offer,
    Preempted,
    Ran,
)
from kvtrail.tracer.model.tenants import PLAIN
from kvtrail.tracer.savings.cause_sums import MAX_TENANTS, FirstNames, measures_of, tenant_of
from kvtrail.tracer.savings.minute_sums import MinuteSums
from kvtrail.tracer.savings.prefill import PrefillTimer

MAX_TIERS = 8
"""Maximum number of distinguished tiers per connector; the rest are `OTHER`."""


@dataclass(slots=True)
class SavingsCounter:
    """Sums the work of the offload.

    Attributes:
        sums: the sums since the caller last cleared them.
        facts: admissions, their causes, waits and preemptions since the caller last cleared them, one by one.
    """

    sums: MinuteSums = field(default_factory=MinuteSums)
    facts: list[Fact | Breakdown] = field(default_factory=list)
    _aggregating_connectors: dict[str, str] = field(default_factory=dict)
    """By recorder, the connector that answers for all others. The reports of its children are not counted again."""
    _tenants: FirstNames = field(default_factory=lambda: FirstNames(MAX_TENANTS))
    _tiers: dict[str, FirstNames] = field(default_factory=dict)
    """By connector."""
    _prefill_timer: PrefillTimer = field(default_factory=PrefillTimer)

    def enter(self, fact: Fact, account: Account) -> None:
        """Enter a fact, after its event was entered into its request's account."""
        if enter := _ENTER.get(type(fact)):
            enter(self, fact, account)

    def explain(self, breakdown: Breakdown) -> None:
        """Enter the parts of a prompt."""
        event = breakdown.event
        self.facts.append(breakdown)
        tiers = self._tiers.setdefault(event.connector, FirstNames(MAX_TIERS))
        tenant = tenant_of(breakdown.identity)
        if tenant != PLAIN:
            tenant = self._tenants.of(tenant)
        self.sums.add(event, measures_of(breakdown, tiers.of, tenant=tenant))

    def forget(self, recorders: Iterable[str]) -> None:
        """Drop the state of recorders that have ended."""
        for recorder in recorders:
            self._aggregating_connectors.pop(recorder, None)
            self._prefill_timer.forget(recorder)

    def recall(self, fact: Fact, account: Account) -> None:
        """Enter a fact that was counted before, because later facts may need it."""
        sums, facts = self.sums, self.facts
        self.sums, self.facts = MinuteSums(), []
        try:
            self.enter(fact, account)
        finally:
            self.sums, self.facts = sums, facts

    def _is_repeated(self, event: Event) -> bool:
        """Whether a connector that answers for this one reports the same event."""
        return self._aggregating_connectors.get(event.recorder, event.connector_id) != event.connector_id

    def _own(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """The offers that are not repeated by a connector that answers for all."""
        if not self._aggregating_connectors:
            return offers
        return [offer for offer in offers if not self._is_repeated(offer.lookup)]

    def _enter_looked_up(self, fact: LookedUp, account: Account) -> None:
        event = fact.event
        if event.recorder not in self._aggregating_connectors and event.has(Capability.ANSWERS_FOR_CHILDREN):
            self._aggregating_connectors[event.recorder] = event.connector_id
        if self._is_repeated(event):
            return
        if fact.unused is not None and account.complete:
            self._count_unused(fact.unused)
        measures = {"lookups": 1, "lookup_ns": max(0, event.end_ns - event.start_ns)}
        if fact.deferred_for_ns is not None:
            measures["postponed_ns"] = fact.deferred_for_ns
        self.sums.add(event, measures)

    def _count_unused(self, lookup: Lookup) -> None:
        if lookup.returned is not None and lookup.returned > 0:
            self.sums.add(lookup, {"lookups_unused": 1})

    def _enter_admitted(self, fact: Admitted, account: Account) -> None:
        event, lookup = fact.event, fact.lookup
        if self._is_repeated(event):
            return
        self.facts.append(Admitted(event, fact.offer, self._own(fact.others)))
        local = min(lookup.computed, lookup.total)
        measures = {"admissions": 1, "asked": lookup.total, "local": local, "taken": max(0, event.allocated)}
        if not event.allocated and account.complete:
            self._count_unused(lookup)
        self.sums.add(event, measures)

    def _enter_load_received(self, fact: LoadReceived, _: Account) -> None:
        event = fact.event
        if self._is_repeated(event):
            return
        self.facts.append(fact)
        self.sums.add(
            event,
            {"waits": 1, "waited_ns": fact.waited_ns, "failed": fact.alloc.allocated if event.failed else 0},
        )

    def _enter_ran(self, fact: Ran, _: Account) -> None:
        event = fact.event
        if not self._is_repeated(event) and (measured := self._prefill_timer.enter(event, fact.total or 0)):
            self.sums.add(event, measured, epoch=0)
        for offer in self._own(fact.admitted):
            lookup, alloc = offer.lookup, offer.alloc
            if alloc is None:
                continue
            measures = {"spared": min(alloc.allocated, max(0, event.computed - lookup.computed))}
            if lookup.matched is None:
                measures["admissions_hidden"] = 1
            else:  # the last token is always computed, for its logits
                measures["recomputed"] = max(0, min(lookup.matched, lookup.total - 1) - event.computed)
            self.sums.add(alloc, measures)

    def _enter_preempted(self, fact: Preempted, _: Account) -> None:
        # Count the report of the connector that answers for all, or else the first report.
        answers_for_all = fact.event.recorder in self._aggregating_connectors
        if self._is_repeated(fact.event) if answers_for_all else fact.is_repeated:
            return
        self.facts.append(fact)
        self.sums.add(fact.event, {"preemptions": 1})

    def _enter_ended(self, fact: Ended, account: Account) -> None:
        if account.complete:
            for lookup in fact.unused:
                if not self._is_repeated(lookup):
                    self._count_unused(lookup)

    def _enter_copied(self, fact: Copied, _: Account) -> None:
        event = fact.event
        direction = event.kind.value.removeprefix("kv.")
        measures = {}
        if event.rank == 0:  # every rank copies its share of the same tokens
            measures[f"{direction}_tokens"] = event.count
        if event.role != SCHEDULER:  # the lines of a log have no duration
            took_ns = max(0, event.end_ns - event.start_ns)
            measures[f"{direction}_ns"] = took_ns
            if event.bytes is not None:
                measures |= {f"{direction}_bytes": event.bytes, f"{direction}_bytes_ns": took_ns}
        self.sums.add(event, measures)


_ENTER: dict[Any, Callable[[SavingsCounter, Any, Account], None]] = {
    LookedUp: SavingsCounter._enter_looked_up,
    Admitted: SavingsCounter._enter_admitted,
    LoadReceived: SavingsCounter._enter_load_received,
    Ran: SavingsCounter._enter_ran,
    Preempted: SavingsCounter._enter_preempted,
    Copied: SavingsCounter._enter_copied,
    Ended: SavingsCounter._enter_ended,
}

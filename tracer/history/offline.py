"""The offline detector: judges a recorded history while it is read, in memory bounded by the number of open requests.

A request that has ended and expects no more events is forgotten after its recorders have continued for some time; its
verdict and findings are kept. Waiting for a missing event ends in the same way. Both assume that the history is in order of
time. If it is not, an event may arrive after it was given up, and the detector raises `TooLate`: judge the history again
without `patience_ns`, which keeps everything in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.detect.detector import MAX_REQUESTS, Detector
from kvtrail.tracer.detect.tracked import Key
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Event, Heartbeat, Lookup
from kvtrail.tracer.history.savings import RecordedSavings
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.handoff_sums import Flow
from kvtrail.tracer.ledger.ordering import SeenNumbers
from kvtrail.tracer.liveness.deaths import Death, Deaths
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict
from kvtrail.tracer.rules.rule import Rule

TIDY_EVERY = 10_000
"""Number of events after which finished requests are forgotten."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of a history.

    Attributes:
        verdicts: number of forgotten requests by verdict; after `close`, of all requests.
        reasons: number of requests with the verdict `unknown`, by reason.
        events: number of entered events without duplicates.
        repeated: number of duplicates.
        outcomes: status, outcome and error of the accounts with findings.
        unfinished: after `close`, requests that had not ended, by engine.
        lookups, hits: number of entered lookups, and of those that the connector answered with tokens.
        explained: why the tokens of the selected requests were reused or computed, by engine and id.
        probes_off: connectors with a probe that failed and was switched off.
    """

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    reasons: Counter[Unknown] = field(default_factory=Counter)
    events: int = 0
    repeated: int = 0
    outcomes: dict[Key, tuple[str, str | None, str | None]] = field(default_factory=dict)
    unfinished: list[Key] = field(default_factory=list)
    lookups: int = 0
    hits: int = 0
    explained: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    probes_off: set[str] = field(default_factory=set)


class TooLate(Exception):
    """An event arrived for a forgotten request, or after it had been declared missing."""


class _Detector(Detector):
    """Refuses to open an account that was forgotten.

    Attributes:
        forgotten: hashes of the requests that were forgotten.
    """

    def __init__(self, rules: Sequence[Rule] | None, savings: RecordedSavings | None) -> None:
        super().__init__(rules=rules, **(savings.listeners if savings else {}))
        self.forgotten = BoundedDict[int, None](MAX_REQUESTS)

    def _open_account(self, key: Key) -> Account:
        if hash(key) in self.forgotten:
            raise TooLate
        return super()._open_account(key)


class OfflineDetector:
    """Judges the events of a history, in any order and each once.

    Attributes:
        detector: the detector.
        tally: the counts.
        findings: the findings, by id.
    """

    def __init__(
        self,
        *,
        rules: Sequence[Rule] | None = None,
        patience_ns: int | None = None,
        why: str | None = None,
        savings: RecordedSavings | None = None,
        tally: Tally | None = None,
    ) -> None:
        """`why` selects a request by the engine's or the caller's id. `patience_ns` is how long to wait before missing events
        are given up, by event time; None waits forever. `savings` sums up savings."""
        self.tally = tally or Tally()
        self.findings: dict[str, Finding] = {}
        self._why = why
        self._engines: dict[str, str] = {}
        """By recorder."""
        self._deaths = Deaths()
        self.detector = _Detector(rules, savings)
        self._patience_ns = patience_ns
        self._numbers: dict[str, SeenNumbers] = {}
        self._untidy = 0

    @property
    def handoffs(self) -> list[tuple[tuple[str, str], Flow]]:
        """Hand-offs by the engine that gives and the engine that takes (`NOBODY` if no request takes it)."""
        return [(pair, flow) for pair, flow in self.detector.handoffs.flows.items() if flow.handoffs]

    @property
    def silent(self) -> list[str]:
        """Engines with a recorder that never sent its end record."""
        return sorted({name for recorder, name in self._engines.items() if not self.detector.engine(recorder).closed})

    @property
    def joined_late(self) -> list[str]:
        """Engines with a recorder that lacks its first events."""
        recorders = self._engines.items()
        return sorted({name for each, name in recorders if self.detector.engine(each).missing is Unknown.LATE})

    @property
    def deaths(self) -> list[Death]:
        """After `close`, the engines that died."""
        return self._deaths.all(self.findings.values())

    def feed(self, events: Sequence[Event]) -> None:
        """Enter some events.

        Raises:
            TooLate: they should have arrived earlier.
        """
        fresh = [event for event in events if self._is_new(event)]
        self.tally.events += len(fresh)
        self._take(self.detector.feed(fresh, at_ns=events[-1].end_ns if events else 0))
        self._untidy += len(events)
        if self._patience_ns is not None and self._untidy >= TIDY_EVERY:
            self._tidy(events[-1].end_ns - self._patience_ns)
            self._untidy = 0

    def settle(self) -> None:
        """Give up all missing events, for a history with numbers of events that were never recorded."""
        self._take(self.detector.settle())

    def close(self) -> None:
        """Finish: the history has no more events."""
        self.settle()
        self._take(self.detector.tick())
        for account in self.detector.accounts.values():
            self._deaths.leave(account)
            self._count(account)

    def forget_idle(self, engine: str, most: int) -> None:
        """For an engine whose requests have no recorded end, as in a log: if more than `most` are in memory, forget the half
        with the oldest events. If the engine dies later, they do not count as lost. A reused id is another request."""
        held = [account for account in self.detector.accounts.values() if account.engine == engine]
        if len(held) > most:
            for account in sorted(held, key=lambda each: each.last_ns)[: len(held) // 2]:
                self._count(account)
                self.detector.forget((account.engine, account.request))

    def _count(self, account: Account) -> None:
        """Record the last known state of a request."""
        verdict = self.detector.verdict(account)
        self.tally.verdicts[verdict] += 1
        if verdict is Verdict.UNKNOWN and (why := self.detector.why_unknown(account)) is not None:
            self.tally.reasons[why] += 1
            if why is Unknown.OPEN:
                self.tally.unfinished.append((account.engine, account.request))
        if self._why in (account.request, account.external):
            self.tally.explained[account.engine, account.request] = account.as_dict()["causes"]
        if verdict is Verdict.DRIFT:
            self.tally.outcomes[account.engine, account.request] = account.status, account.outcome, account.error

    def _note(self, event: Event) -> None:
        self._deaths.enter(event)
        if isinstance(event, Lookup):
            self.tally.lookups += 1
            self.tally.hits += bool(event.answer)
        elif isinstance(event, Heartbeat):
            self.tally.probes_off.update(event.recorder_probes_off or ())

    def _is_new(self, event: Event) -> bool:
        """Whether to enter the event. A duplicate number is also entered while its request is in memory: if the spans differ,
        the request's numbers cannot be trusted."""
        numbers = self._numbers.get(event.recorder)
        if numbers is None:
            numbers = self._numbers[event.recorder] = SeenNumbers()
            self._engines[event.recorder] = event.engine
        if numbers.add(event.sequence):
            if self._patience_ns is not None and event.sequence != numbers.last and self.detector.gave_up(event):
                raise TooLate
            self._note(event)
            return True
        if event.request is None or hash((event.engine, event.request)) in self.detector.forgotten:
            self.tally.repeated += 1
            return False
        if self.detector.has_seen(event):
            self.tally.repeated += 1
            self.tally.events -= 1
        return True

    def _tidy(self, before_ns: int) -> None:
        detector = self.detector
        self._take(detector.settle(before_ns=before_ns))
        for key in detector.over(before_ns=before_ns):
            self._deaths.leave(detector.accounts[key])
            self._count(detector.accounts[key])
            detector.forget(key)
            detector.forgotten[hash(key)] = None

    def _take(self, findings: Sequence[Finding]) -> None:
        self.detector.changed.clear()  # only a store needs the changed rows
        for finding in findings:
            if hash((finding.engine, finding.request)) in self.detector.forgotten:
                raise TooLate
            self.findings[finding.id] = finding

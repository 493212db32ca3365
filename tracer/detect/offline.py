"""A recorded history, judged while it is read, in memory that is bounded by the requests which are open at one time.

A request that has ended, and of which nothing more is expected, is let go once its recorders have gone on for a while: its
verdict and its findings stay. So is an event that is missing. Both trust that the history is told about in the order of time.
Where it is not, something comes of what was let go, and the hearing is `TooHasty`: it has to be held again, with patience
without end, and gives what it would have given with all of it in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Sequence

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.ledger import MOST_REQUESTS, Ledger
from kvtrail.tracer.detect.rules import Rule
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding, Verdict

TIDY_EVERY = 10_000
"""Events after which what is over is let go."""


class TooHasty(Exception):
    """Something came of a request, or in place of an event, that had been given up."""


class _Once(Ledger):
    """Opens no account again that was let go."""

    def __init__(self, let_go: Container[int]) -> None:
        super().__init__()
        self._let_go = let_go

    def account(self, engine: str, request: str) -> Account:
        if (engine, request) not in self.accounts and hash((engine, request)) in self._let_go:
            raise TooHasty
        return super().account(engine, request)


class Hearing:
    """Enters events in any order, each once, and keeps what the rules say of them.

    Attributes:
        findings: by their id.
        verdicts: of the requests that were let go, and at the end of all.
        events: how many were entered.
        repeated: how many came again, and count once.
    """

    def __init__(self, *, rules: Sequence[Rule] | None = None, patience_ns: int | None = None) -> None:
        """`patience_ns`, by the recorders' clocks, is how long is waited before anything is given up; None is for ever."""
        self.findings: dict[str, Finding] = {}
        self.verdicts: Counter[Verdict] = Counter()
        self.events = 0
        self.repeated = 0
        self._let_go: dict[int, None] = {}
        self._detector = Detector(rules=rules, ledger=_Once(self._let_go))
        self._patience_ns = patience_ns
        self._numbers: dict[str, Numbers] = {}
        self._untidy = 0

    @property
    def checks(self) -> Counter[tuple[str, Verdict]]:
        """How often each rule gave each verdict."""
        return self._detector.verdicts

    @property
    def missing(self) -> int:
        """Events that the numbers say are missing."""
        return self._detector.missing

    def hear(self, events: Sequence[Event]) -> None:
        """Enter some events.

        Raises:
            TooHasty: they should have come before.
        """
        fresh = events if self._goes_on(events) else [event for event in events if self._is_new(event)]
        self.events += len(fresh)
        self._take(self._detector.feed(fresh))
        self._untidy += len(events)
        if self._patience_ns is not None and self._untidy >= TIDY_EVERY:
            self._tidy(events[-1].end_ns - self._patience_ns)
            self._untidy = 0

    def settle(self) -> None:
        """Give up on all that is missing, for a history whose numbers promise what never comes."""
        self._take(self._detector.settle())

    def close(self) -> None:
        """The history is told to its end."""
        self.settle()
        self._take(self._detector.tick())
        detector = self._detector
        self.verdicts.update(detector.verdict(account) for account in detector.ledger.accounts.values())

    def _goes_on(self, events: Sequence[Event]) -> bool:
        """Whether the events are the next ones of one recorder, each once, as nearly always; their numbers are then taken."""
        if not events or (numbers := self._numbers.get(events[0].recorder)) is None:
            return False
        recorder, number = events[0].recorder, numbers.last
        for event in events:
            number += 1
            if event.sequence != number or event.recorder != recorder:
                return False
        numbers.go_on(len(events))
        return True

    def _is_new(self, event: Event) -> bool:
        """Whether the event is to be entered. One whose number was there is entered all the same where the request is held:
        that the numbers contradict each other is a fact about the request."""
        numbers = self._numbers.get(event.recorder)
        if numbers is None:
            numbers = self._numbers[event.recorder] = Numbers()
        if numbers.add(event.sequence):
            if self._patience_ns is not None and event.sequence != numbers.last and self._detector.gave_up(event):
                raise TooHasty
            return True
        if event.request is None or hash((event.engine, event.request)) in self._let_go:
            self.repeated += 1
            return False
        if self._detector.knows(event):
            self.repeated += 1
            self.events -= 1
        return True

    def _tidy(self, before_ns: int) -> None:
        detector = self._detector
        self._take(detector.settle(before_ns=before_ns))
        detector.changed.clear()
        for key in detector.over(before_ns=before_ns):
            self.verdicts[detector.verdict(detector.ledger.accounts[key])] += 1
            detector.forget(key)
            self._let_go[hash(key)] = None
            if len(self._let_go) > MOST_REQUESTS:
                del self._let_go[next(iter(self._let_go))]

    def _take(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            if hash((finding.engine, finding.request)) in self._let_go:
                raise TooHasty
            self.findings[finding.id] = finding


class Numbers:
    """The numbers of one recorder that have been there, as ranges: as many as there are gaps between them."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = [0]
        self._ends = [0]

    @property
    def last(self) -> int:
        """The highest of them."""
        return self._ends[-1] - 1

    def go_on(self, count: int) -> None:
        """Add the numbers that follow the highest."""
        self._ends[-1] += count

    def add(self, number: int) -> bool:
        """Add a number; returns whether it is new."""
        starts, ends = self._starts, self._ends
        if number == ends[-1]:
            ends[-1] += 1
            return True
        at = bisect_right(starts, number) - 1
        if number < ends[at]:
            return False
        joins_next = at + 1 < len(starts) and starts[at + 1] == number + 1
        if number == ends[at]:
            ends[at] = number + 1
            if joins_next:
                ends[at] = ends.pop(at + 1)
                del starts[at + 1]
        elif joins_next:
            starts[at + 1] = number
        else:
            starts.insert(at + 1, number)
            ends.insert(at + 1, number + 1)
        return True

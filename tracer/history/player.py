"""Steps through a history: each event, its request's account before and after it, and the findings that it made.

Nothing is copied per step. A request's account is rebuilt from the request's own events when it is shown; walking forward
enters each event once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.detect.tracked import Key as RequestKey
from kvtrail.tracer.events.events import Event, RequestStart
from kvtrail.tracer.events.semconv import ROOTS
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.judging import judge
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import Finding, Unknown
from kvtrail.tracer.rules.rule import Rule

NUMBERS = (
    "status", "epoch", "total", "prompt", "computed", "matched", "returned", "allocated", "scheduled", "begun", "rejected",
    "loaded", "stored", "loaded_by_rank", "stored_by_rank", "stored_ranges", "longest_match", "lookups", "loads",
    "waited_ns", "recomputed", "refused", "looked_at", "wrong_blocks", "outcome", "error", "missing",
)  # fmt: skip
"""The fields of an account that a step can change and that are shown; the others name the request and its times."""
_UNKNOWN = Account("", "").as_dict()


def at_ns(event: Event) -> int:
    """The time of an event: when its call began. The span of a whole request counts as the request's end."""
    return event.end_ns if event.kind in ROOTS else event.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event of a history.

    Attributes:
        number: its number in the whole history, from 1.
        event: the event.
        gap: how many events of the same request and recorder are missing just before it.
        before: the request's account before the event, as JSON-ready data; None for an event of no request, and for a
            request's first.
        after: the same after the event; None for an event of no request.
        findings: those that this event made, as they were then.
        again: earlier findings that this event confirms, as they were when they were made.
        late: findings about what has not happened by the end of the history; only at the last step shown.
    """

    number: int
    event: Event
    gap: int = 0
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    again: tuple[Finding, ...] = ()
    late: tuple[Finding, ...] = ()

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The fields of the account that the event changed: their values before and after."""
        if self.after is None:
            return {}
        before = self.before or _UNKNOWN
        return {name: (before[name], self.after[name]) for name in NUMBERS if before[name] != self.after[name]}


@dataclass(slots=True)
class AccountReplay:
    """An account while its request's events are entered, one after the other."""

    account: Account
    expected: dict[str, int] = field(default_factory=dict)
    entered: int = 0

    def enter(self, event: Event) -> int:
        """Enter the next event, as the detector does; returns how many are missing before it."""
        self.entered += 1
        gap = event.request_sequence - self.expected.get(event.recorder, 0)
        if gap:
            self.account.lose(Unknown.LOST)
        if gap < 0:  # a repeated number, on another span: it counts once
            return 0
        self.expected[event.recorder] = event.request_sequence + 1
        if self.account.ended_ns is not None and isinstance(event, RequestStart):
            self.account = Account(self.account.engine, self.account.request)
        self.account.apply(event)
        return gap


class NoSuchStep(ValueError):
    """There is no step to show; the text says which there are."""


class Player:
    """The steps of a history, or of a part of it. Accounts and findings are those of the whole history in either case.

    Attributes:
        events: all events of the history, in order.
        judged: the judgements of the rules about them.
        requests: the indices of each request's events, in order; the requests are ordered by their first event.
        begin_ns: when the history begins, Unix nanoseconds.
        engine_names: the engines' names for people, by id.
        following: the requests shown; None for all.
    """

    def __init__(
        self,
        history: History,
        *,
        requests: Sequence[RequestKey] | None = None,
        from_ns: int | None = None,
        to_ns: int | None = None,
        rules: Sequence[Rule] | None = None,
        on_events: Callable[[int], None] | None = None,
    ) -> None:
        """Judge the history, and select what is shown.

        Args:
            requests: show only the steps of these requests, by engine and id.
            from_ns, to_ns: show only the steps between these times, Unix nanoseconds, both included.
            rules: judge with these rules only; default: all.
            on_events: called with the number of events judged since the last call.

        Raises:
            NoSuchStep: nothing is left to show.
        """
        self.history = history
        self.events = tuple(history.events)
        self.judged = judge(self.events, rules=rules, on_events=on_events)
        self.requests: dict[RequestKey, list[int]] = {}
        for index, event in enumerate(self.events):
            if event.request is not None:
                self.requests.setdefault((event.engine, event.request), []).append(index)
        self.engine_names = history.engine_names()
        self.begin_ns = min((event.start_ns for event in self.events), default=0)
        self.following = requests
        self._to_ns = to_ns
        self._replays: dict[RequestKey, AccountReplay] = {}
        self._shown = self._select(from_ns, to_ns)
        if not self._shown:
            timed = from_ns is not None or to_ns is not None
            left = "no step is left between these times" if timed else "no step is left"
            raise NoSuchStep(left if self.events else "there is no event in it")
        self._marked = sorted(index for index in self.judged.found if _among(self._shown, index))

    def __len__(self) -> int:
        """How many steps are shown."""
        return len(self._shown)

    @property
    def late(self) -> tuple[Finding, ...]:
        """Findings about what has not happened by the end of the history, for the requests shown; none if the steps are shown
        only up to a time."""
        if self._to_ns is not None:
            return ()
        return tuple(f for f in self.judged.late if self.following is None or (f.engine, f.request) in self.following)

    @property
    def findings(self) -> list[Finding]:
        """The findings of the steps shown, in order."""
        return [f for index in self._marked for f in self.judged.found.get(index, ())] + list(self.late)

    @property
    def steps_of_findings(self) -> list[int]:
        """The number of the step that shows each of `findings`."""
        found = [index + 1 for index in self._marked for _ in self.judged.found.get(index, ())]
        return found + [self._shown[-1] + 1] * len(self.late)

    def steps(self) -> Iterator[Step]:
        """All steps shown, in order."""
        return map(self._step, self._shown)

    def step(self, number: int) -> Step:
        """The step of this number.

        Raises:
            NoSuchStep: the history has no such step, or it is not among those shown.
        """
        if not 1 <= number <= len(self.events):
            raise NoSuchStep(f"there is no step {number}; there are {len(self.events)}")
        if not _among(self._shown, number - 1):
            raise NoSuchStep(f"step {number} is not among the {len(self)} that are shown")
        return self._step(number - 1)

    def _select(self, from_ns: int | None, to_ns: int | None) -> Sequence[int]:
        """The indices of what is to be shown, in order."""
        indices: Sequence[int] = range(len(self.events))
        if self.following is not None:
            indices = sorted(index for key in self.following for index in self.requests.get(key, ()))
        if from_ns is None and to_ns is None:
            return indices
        first = -1 if from_ns is None else from_ns
        last = float("inf") if to_ns is None else to_ns
        return [index for index in indices if first <= at_ns(self.events[index]) <= last]

    def _step(self, index: int) -> Step:
        event = self.events[index]
        account: dict[str, Any] = {}
        if event.request is not None:
            key = (event.engine, event.request)
            place = bisect_left(self.requests[key], index)
            replay = self._replayed(key, place)
            before = replay.account.as_dict() if place else None
            account = {"before": before, "gap": replay.enter(event), "after": replay.account.as_dict()}
        return Step(
            number=index + 1,
            event=event,
            findings=self.judged.found.get(index, ()),
            again=self.judged.again.get(index, ()),
            late=self.late if index == self._shown[-1] else (),
            **account,
        )

    def _replayed(self, key: RequestKey, place: int) -> AccountReplay:
        """The request's account before its event number `place`, continued from the last call if that was earlier."""
        replay = self._replays.get(key)
        if replay is None or replay.entered > place:
            replay = self._replays[key] = AccountReplay(Account(*key))
        for index in self.requests[key][replay.entered : place]:
            replay.enter(self.events[index])
        return replay


def _among(ordered: Sequence[int], number: int) -> bool:
    place = bisect_left(ordered, number)
    return place < len(ordered) and ordered[place] == number

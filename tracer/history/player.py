"""Steps through a history: each event, its request's account before and after it, and the findings that it made.

Nothing is copied per step. A request's account is rebuilt from the request's own events when it is looked at; walking forward
enters each event once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.detect.tracked import Key
from kvtrail.tracer.events.events import Event, RequestStart
from kvtrail.tracer.events.semconv import ROOTS
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.judging import judge
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import Finding, Unknown
from kvtrail.tracer.rules import Rule

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
    """A history with a cursor, which begins at the first of the steps shown.

    Accounts and findings are those of the whole history, even if only a part of it is shown.

    Attributes:
        events: all events of the history, in order.
        judged: what the rules say of them.
        requests: the indices of each request's events, in order; the requests are ordered by their first event.
        begin_ns: when the history begins, Unix nanoseconds.
        engine_names: the engines' names for people, by id.
    """

    def __init__(
        self,
        history: History,
        *,
        requests: Sequence[Key] | None = None,
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
        self.requests: dict[Key, list[int]] = {}
        for index, event in enumerate(self.events):
            if event.request is not None:
                self.requests.setdefault((event.engine, event.request), []).append(index)
        self.engine_names = history.engine_names()
        self.begin_ns = min((event.start_ns for event in self.events), default=0)
        self._from_ns, self._to_ns = from_ns, to_ns
        self._replays: dict[Key, AccountReplay] = {}
        self._following: Sequence[Key] | None = None
        self._shown: Sequence[int] = (0,)
        self._marked: Sequence[int] = ()
        self._at = 0
        self.follow(requests)

    def __len__(self) -> int:
        """How many steps are shown."""
        return len(self._shown)

    @property
    def number(self) -> int:
        """The number of the step under the cursor."""
        return self._shown[self._at] + 1

    @property
    def place(self) -> int:
        """Which of the steps shown is under the cursor, from 1."""
        return self._at + 1

    @property
    def following(self) -> Sequence[Key] | None:
        """The requests whose steps are shown; None for all."""
        return self._following

    @property
    def late(self) -> tuple[Finding, ...]:
        """Findings about what has not happened by the end of the history, for the requests shown; none if the steps are shown
        only up to a time."""
        if self._to_ns is not None:
            return ()
        return tuple(f for f in self.judged.late if self._following is None or (f.engine, f.request) in self._following)

    @property
    def findings(self) -> list[Finding]:
        """The findings of the steps shown, in order."""
        return [f for index in self._marked for f in self.judged.found.get(index, ())] + list(self.late)

    def follow(self, requests: Sequence[Key] | None) -> None:
        """Show only the steps of these requests, or of all; the cursor stays where it is, or goes to the nearest step after.

        Raises:
            NoSuchStep: nothing would be left to show; then nothing changes.
        """
        shown = self._select(requests)
        if not shown:
            timed = self._from_ns is not None or self._to_ns is not None
            left = "no step is left between these times" if timed else "no step is left"
            raise NoSuchStep(left if self.events else "there is no event in it")
        index = self._shown[self._at]
        self._following, self._shown = requests, shown
        self._at = min(bisect_left(shown, index), len(shown) - 1)
        marked = {index for index in self.judged.found if _among(shown, index)}
        if self.late:
            marked.add(shown[-1])
        self._marked = sorted(marked)

    def here(self) -> Step:
        """The step under the cursor."""
        return self._step(self._shown[self._at])

    def steps(self) -> Iterator[Step]:
        """All steps shown, in order; the cursor stays where it is."""
        return map(self._step, self._shown)

    def around(self, steps: int) -> list[tuple[int, Event, bool]]:
        """At most `steps` of the steps shown, with the cursor in the middle unless an end is near: each step's number, its
        event, and whether it has a finding."""
        first = max(0, min(self._at - (steps - 1) // 2, len(self._shown) - steps))
        return [
            (index + 1, self.events[index], _among(self._marked, index)) for index in self._shown[first : first + steps]
        ]

    def forward(self) -> bool:
        """Go to the next step; False at the end."""
        return self._move(self._at + 1)

    def back(self) -> bool:
        """Go to the step before; False at the beginning."""
        return self._move(self._at - 1)

    def forward_to_finding(self) -> bool:
        """Go to the next step with a finding; False if there is none."""
        later = bisect_left(self._marked, self._shown[self._at] + 1)
        return later < len(self._marked) and self._move(bisect_left(self._shown, self._marked[later]))

    def back_to_finding(self) -> bool:
        """Go to the last step before this one with a finding; False if there is none."""
        earlier = bisect_left(self._marked, self._shown[self._at]) - 1
        return earlier >= 0 and self._move(bisect_left(self._shown, self._marked[earlier]))

    def go(self, number: int) -> None:
        """Go to a step by its number, or to the next one that is shown; to the last if there is none after it.

        Raises:
            NoSuchStep: the history has no step of this number.
        """
        if not 1 <= number <= len(self.events):
            raise NoSuchStep(f"there is no step {number}; there are {len(self.events)}")
        self._move(min(bisect_left(self._shown, number - 1), len(self._shown) - 1))

    def _move(self, at: int) -> bool:
        inside = 0 <= at < len(self._shown)
        if inside:
            self._at = at
        return inside

    def _select(self, requests: Sequence[Key] | None) -> Sequence[int]:
        """The indices of what is to be shown, in order."""
        indices: Sequence[int] = range(len(self.events))
        if requests is not None:
            indices = sorted(index for key in requests for index in self.requests.get(key, ()))
        if self._from_ns is None and self._to_ns is None:
            return indices
        first = -1 if self._from_ns is None else self._from_ns
        last = float("inf") if self._to_ns is None else self._to_ns
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

    def _replayed(self, key: Key, place: int) -> AccountReplay:
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

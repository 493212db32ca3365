"""Steps through a history: each event, its request's account before and after it, and the findings that it triggered.

A request's account is rebuilt from its own events, step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.detect.tracked import Key as RequestKey
from kvtrail.tracer.events.events import Event, RequestStart
from kvtrail.tracer.events.semconv import ROOTS
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.judging import judge
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import Finding, Unknown
from kvtrail.tracer.model.words import count, first_of, some

NUMBERS = (
    "status", "epoch", "total", "prompt", "computed", "matched", "returned", "allocated", "scheduled", "begun", "rejected",
    "loaded", "stored", "loaded_by_rank", "stored_by_rank", "stored_ranges", "longest_match", "lookups", "loads",
    "waited_ns", "recomputed", "refused", "looked_at", "wrong_blocks", "outcome", "error", "missing",
)  # fmt: skip
"""The shown fields of an account that a step can change; the others identify the request and its times."""
BLANK = Account("", "").as_dict()
"""The fields of an account without any known value."""
MAX_NAMED = 5
"""Maximum number of requests that an error message lists; the rest are counted."""


def at_ns(event: Event) -> int:
    """The time of an event: when its call began. The span of a whole request counts as the request's end."""
    return event.end_ns if event.kind in ROOTS else event.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event of a history.

    Attributes:
        number: its number in the whole history, from 1.
        event: the event.
        gap: number of missing events of the same request and recorder just before it.
        before: the request's account before the event, as JSON-ready data; None for an event without a request, and for a
            request's first event.
        after: the same after the event; None for an event without a request.
        findings: findings that this event triggered, in their state at that time.
        late: findings about events that are missing at the end of the history; only at the last shown step.
    """

    number: int
    event: Event
    gap: int = 0
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    late: tuple[Finding, ...] = ()

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The fields of the account that the event changed: their values before and after."""
        if self.after is None:
            return {}
        before = self.before or BLANK
        return {name: (before[name], self.after[name]) for name in NUMBERS if before[name] != self.after[name]}


@dataclass(slots=True)
class _AccountReplay:
    """An account into which its request's events are entered one by one.

    Attributes:
        shown: the account after the last of them, as JSON-ready data.
    """

    account: Account
    expected: dict[str, int] = field(default_factory=dict)
    shown: Mapping[str, Any] | None = None

    def enter(self, event: Event) -> int:
        """Enter the next event, as the detector does; returns the number of missing events before it."""
        gap = event.request_sequence - self.expected.get(event.recorder, 0)
        if gap:
            self.account.mark_gap(Unknown.LOST)
        if gap < 0:  # a duplicate number on another span counts once
            return 0
        self.expected[event.recorder] = event.request_sequence + 1
        if self.account.ended_ns is not None and isinstance(event, RequestStart):
            self.account = Account(self.account.engine, self.account.request)
        self.account.apply(event)
        return gap


class NothingToShow(ValueError):
    """There is no event, or no such request; the text lists the existing ones."""


class Player:
    """The steps of a history, or of a part of it. Accounts and findings are always those of the whole history.

    Attributes:
        events: all events of the history, in order.
        judged: the judgements of the rules about them.
        requests: the indices of each request's events, in order; the requests are ordered by their first event.
        engine_names: the engines' display names, by id.
        following: the shown requests; None for all.
    """

    def __init__(self, history: History, *, request: str | None = None) -> None:
        """Judge the history, and select the shown steps.

        Args:
            request: show only the steps of this request: its id, or the external one.

        Raises:
            NothingToShow: there is nothing to show.
        """
        self.history = history
        self.events = tuple(history.events)
        if not self.events:
            raise NothingToShow("there is no event in it")
        self.judged = judge(self.events)
        self.requests: dict[RequestKey, list[int]] = {}
        for index, event in enumerate(self.events):
            if event.request is not None:
                self.requests.setdefault((event.engine, event.request), []).append(index)
        self.engine_names = history.engine_names()
        self.following = None if request is None else self._named(request)
        followed = None if self.following is None else [index for key in self.following for index in self.requests[key]]
        self._shown: Sequence[int] = range(len(self.events)) if followed is None else sorted(followed)

    def __len__(self) -> int:
        """The number of shown steps."""
        return len(self._shown)

    @property
    def late(self) -> tuple[Finding, ...]:
        """Findings about events that are missing at the end of the history, for the shown requests."""
        return tuple(f for f in self.judged.late if self.following is None or (f.engine, f.request) in self.following)

    @property
    def findings(self) -> list[Finding]:
        """The findings of the steps shown, in order."""
        return [f for index in self._shown for f in self.judged.found.get(index, ())] + list(self.late)

    def steps(self) -> Iterator[Step]:
        """All steps shown, in order."""
        replays: dict[RequestKey, _AccountReplay] = {}
        return (self._step(index, replays) for index in self._shown)

    def step(self, number: int) -> Step:
        """The step of this number.

        Raises:
            NothingToShow: it is not among those shown.
        """
        for step in self.steps():
            if step.number == number:
                return step
        raise NothingToShow(f"there is no step {number} among the {count(len(self))} shown of {len(self.events)}")

    def step_of_finding(self, place: int) -> Step:
        """The step that shows this finding, counted from 1.

        Raises:
            NothingToShow: there are fewer.
        """
        found = [step for step in self.steps() for _ in (*step.findings, *step.late)]
        if not 1 <= place <= len(found):
            raise NothingToShow(f"there is no finding {place}; {some(len(found), 'finding')} in what is shown")
        return found[place - 1]

    def _named(self, text: str) -> tuple[RequestKey, ...]:
        """The requests with this engine id or external id; requests in several engines may share an external id.

        Raises:
            NothingToShow: there is none.
        """
        known = {key: self.events[indices[-1]].external or key[1] for key, indices in self.requests.items()}
        if found := [key for key, external in known.items() if text in (key[1], external)]:
            return tuple(found)
        names = list(dict.fromkeys(known.values()))
        requests = f"there {'is' if len(names) == 1 else 'are'} {some(len(names), 'request')}"
        raise NothingToShow(f"there is no request {text!r}; {requests}: {first_of(names, MAX_NAMED)}")

    def _step(self, index: int, replays: dict[RequestKey, _AccountReplay]) -> Step:
        """The next step; `replays` has the accounts before it."""
        event = self.events[index]
        account: dict[str, Any] = {}
        if event.request is not None:
            key = (event.engine, event.request)
            replay = replays.setdefault(key, _AccountReplay(Account(*key)))
            account = {"before": replay.shown, "gap": replay.enter(event)}
            account["after"] = replay.shown = replay.account.as_dict()
        return Step(
            number=index + 1,
            event=event,
            findings=self.judged.found.get(index, ()),
            late=self.late if index == self._shown[-1] else (),
            **account,
        )

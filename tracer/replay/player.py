"""Steps through a history: each event, the account of its request before and after it, and what it let be found.

Nothing is copied per step. A request's account is rebuilt from the request's own events when somebody looks at it; whoever
walks forward pays for each event once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.detector import Key
from kvtrail.tracer.detect.rules import Rule
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.replay.history import History
from kvtrail.tracer.replay.judging import judge
from kvtrail.tracer.replay.step import Step, Telling, at_ns


class NoSuchStep(ValueError):
    """There is no step to show; the text says which there are."""


class Player:
    """A history with a cursor.

    Accounts and findings are those of the whole history, also where only a part of it is shown. The cursor stands on the
    first of the steps shown.
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
            requests: show the steps of these only, by engine and request.
            from_ns, to_ns: show the steps that happened between these, Unix nanoseconds, both included.
            rules: judge by these; by all, unless one says so.
            on_events: hears how many more events have been judged.

        Raises:
            NoSuchStep: nothing is left to show.
        """
        self.history = history
        self.events = tuple(history.events)
        self.judged = judge(self.events, rules=rules, on_events=on_events)
        self.stories: dict[Key, list[int]] = {}
        """The indices of each request's events, in their order; requests by their first."""
        for index, event in enumerate(self.events):
            if event.request is not None:
                self.stories.setdefault((event.engine, event.request), []).append(index)
        self.begin_ns = min((event.start_ns for event in self.events), default=0)
        """When the history begins, in Unix nanoseconds."""
        self._from_ns, self._to_ns = from_ns, to_ns
        self._held: tuple[Key, Telling] | None = None
        self._requests: Sequence[Key] | None = None
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
        return self._requests

    @property
    def late(self) -> tuple[Finding, ...]:
        """What the end of the history brought, of the requests shown; nothing where the steps are only shown up to
        a time."""
        if self._to_ns is not None:
            return ()
        return tuple(f for f in self.judged.late if self._requests is None or (f.engine, f.request) in self._requests)

    @property
    def findings(self) -> list[Finding]:
        """Everything found in the steps shown, in their order."""
        return [f for index in self._marked for f in self.judged.found.get(index, ())] + list(self.late)

    def follow(self, requests: Sequence[Key] | None) -> None:
        """Show the steps of these requests only, or of all; the cursor stays where it is, or goes to the nearest after it.

        Raises:
            NoSuchStep: nothing would be left to show; what was shown still is.
        """
        shown = self._select(requests)
        if not shown:
            raise NoSuchStep(self._nothing())
        index = self._shown[self._at]
        self._requests, self._shown = requests, shown
        self._at = min(bisect_left(shown, index), len(shown) - 1)
        marked = {index for index in self.judged.found if _among(shown, index)}
        if self.late:
            marked.add(shown[-1])
        self._marked = sorted(marked)

    def here(self) -> Step:
        """The step under the cursor."""
        index = self._shown[self._at]
        event = self.events[index]
        if event.request is None:
            return self._step(index)
        key = (event.engine, event.request)
        place = bisect_left(self.stories[key], index)
        telling = self._telling(key, place)
        before = telling.account.as_dict() if place else None
        gap = telling.enter(event)
        return self._step(index, gap=gap, before=before, after=telling.account.as_dict())

    def steps(self) -> Iterator[Step]:
        """All steps shown, in their order; the cursor stays where it is."""
        tellings: dict[Key, Telling] = {}
        after: dict[Key, Mapping[str, Any]] = {}
        place = 0
        for index, event in enumerate(self.events):
            wanted = self._shown[place] == index
            if event.request is not None:
                key = (event.engine, event.request)
                telling = tellings.get(key)
                if telling is None:
                    telling = tellings[key] = Telling(Account(*key))
                before = after.pop(key, None)
                if before is None and wanted and telling.entered:
                    before = telling.account.as_dict()
                gap = telling.enter(event)
                if wanted:
                    after[key] = telling.account.as_dict()
                    yield self._step(index, gap=gap, before=before, after=after[key])
            elif wanted:
                yield self._step(index)
            place += wanted
            if place == len(self._shown):
                return

    def around(self, steps: int) -> list[tuple[int, Event, bool]]:
        """At most so many of the steps shown, the one under the cursor in their middle unless an end is near: number,
        event, whether it has a finding."""
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
        """Go to the next step at which something is found; False if there is none."""
        later = bisect_left(self._marked, self._shown[self._at] + 1)
        return later < len(self._marked) and self._move(bisect_left(self._shown, self._marked[later]))

    def back_to_finding(self) -> bool:
        """Go to the last step before at which something is found; False if there is none."""
        earlier = bisect_left(self._marked, self._shown[self._at]) - 1
        return earlier >= 0 and self._move(bisect_left(self._shown, self._marked[earlier]))

    def go(self, number: int) -> None:
        """Go to a step by its number, or to the nearest one after it that is shown; to the last, where there is none.

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
            indices = sorted(index for key in requests for index in self.stories.get(key, ()))
        if self._from_ns is None and self._to_ns is None:
            return indices
        first = -1 if self._from_ns is None else self._from_ns
        last = float("inf") if self._to_ns is None else self._to_ns
        return [index for index in indices if first <= at_ns(self.events[index]) <= last]

    def _nothing(self) -> str:
        if not self.events:
            return "there is no event in it"
        return (
            "no step is left between these times"
            if self._from_ns is not None or self._to_ns is not None
            else "no step is left"
        )

    def _telling(self, key: Key, place: int) -> Telling:
        """The request's account before its event number `place`; told on from where it was left, if that was earlier."""
        if self._held is None or self._held[0] != key or self._held[1].entered > place:
            self._held = (key, Telling(Account(*key)))
        telling = self._held[1]
        for index in self.stories[key][telling.entered : place]:
            telling.enter(self.events[index])
        return telling

    def _step(self, index: int, **account: Any) -> Step:
        return Step(
            number=index + 1,
            event=self.events[index],
            findings=self.judged.found.get(index, ()),
            again=self.judged.again.get(index, ()),
            late=self.late if index == self._shown[-1] else (),
            **account,
        )


def _among(ordered: Sequence[int], number: int) -> bool:
    place = bisect_left(ordered, number)
    return place < len(ordered) and ordered[place] == number

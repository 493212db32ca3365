"""Forks: where a re-run leaves the recorded course of events.

A recorded call may depend on a recorded answer: what was allocated is what a lookup promised, and the steps after it begin
where that ends. Where this connector's answer differs, the calls are made as vLLM's scheduler would make them then. Until the
request's next preemption the recording is about another course of events, and cannot be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtrail.connector.simulate.rerun.fakes import FakeRequest, Run
from kvtrail.tracer.events.events import Alloc, Event, Lookup, Received, Schedule

Promise = tuple[int | None, bool]
"""What a lookup returns to the scheduler: new tokens, None for 'ask me later'; and whether they load asynchronously."""


@dataclass(slots=True)
class Fork:
    """A lookup that returned something else than was recorded.

    Attributes:
        number: of the lookup among the calls.
        epoch: of the request.
        computed: tokens that vLLM had.
        recorded, answered: what it returned then, and now.
        taken: whether the scheduler has acted on it; it forgets an answer when it repeats the lookup.
        ran: whether a step has run the request since.
    """

    number: int
    epoch: int
    computed: int
    recorded: Promise
    answered: Promise
    taken: bool = False
    ran: bool = False


class Forks:
    """The forks of all requests.

    Attributes:
        any_taken: whether the scheduler has acted on any fork so far.
    """

    def __init__(self) -> None:
        self._of: dict[str, Fork] = {}
        self.any_taken = False

    def forget(self, request: str) -> None:
        """The request is on the recorded course: it has just begun, or its lookup returned the same."""
        self._of.pop(request, None)

    def looked_up(self, number: int, recorded: Lookup, now: Lookup) -> None:
        """Note what a lookup returned; the scheduler forgets the answer before it."""
        then, promised = (recorded.returned, recorded.is_async), (now.returned, now.is_async)
        if self.of(recorded) is None:
            if then == promised:
                self.forget(recorded.request or "")
            else:
                self._of[recorded.request or ""] = Fork(number, recorded.epoch, recorded.computed, then, promised)

    def allocated(self, event: Alloc) -> int:
        """The external tokens of an allocation, given what the lookup has returned now."""
        fork = self._of.get(event.request or "")
        if fork is None or fork.taken or fork.epoch != event.epoch or event.allocated != (fork.recorded[0] or 0):
            return event.allocated
        fork.taken = self.any_taken = True
        return fork.answered[0] or 0

    def of(self, event: Event) -> Fork | None:
        """The fork that an event comes after."""
        fork = self._of.get(event.request or "")
        return fork if fork is not None and fork.taken and fork.epoch == event.epoch else None

    def why_not(self, event: Event) -> str:
        """Why an event's call cannot be compared, or an empty text."""
        if (fork := self.of(event)) is None:
            return ""
        return (
            f"since #{fork.number} the recording takes another course: there the scheduler was told"
            f" {_in_words(fork.recorded)}, here {_in_words(fork.answered)}"
        )

    def run(self, event: Schedule, held: FakeRequest) -> Run:
        """What a step runs of a request. After a fork it runs from where the request is now to where the recorded
        step ended."""
        run, fork = Run.of(event), self.of(event)
        if fork is None:
            return run
        begin = held.reached if fork.ran else fork.computed + (fork.answered[0] or 0)
        fork.ran = True
        return Run(run.request, begin, max(1, event.computed + event.scheduled - begin), run.resumed, 0, run.blocks)

    def never_loads(self, event: Received) -> bool:
        """Whether this connector has not promised a load that was recorded as received."""
        fork = self.of(event)
        return fork is not None and not (fork.answered[1] and fork.answered[0])


def _in_words(promise: Promise) -> str:
    returned, is_async = promise
    return "to ask later" if returned is None else f"{returned}{' later' if is_async else ''}"

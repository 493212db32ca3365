"""Where a re-run leaves the recorded course.

A recorded call may follow from a recorded answer: what was allocated is what a lookup had promised, and the steps after it
begin where that ends. Where this connector's answer is another one, the calls are made as vLLM's scheduler would have made
them then; what the recording tells of that request until its next preemption is about another course of events.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtrail.connector.simulate.rerun.stand_ins import Rebuilt, Run
from kvtrail.tracer.model.events import Alloc, Event, Lookup, Received, Schedule

Told = tuple[int | None, bool]
"""What a lookup told the scheduler: new tokens, None for 'ask me later', and whether they come later."""


@dataclass(slots=True)
class Fork:
    """A request whose lookup told the scheduler something else.

    Attributes:
        number: the lookup's place among the calls.
        epoch: of the request, at the lookup.
        computed: tokens that vLLM had.
        recorded, answered: what the scheduler was told then, and now.
        taken: whether the scheduler has acted on it: a lookup may be repeated, and forgotten.
        ran: whether a step has run the request since.
    """

    number: int
    epoch: int
    computed: int
    recorded: Told
    answered: Told
    taken: bool = False
    ran: bool = False

    @property
    def reason(self) -> str:
        """Why nothing after it can be compared."""
        return (
            f"since #{self.number} the recording tells of another course: there the scheduler was told"
            f" {_said(self.recorded)}, here {_said(self.answered)}"
        )


class Forks:
    """The forks of all requests."""

    def __init__(self) -> None:
        self._of: dict[str, Fork] = {}
        self.any_taken = False
        """Whether the scheduler would have acted otherwise at any time so far."""

    def forget(self, request: str) -> None:
        """The request is on the recorded course: it has just begun, or was told the same again."""
        self._of.pop(request, None)

    def looked_up(self, number: int, recorded: Lookup, now: Lookup) -> None:
        """A lookup was answered: the scheduler forgets the answer before it."""
        then, told = (recorded.returned, recorded.is_async), (now.returned, now.is_async)
        if self.of(recorded) is None:
            if then == told:
                self.forget(recorded.request or "")
            else:
                self._of[recorded.request or ""] = Fork(number, recorded.epoch, recorded.computed, then, told)

    def allocated(self, event: Alloc) -> int:
        """External tokens of an allocation, if the scheduler had been told what it was told now."""
        fork = self._of.get(event.request or "")
        if fork is None or fork.taken or fork.epoch != event.epoch or event.allocated != (fork.recorded[0] or 0):
            return event.allocated
        fork.taken = self.any_taken = True
        return fork.answered[0] or 0

    def of(self, event: Event) -> Fork | None:
        """The fork after which an event comes."""
        fork = self._of.get(event.request or "")
        return fork if fork is not None and fork.taken and fork.epoch == event.epoch else None

    def why_not(self, event: Event) -> str:
        """Why an event's call cannot be compared; empty where it can."""
        fork = self.of(event)
        return "" if fork is None else fork.reason

    def run(self, event: Schedule, held: Rebuilt) -> Run:
        """What a step runs of a request: after a fork from where it is now, to where the recorded one ended."""
        run, fork = Run.of(event), self.of(event)
        if fork is None:
            return run
        begin = held.reached if fork.ran else fork.computed + (fork.answered[0] or 0)
        fork.ran = True
        return Run(run.request, begin, max(1, event.computed + event.scheduled - begin), run.resumed, 0, run.blocks)

    def never_loads(self, event: Received) -> bool:
        """Whether a load that was recorded as received is none that this connector has promised."""
        fork = self.of(event)
        return fork is not None and not (fork.answered[1] and fork.answered[0])


def _said(told: Told) -> str:
    returned, is_async = told
    return "to ask later" if returned is None else f"{returned}{' later' if is_async else ''}"

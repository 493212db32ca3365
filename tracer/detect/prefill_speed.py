"""How fast an engine prefills, measured from its own steps.

A step's length is the time to the next step in which one of its requests goes on exactly where it stopped: then the engine
did not idle between the two, and no step between them was lost. That needs every step to be told, as recorders do at level
`detailed`; at level `basic` nothing is measured, and nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.model.events import Schedule

PREFILL_SHARE = 0.9
"""A step counts when so much of its tokens is prefill: else its time would be paid for the decodes beside it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A step that was nearly all prefill: its prefill tokens, and how long it took in nanoseconds."""

    tokens: int
    took_ns: int


@dataclass(slots=True)
class _Step:
    at_ns: int
    tokens: int = 0
    prefill: int = 0
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The epoch of each of its requests, and how far the step computes it."""


@dataclass(slots=True)
class Steps:
    """The step that each recorder tells of now, and the one before."""

    _now: dict[tuple[str, str], tuple[_Step | None, _Step]] = field(default_factory=dict)

    def hear(self, event: Schedule, account: Account) -> Measured | None:
        """Enter one request's part of a step; what the step before it took, once that is known."""
        key = (event.recorder, event.connector_id)
        before, now = self._now.get(key, (None, _Step(event.start_ns)))
        if event.start_ns > now.at_ns:
            before, now = now, _Step(event.start_ns)
        elif event.start_ns < now.at_ns:
            return None  # of a step that is over
        measured = None
        request, end = event.request or "", event.computed + event.scheduled
        if before is not None and before.ends.get(request) == (event.epoch, event.computed):
            if before.prefill and before.prefill >= PREFILL_SHARE * before.tokens:
                measured = Measured(before.prefill, now.at_ns - before.at_ns)
            before = None
        now.tokens += event.scheduled
        now.prefill += max(0, min(end, account.total or 0) - event.computed)
        now.ends[request] = (event.epoch, end)
        self._now[key] = (before, now)
        return measured

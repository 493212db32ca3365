"""The result of a re-run: each call with the recorded answer and the new one, and what a difference means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How an answer compares with the recorded one."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_COMPARABLE = "not comparable"


class Meaning(StrEnum):
    """What a different answer means, by the rules."""

    FIX = "fix"
    """The recorded answer broke a rule, or raised; this one does not."""
    NEW_FAULT = "new fault"
    """This answer breaks a rule, or raises; the recorded one did not."""
    OTHER = "another answer"
    """Neither breaks a rule, or both do: another policy, or another form of the same fault."""


class Expected(StrEnum):
    """What a re-run is expected to show."""

    FIXED = "fixed"
    """The recorded faults are gone, and there are no new ones. Another policy is no fault."""
    SAME = "same"
    """All answers are the recorded ones, faults included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One call.

    Attributes:
        number: its place among the recorded calls, from 0.
        method: vLLM's name of what was called.
        request: None for a step of several requests, a report or a reset.
        epoch: the request's preemption epoch.
        at_ns: when it was recorded, Unix nanoseconds.
        asked: the recorded arguments.
        recorded: the recorded answer.
        answered: the new answer; empty where the call was not made.
        meaning: of a difference; None where there is none.
        reason: why it cannot be compared, or was called differently; empty otherwise.
        recorded_breaks: the rules that the recorded answer broke.
        breaks: the rules that the new answer breaks.
        explanation: of the rules on the answer that broke them.
    """

    number: int
    method: str
    request: str | None
    epoch: int
    at_ns: int
    asked: Mapping[str, Any]
    recorded: Mapping[str, Any]
    answered: Mapping[str, Any]
    outcome: Outcome
    meaning: Meaning | None = None
    reason: str = ""
    recorded_breaks: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    explanation: str = ""

    @property
    def was_fault(self) -> bool:
        """Whether the recorded answer broke a rule, or was an error."""
        return bool(self.recorded_breaks) or "error" in self.recorded

    @property
    def is_fault(self) -> bool:
        """Whether the new answer breaks a rule, or is an error."""
        return bool(self.breaks) or "error" in self.answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """The result of a re-run.

    Attributes:
        against: the connector, as the user named it.
        connector: the class name of the recorded connector.
        engine: the recorded engine.
        calls: every recorded call, in order; or those that concern the chosen request.
        died_at: number of the call at which the connector raised what the recorded one did not; no call was made after it.
        notes: what the recording does not show and was assumed, in sentences.
    """

    against: str
    connector: str
    engine: str
    calls: tuple[Compared, ...]
    died_at: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Compared | None:
        """The first divergence."""
        return next((call for call in self.calls if call.outcome is Outcome.DIFFERENT), None)

    @property
    def outcomes(self) -> Counter[Outcome]:
        """How many calls had each outcome."""
        return Counter(call.outcome for call in self.calls)

    @property
    def meanings(self) -> Counter[Meaning]:
        """How many differences meant what."""
        return Counter(call.meaning for call in self.calls if call.meaning is not None)

    @property
    def reproduced(self) -> Sequence[Compared]:
        """The recorded faults that this connector has too."""
        return [c for c in self.calls if c.outcome is Outcome.SAME and c.is_fault]

    def meets(self, expected: Expected) -> bool | None:
        """Whether it is as expected; None if too little could be compared to tell."""
        if expected is Expected.SAME:
            compared = self.outcomes[Outcome.SAME] + self.outcomes[Outcome.DIFFERENT]
            return self.first is None if compared else None
        if self.meanings[Meaning.NEW_FAULT] or self.unfixed:
            return False
        return True if self.meanings[Meaning.FIX] else None

    @property
    def unfixed(self) -> Sequence[Compared]:
        """The calls whose answer was a fault, and is one now."""
        return [c for c in self.calls if c.was_fault and c.is_fault and c.outcome is not Outcome.NOT_COMPARABLE]

    @property
    def differs(self) -> bool:
        """Whether there is a difference that is not a fix."""
        return any(count for meaning, count in self.meanings.items() if meaning is not Meaning.FIX)

"""What came too late: KV that was not there when it was read, and was later on.

Memory that nobody has written yet and memory that nobody will ever write look the same to whoever reads it. So the first load
that brought something wrong is followed: who had computed what it should have brought, and in which step; and whether its
blocks, or a later load of the same prefix, hold the right KV in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtrail.tracer.model.words import some


@dataclass(slots=True)
class Missed:
    """A token that a load should have brought.

    Attributes:
        number: of its prefix.
        step, request_id: when it was read, by whom.
        block, slot, layer: where.
        expected: the words that should be there.
        source: who computed it before that, and when, in words.
        again: who computed it again since then, and when, in words; empty as long as nobody has.
        came: the rest of the sentence about its source: when it came after all, and what that says; empty as long as it has
            not.
    """

    number: int
    step: int
    request_id: str
    block: int
    slot: int
    layer: str
    expected: Any
    source: str
    again: str = ""
    came: str = ""


class Late:
    """Follows the first load that brought something wrong.

    Attributes:
        missed: its first wrong token; None as long as all loads are right.
    """

    def __init__(self) -> None:
        self.missed: Missed | None = None
        self._steps: Any = np.full(0, -1, np.int32)
        self._requests: Any = np.zeros(0, np.int32)
        """The step in which the KV of each prefix was computed last, and which of the requests did that."""
        self._names: list[str] = []
        self._place: dict[str, int] = {}

    def computed(self, step: int, request_id: str, numbers: Any) -> None:
        """A step computes the KV of a request's tokens."""
        if (missed := self.missed) is not None:
            if not missed.again and missed.number in numbers:
                missed.again = f"{request_id} computed it again in step {step}"
            return
        if not len(numbers):
            return
        if (most := int(numbers.max())) >= len(self._steps):
            more = most + 4096 - len(self._steps)
            self._steps = np.concatenate([self._steps, np.full(more, -1, np.int32)])
            self._requests = np.concatenate([self._requests, np.zeros(more, np.int32)])
        place = self._place.setdefault(request_id, len(self._names))
        if place == len(self._names):
            self._names.append(request_id)
        known = numbers[numbers >= 0]
        self._steps[known], self._requests[known] = step, place

    def miss(self, number: int, step: int, request_id: str, block: int, slot: int, layer: str, expected: Any) -> None:
        """A load has brought something wrong for this prefix's last token."""
        if self.missed is not None:
            return
        source = ""
        if number < len(self._steps) and (computed := int(self._steps[number])) >= 0:
            source = f"{self._names[self._requests[number]]} had computed it in step {computed}"
        self.missed = Missed(number, step, request_id, block, slot, layer, expected.copy(), source)

    def look(self, step: int, words: Any) -> None:
        """What is in its place before a later step computes anything, as long as it is the same request's."""
        missed = self.missed
        if missed is not None and not missed.came and step > missed.step and (words == missed.expected).all():
            after = some(step - missed.step, "step")
            missed.came = (
                f", and the right KV was there in step {step}, {after} after it was read: the copy was made too late"
            )

    def loaded(self, step: int, request_id: str, numbers: Any) -> None:
        """A load has brought what it should, for all of these prefixes."""
        missed = self.missed
        if missed is not None and not missed.came and step > missed.step and missed.number in numbers:
            begin, why = "", "it was stored, so the store came too late, or this load was not made"
            if missed.again:
                begin, why = f". {missed.again}", "at first it was gone, or had not been stored"
            missed.came = f"{begin}, and {request_id} loaded the right KV of the same prefix in step {step}: {why}"

    def explained(self) -> str:
        """Where the missing KV was, in a sentence; empty if that is not known."""
        if self.missed is None or not self.missed.source:
            return ""
        came = self.missed.came or "; no later load of it was right, and that block never held it"
        return f" {self.missed.source}{came}."

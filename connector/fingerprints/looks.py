"""Looks at blocks, and what was read of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from kvtrail.connector.fingerprints.orders import Look
from kvtrail.connector.fingerprints.references import NO_QUICK, Quick, Seen
from kvtrail.connector.fingerprints.slim import Array, SlimFingerprints, SlimReading, together
from kvtrail.connector.fingerprints.truth import Wrong

Judge = Callable[[Look, list[Seen], Quick], None]
Values = Mapping[int, tuple[int, Sequence[int]]]
"""By block the fingerprint of all bytes of all layers, and those of each layer."""


class WrongBlock(NamedTuple):
    """Its kind, its id, its first token in the request, its hash, what it holds, and the request that left it so, or ""."""

    kind: str
    block: int
    token: int
    hash: int
    wrong: Wrong
    of: str


@dataclass(slots=True)
class Told:
    """What a look at blocks of a request has to tell. `hashes`, `fingerprints`, `tokens` and `slim` are for other engines."""

    request_id: str
    look: str
    group: int
    identity: str
    blocks: int = 0
    unknown: int = 0
    hashes: list[int] = field(default_factory=list)
    fingerprints: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    slim: bytes = b""
    wrong: list[WrongBlock] = field(default_factory=list)
    healed: bool = False


class Last(NamedTuple):
    """What a block held when it was last looked at, whether that was right, and who had filled it."""

    seen: Seen
    is_right: bool
    of: str


class Again(NamedTuple):
    """Wrong blocks of a load, which the next step's look decides: what each of them was instead. If all of them were just
    early, a request that `may_be_clean` has met nothing wrong: no forward pass had read them."""

    look: Look
    wrong: list[tuple[Seen, Wrong]]
    may_be_clean: bool


class Done:
    """Takes its turn among readings."""

    def is_there(self) -> bool:
        return True

    def values(self) -> None:
        return None


DONE = Done()


class BothReadings:
    """Both kinds of fingerprints of the same looks, on their way."""

    def __init__(self, full: Any, slim: Any) -> None:
        """`slim`: the hashes, and the reading."""
        self._full, self._slim = full, slim

    def is_there(self) -> bool:
        return (self._full is None or self._full.is_there()) and (self._slim is None or self._slim[1].is_there())

    def values(self) -> tuple[Values, tuple[Any, Any] | None]:
        full = {} if self._full is None else self._full.values()
        return full, None if self._slim is None else (self._slim[0], self._slim[1].values())


class Waiting:
    """Slim fingerprints of blocks of several steps, on their way.

    Attributes:
        looks: in the order of the steps.
        blocks: how many.
    """

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.blocks = 0
        self._hashes: list[int] = []
        self._readings: list[SlimReading] = []

    def add(self, fingerprints: SlimFingerprints, looks: Sequence[Look]) -> None:
        """Read the blocks of these looks."""
        blocks = [block for look in looks for block in look.blocks]
        hashes = [short for look in looks for short in look.hashes]
        self._readings.append(fingerprints.read(blocks, np.array(hashes, dtype=np.uint64)))
        self._hashes += hashes
        self.looks += looks
        self.blocks += len(blocks)

    def is_there(self) -> bool:
        return all(each.is_there() for each in self._readings)

    def values(self) -> tuple[Values, tuple[Array, Array]]:
        return {}, (np.array(self._hashes, dtype=np.uint64), together(self._readings))


def judged(looks: Sequence[Look], judge: Judge, values: Values) -> None:
    """Judge looks by all bytes alone."""
    for look in looks:
        judge(look, seen_in(look, values, False, None), NO_QUICK)


def seen_in(look: Look, full: Values, but_mixed: bool, slim: Sequence[int] | None) -> list[Seen]:
    """The blocks of a look with their fingerprints."""
    unread: tuple[int | None, Sequence[int]] = (None, ())
    return [
        Seen(
            number,
            block,
            short,
            *(unread if but_mixed and number == look.mixed else full.get(block, unread)),
            None if slim is None else slim[n],
        )
        for n, (number, block, short) in enumerate(zip(look.numbers, look.blocks, look.hashes, strict=True))
    ]


def mixed_of(loads: Sequence[Look]) -> list[Look]:
    """The looks at those blocks of which the last token is not loaded."""
    return [look for each in loads if (look := only(each, [n == each.mixed for n in each.numbers])).blocks]


def blocks_of(looks: Sequence[Look]) -> list[int]:
    return sorted({block for look in looks for block in look.blocks})


def only(look: Look, chosen: Sequence[bool]) -> Look:
    """The look at the chosen ones of its blocks."""
    if all(chosen):
        return look
    numbers, blocks, hashes = (tuple(compress(part, chosen)) for part in (look.numbers, look.blocks, look.hashes))
    return look._replace(numbers=numbers, blocks=blocks, hashes=hashes)

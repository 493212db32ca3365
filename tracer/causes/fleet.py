"""What the engines of a fleet have computed, as far as their hashes can be compared: the same tokens have the same hash only
where algorithm and seed are the same, which recorders tell as the identity of their caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

MODEL_DIGITS = 8
"""How many digits of an identity are those of the model."""


class Member(Protocol):
    """An engine, as one recorder shows it."""

    engine: str

    def has_known(self, block: bytes) -> bool:
        """Whether it ever held a block that was not handed over to it."""
        ...


class Fleet:
    """The engines that are heard."""

    def __init__(self) -> None:
        self._identities: WeakKeyDictionary[Member, str] = WeakKeyDictionary()
        """Of their caches."""

    def join(self, identity: str, member: Member) -> None:
        """An engine tells the identity of its caches."""
        self._identities[member] = identity

    def leave(self, member: Member) -> None:
        """An engine ends."""
        self._identities.pop(member, None)

    def known(self, identity: str, member: Member, blocks: Sequence[bytes]) -> tuple[int, str]:
        """How many of these blocks, from the first on, another engine ever held; and the one that held most."""
        most, engine = 0, ""
        for other, own in self._identities.items():
            if own != identity or other.engine == member.engine or not other.has_known(blocks[most]):
                continue
            count = most + 1
            while count < len(blocks) and other.has_known(blocks[count]):
                count += 1
            if all(map(other.has_known, blocks[:most])):
                most, engine = count, other.engine
                if most == len(blocks):
                    break
        return most, engine

    def has_strangers(self, identity: str, member: Member) -> bool:
        """Whether there are reports of other engines of the model with hashes that cannot be compared."""
        return any(
            own != identity and own[:MODEL_DIGITS] == identity[:MODEL_DIGITS] and other.engine != member.engine
            for other, own in self._identities.items()
        )

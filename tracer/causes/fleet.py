"""What the engines of a fleet have computed, as far as their hashes can be compared: the same tokens have the same hash only
where algorithm and seed are the same, which recorders tell as the identity of their caches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

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
        self._members: defaultdict[str, defaultdict[str, WeakSet[Member]]] = defaultdict(lambda: defaultdict(WeakSet))
        """By the model, and then by the identity of their caches."""

    def join(self, identity: str, member: Member) -> None:
        """An engine tells the identity of its caches."""
        self.leave(member)
        self._members[identity[:MODEL_DIGITS]][identity].add(member)

    def leave(self, member: Member) -> None:
        """An engine ends."""
        for by_identity in self._members.values():
            for members in by_identity.values():
                members.discard(member)

    def has_several(self, identity: str) -> bool:
        """Whether more than one engine of the model is heard, or may be."""
        return sum(map(len, self._members[identity[:MODEL_DIGITS]].values())) > 1

    def known(self, identity: str, member: Member, blocks: Sequence[bytes]) -> tuple[int, str]:
        """How many of these blocks, from the first on, another engine ever held; and the one that held most."""
        most, engine = 0, ""
        for other in self._members[identity[:MODEL_DIGITS]][identity]:
            if other.engine == member.engine or not other.has_known(blocks[most]):
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
        by_identity = self._members[identity[:MODEL_DIGITS]]
        return len(by_identity) > 1 and any(
            other.engine != member.engine
            for some, members in by_identity.items()
            if some != identity
            for other in members
        )

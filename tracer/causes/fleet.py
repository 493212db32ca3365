"""The blocks that the engines of a fleet have computed, as far as their hashes are comparable: the same tokens have the same
hash only with the same algorithm and seed, which recorders report as the identity of their caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

MODEL_DIGITS = 8
"""Number of digits of an identity that identify the model."""


class Member(Protocol):
    """The state of an engine, from one recorder's events."""

    engine: str

    def has_known(self, block: bytes) -> bool:
        """Whether it ever held a block, not counting hand-offs."""
        ...


class Fleet:
    """The engines that report."""

    def __init__(self) -> None:
        self._identities: WeakKeyDictionary[Member, str] = WeakKeyDictionary()
        """The identities of their caches."""

    def join(self, identity: str, member: Member) -> None:
        """Enter the identity of an engine's caches."""
        self._identities[member] = identity

    def leave(self, member: Member) -> None:
        """Remove an engine that has ended."""
        self._identities.pop(member, None)

    def known(self, identity: str, member: Member, blocks: Sequence[bytes]) -> tuple[int, str]:
        """The number of these blocks, from the first one, that another engine ever held, and the engine that held the
        most."""
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
        """Whether other engines of the model report hashes that are not comparable."""
        return any(
            own != identity and own[:MODEL_DIGITS] == identity[:MODEL_DIGITS] and other.engine != member.engine
            for other, own in self._identities.items()
        )

"""What is known of the contents of blocks, by all bytes of the sampled ones and by some bytes of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kvtrail.connector.fingerprints.orders import LOADED, Look
from kvtrail.connector.fingerprints.reference import SlimReference
from kvtrail.connector.fingerprints.slim import Array
from kvtrail.connector.fingerprints.truth import UNKNOWN, Place, Truth, Wrong

ALL = 1 << 64
"""More than any hash: all blocks are sampled."""
ROW = np.dtype([("hash", ">u8"), ("content", ">u8"), ("token", ">u4")])
"""How a slim fingerprint is reported."""


class Seen(NamedTuple):
    """One block of a look, and its fingerprints: of all bytes of all layers, and by layer, where these were read; and of some
    bytes, likewise."""

    number: int
    block: int
    hash: int
    folded: int | None
    layers: Sequence[int]
    slim: int | None

    def differs(self, other: Seen) -> bool:
        """Whether it holds something else, as far as both were read."""
        folded = None not in (self.folded, other.folded) and self.folded != other.folded
        return folded or (None not in (self.slim, other.slim) and self.slim != other.slim)


class Quick(NamedTuple):
    """Blocks of a look of which there is no more to say: how many, how many of them are unknown, and what is reported of them
    for other engines."""

    blocks: int = 0
    unknown: int = 0
    reported: bytes = b""


NO_QUICK = Quick()


class References:
    """What one rank's blocks hold, by hash."""

    def __init__(
        self, truth: Truth, slim: SlimReference | None, block_sizes: Mapping[int, int], *, below: int, own: bool
    ) -> None:
        """
        Args:
            truth: of all bytes.
            slim: of some bytes; None where they are not looked at.
            block_sizes: tokens of a block, by the number of the KV cache group.
            below: hashes below this are sampled: of their blocks all bytes are looked at.
            own: this engine alone writes to the connector's store.
        """
        self.truth, self.slim = truth, slim
        self._block_sizes, self._below, self._own = block_sizes, below, own
        self._skimmed: list[tuple[Look, Array, Array, list[int]]] = []

    def __len__(self) -> int:
        return len(self.truth)

    def is_sampled(self, hash_: int) -> bool:
        """Whether all bytes of its blocks are looked at."""
        return hash_ < self._below

    def forget(self) -> None:
        """Other weights compute other contents."""
        self.truth.forget()
        if self.slim is not None:
            self.slim.forget()

    def learn(self, look: Look, seen: Seen) -> None:
        """A block was computed under its hash, by a request that has met nothing wrong."""
        place = Place(look.request_id, seen.number * self._block_sizes[look.group], look.identity)
        if seen.folded is not None:
            self.truth.learn((look.group, seen.hash), seen.folded, seen.layers, place)
        if seen.slim is not None and self.slim is not None:
            hashes, contents = np.array([[seen.hash], [seen.slim]], dtype=np.uint64)
            self.slim.learn(look.group, hashes, contents, [place], [seen.number])

    def poison(self, look: Look, seen: Seen) -> None:
        """A block was computed under its hash after something wrong."""
        if seen.folded is not None:
            self.truth.poison((look.group, seen.hash), seen.folded)
        if seen.slim is not None and self.slim is not None:
            self.slim.poison(look.group, seen.hash, seen.slim)

    def doubt(self, look: Look, seen: Seen) -> None:
        """A block under the hash may hold what is right, or not."""
        self.truth.doubt((look.group, seen.hash))
        if self.slim is not None and self._own:
            self.slim.doubt(look.group, seen.hash)

    def is_right(self, look: Look, seen: Seen) -> bool:
        """Whether this was computed under the hash."""
        if seen.folded is not None:
            return self.truth.is_right((look.group, seen.hash), seen.folded)
        return self.judge(look, seen, names=False) is True

    def knows(self, look: Look, seen: Seen) -> bool:
        """Whether all is known that was computed under the block's hash, by some bytes."""
        return self.slim is not None and self.slim.knows(look.group, seen.hash)

    def judge(self, look: Look, seen: Seen, *, names: bool = True) -> Wrong | bool | None:
        """Whether a block holds what was computed under its hash: True, what it is instead, or None where nobody knows.
        `names`: it is worth a search whose content it holds."""
        full = slim = None
        if seen.folded is not None:
            full = self.truth.judge((look.group, seen.hash), seen.folded, seen.layers, look.identity)
        if seen.slim is None or self.slim is None or full is True:
            return full
        if not isinstance(full, Wrong) or full.holds is UNKNOWN:
            is_whole = seen.number != look.mixed
            slim = self.slim.judge(look.group, seen.hash, seen.slim, is_whole=is_whole, names=names)
        if isinstance(slim, Wrong):
            holds = slim.holds
            if isinstance(holds, Place):
                holds = holds._replace(token=holds.token * self._block_sizes[look.group])
            return Wrong(holds, full.layers if isinstance(full, Wrong) else ())
        return slim if full is None else full

    def are_right(self, group: int, hashes: Array, contents: Array) -> Array:
        """Which of these slim fingerprints were computed under their hashes."""
        assert self.slim is not None
        return self.slim.are_right(group, hashes, contents)

    def skim(self, look: Look, hashes: Array, contents: Array, right: Array) -> Quick | None:
        """What there is to say of all of these blocks, which nobody has just computed, by their slim fingerprints, if they
        are `right` or nothing is known of them; None if each is to be judged."""
        if self.slim is None or (hashes < np.uint64(min(self._below, ALL - 1))).any():
            return None
        if look.look == LOADED and not self.slim.is_exact and right.any():
            self.slim.is_exact = True
        if right.all():
            return Quick(len(right))
        if self._own or look.look != LOADED or look.mixed in look.numbers:
            return None
        unknown = ~right
        if self.slim.may_be_wrong(look.group, hashes[unknown], contents[unknown]):
            return None
        return Quick(len(right), int(unknown.sum()), self.rows(look, hashes, contents, unknown))

    def skim_computed(self, look: Look, hashes: Array, contents: Array, *, reports: bool) -> tuple[Array, Quick]:
        """The same of blocks that a request has just computed that has met nothing wrong: which of them are to be judged
        each, and what is said of the others. Those are learnt with the next `learn_skimmed`."""
        each = hashes < np.uint64(min(self._below, ALL - 1))
        if look.mixed is not None:
            each |= np.array(look.numbers) == look.mixed
        quick = ~each
        self._skimmed.append((look, hashes[quick], contents[quick], np.array(look.numbers)[quick].tolist()))
        reported = self.rows(look, hashes, contents, quick) if reports else b""
        return each, Quick(int(quick.sum()), 0, reported)

    def learn_skimmed(self) -> None:
        """All of them are learnt at once."""
        skimmed, self._skimmed = self._skimmed, []
        if self.slim is None or not skimmed:
            return
        requests = [
            place
            for look, _, _, numbers in skimmed
            for place in [Place(look.request_id, 0, look.identity)] * len(numbers)
        ]
        numbers = [number for *_, numbers in skimmed for number in numbers]
        hashes, contents = (np.concatenate([part[n] for part in skimmed]) for n in (1, 2))
        self.slim.learn(skimmed[0][0].group, hashes, contents, requests, numbers)

    def rows(self, look: Look, hashes: Array, contents: Array, chosen: Array) -> bytes:
        """Slim fingerprints as they are reported."""
        rows = np.empty(int(chosen.sum()), dtype=ROW)
        rows["hash"], rows["content"] = hashes[chosen], contents[chosen]
        rows["token"] = np.array(look.numbers)[chosen] * self._block_sizes[look.group]
        return rows.tobytes()

    def row(self, look: Look, seen: Seen) -> bytes:
        """The same of one block; nothing where it was not read."""
        if seen.slim is None:
            return b""
        token = seen.number * self._block_sizes[look.group]
        return np.array([(seen.hash, seen.slim, token)], dtype=ROW).tobytes()

"""What is known of the contents of blocks: by full fingerprints of the sampled ones, and by slim fingerprints of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kvtrail.connector.fingerprints.full_reference import FullReference
from kvtrail.connector.fingerprints.mismatch import UNKNOWN, Match, Mismatch, Origin
from kvtrail.connector.fingerprints.plan import LOADED, Check
from kvtrail.connector.fingerprints.result import CheckResult
from kvtrail.connector.fingerprints.slim import ROW, Array
from kvtrail.connector.fingerprints.slim_reference import SlimReference

ALL = 1 << 64
"""More than any hash: all blocks are sampled."""


class BlockFingerprint(NamedTuple):
    """One block of a check, and its fingerprints, where they were read: the full one of all layers, and by layer; and the
    slim one."""

    number: int
    block: int
    hash: int
    full: int | None
    layers: Sequence[int]
    slim: int | None

    def differs(self, other: BlockFingerprint) -> bool:
        """Whether it holds something else, as far as both were read."""
        full = None not in (self.full, other.full) and self.full != other.full
        return full or (None not in (self.slim, other.slim) and self.slim != other.slim)


class References:
    """What one rank's blocks hold, by hash."""

    def __init__(
        self, full: FullReference, slim: SlimReference | None, units: Mapping[int, int], *, below: int, own: bool
    ) -> None:
        """
        Args:
            full: of the sampled blocks.
            slim: of all blocks; None where there are no slim fingerprints.
            units: tokens by which blocks are counted, by the number of the KV cache group.
            below: hashes below this are sampled: their blocks have full fingerprints.
            own: this engine alone writes to the connector's store.
        """
        self.full, self.slim = full, slim
        self._units, self._below, self._own = units, below, own
        self._skimmed: list[tuple[Check, Array, Array, list[int]]] = []

    def __len__(self) -> int:
        return len(self.full)

    def is_sampled(self, hash_: int) -> bool:
        """Whether its blocks have full fingerprints."""
        return hash_ < self._below

    def clear(self) -> None:
        """Other weights compute other contents."""
        self.full.clear()
        if self.slim is not None:
            self.slim.clear()

    def add(self, check: Check, block: BlockFingerprint) -> None:
        """A block was computed under its hash, by a request that has met no mismatch."""
        origin = Origin(check.request_id, self.token(check, block), check.identity, check.group)
        if block.full is not None:
            self.full.add((check.group, block.hash), block.full, block.layers, origin)
        if block.slim is not None and self.slim is not None:
            hashes, contents = np.array([[block.hash], [block.slim]], dtype=np.uint64)
            self.slim.add(check.group, hashes, contents, [origin], [block.number])

    def add_contaminated(self, check: Check, block: BlockFingerprint) -> None:
        """A block was computed under its hash after a mismatch."""
        if block.full is not None:
            self.full.add_contaminated((check.group, block.hash), block.full)
        if block.slim is not None and self.slim is not None:
            self.slim.add_contaminated(check.group, block.hash, block.slim)

    def mark_incomplete(self, check: Check, block: BlockFingerprint) -> None:
        """A block under the hash may hold what is right, or not."""
        self.full.mark_incomplete((check.group, block.hash))
        if self.slim is not None and self._own:
            self.slim.mark_incomplete(check.group, block.hash)

    def miss(self, check: Check) -> None:
        """Blocks were computed under these hashes that nobody has looked at."""
        for hash_ in check.hashes:
            if self.is_sampled(hash_):
                self.full.mark_incomplete((check.group, hash_))
            if self.slim is not None and self._own:
                self.slim.mark_incomplete(check.group, hash_)

    def contains(self, check: Check, block: BlockFingerprint) -> bool:
        """Whether this was computed under the hash."""
        if block.full is not None:
            return self.full.contains((check.group, block.hash), block.full)
        return self.match(check, block, names=False) is True

    def is_complete(self, check: Check, block: BlockFingerprint) -> bool:
        """Whether all is known that was computed under the block's hash, by slim fingerprints."""
        return self.slim is not None and self.slim.is_complete(check.group, block.hash)

    def match(self, check: Check, block: BlockFingerprint, *, names: bool = True) -> Match:
        """Whether a block holds what was computed under its hash. `names`: the origin of what it holds is worth a search."""
        full: Match = None
        slim: Match = None
        if block.full is not None:
            full = self.full.match((check.group, block.hash), block.full, block.layers, check.identity)
        if block.slim is None or self.slim is None or full is True:
            return full
        if not isinstance(full, Mismatch) or full.holds is UNKNOWN:
            is_whole = block.number != check.partial
            slim = self.slim.match(check.group, block.hash, block.slim, is_whole=is_whole, names=names)
        if isinstance(slim, Mismatch):
            holds = slim.holds
            if isinstance(holds, Origin):
                holds = holds._replace(token=holds.token * self._units[holds.group])
            return Mismatch(holds, full.layers if isinstance(full, Mismatch) else ())
        return slim if full is None else full

    def token(self, check: Check, block: BlockFingerprint) -> int:
        """The block's first token in the request; of a recurrent state, the tokens that it has seen."""
        return self.first_token(check, block.number)

    def first_token(self, check: Check, number: int) -> int:
        """The same of the block with this number."""
        return number * self._units[check.group]

    # Many slim fingerprints at once.

    def slim_matches(self, group: int, hashes: Array, contents: Array) -> Array:
        """Which of these slim fingerprints were computed under their hashes."""
        assert self.slim is not None
        return self.slim.contains(group, hashes, contents)

    def skim(self, check: Check, hashes: Array, contents: Array, right: Array, result: CheckResult) -> bool:
        """Count blocks that nobody has just computed, by their slim fingerprints, if all of them are `right` or nothing is
        known of those that are not. False if each is to be judged."""
        if self.slim is None or (hashes < np.uint64(min(self._below, ALL - 1))).any():
            return False
        if check.kind == LOADED and not self.slim.is_exact and right.any():
            self.slim.is_exact = True
        if not right.all():
            if self._own or check.kind != LOADED or check.partial in check.numbers:
                return False
            unknown = ~right
            if self.slim.may_mismatch(check.group, hashes[unknown], contents[unknown]):
                return False
            result.unknown, result.slim = int(unknown.sum()), self._rows(check, hashes, contents, unknown)
        result.blocks = len(right)
        return True

    def skim_computed(
        self, check: Check, hashes: Array, contents: Array, result: CheckResult, *, reports: bool
    ) -> Array:
        """The same of blocks that a request has just computed that has met no mismatch. Returns which of them are to be
        judged each. The others are added with the next `add_skimmed`."""
        each = hashes < np.uint64(min(self._below, ALL - 1))
        if check.partial is not None:
            each |= np.array(check.numbers) == check.partial
        rest = ~each
        self._skimmed.append((check, hashes[rest], contents[rest], np.array(check.numbers)[rest].tolist()))
        result.blocks = int(rest.sum())
        if reports:
            result.slim = self._rows(check, hashes, contents, rest)
        return each

    def add_skimmed(self) -> None:
        """All of them are added at once."""
        skimmed, self._skimmed = self._skimmed, []
        if self.slim is None or not skimmed:
            return
        origins = [
            origin
            for check, _, _, numbers in skimmed
            for origin in [Origin(check.request_id, 0, check.identity, check.group)] * len(numbers)
        ]
        numbers = [number for *_, numbers in skimmed for number in numbers]
        hashes, contents = (np.concatenate([part[n] for part in skimmed]) for n in (1, 2))
        self.slim.add(skimmed[0][0].group, hashes, contents, origins, numbers)

    def row(self, check: Check, block: BlockFingerprint) -> bytes:
        """The block's slim fingerprint as it is reported; nothing where it was not read."""
        if block.slim is None:
            return b""
        return np.array([(block.hash, block.slim, self.token(check, block))], dtype=ROW).tobytes()

    def _rows(self, check: Check, hashes: Array, contents: Array, chosen: Array) -> bytes:
        """The same of several blocks."""
        rows = np.empty(int(chosen.sum()), dtype=ROW)
        rows["hash"], rows["content"] = hashes[chosen], contents[chosen]
        rows["token"] = np.array(check.numbers)[chosen] * self._units[check.group]
        return rows.tobytes()

"""The contents that were computed under each hash, by the fingerprints that workers report of every block.

A fingerprint may cover only a few bytes of a block, so two nearly equal prompts may have the same one. A loaded content
belongs to another block only if three conditions hold: it was computed under another hash, other contents were computed under
the loaded block's hash, and it is unlike all of these. Unlike means that at most `MAX_COMMON_GROUPS` of six groups of bits
are equal. Engines of different tensor-parallel sizes are compared by the groups of a head that both have first on a rank.
Pure, and bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import BlockCheck

COMPUTED, LOADED, ADMITTED = "computed", "loaded", "admitted"
TAKEN = (LOADED, ADMITTED)
"""The kinds of checks of blocks that another request or engine may have filled."""
MAX_BLOCKS = 200_000
"""Maximum number of remembered hashes, and of contents; about 400 bytes each."""
MAX_VERSIONS = 8
"""Maximum number of remembered contents of one hash, and of hashes with one content."""
MAX_WAITING = 50_000
"""Maximum number of remembered loaded blocks. A later event may show that one holds another block's content, since the events
of several engines arrive in any order."""
MAX_COMMON_GROUPS = 2
"""Maximum number of groups of bits that unlike contents may have in common by chance."""
_ROW = Struct(">QQI")
_DRAWN_BITS = 16
"""Number of the lowest bits, which depend on the hash. Only the others can be compared with another block's."""
_GROUP_SHIFTS = range(_DRAWN_BITS, 64, 8)
_ALL = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ReportedBlock:
    """A block with the hash and fingerprint that a worker reported, and its first token in the request."""

    event: BlockCheck
    number: int
    fingerprint: int
    token: int

    @property
    def hash(self) -> str:
        return f"{self.number:016x}"


def reported_blocks(event: BlockCheck) -> list[ReportedBlock]:
    """The blocks with fingerprints in an event; bytes that are not whole rows report nothing."""
    rows = event.check_fingerprints
    if len(rows) % _ROW.size:
        return []
    return [ReportedBlock(event, *row) for row in _ROW.iter_unpack(rows)]


class ComputedContents:
    """The known computed contents, by hash and by content."""

    def __init__(self) -> None:
        self._computed = BoundedDict[int, tuple[ReportedBlock, ...]](MAX_BLOCKS)
        """The blocks with different contents that were computed under each hash."""
        self._owners = BoundedDict[tuple[int, int], tuple[ReportedBlock, ...]](MAX_BLOCKS)
        """The blocks that were computed with one content, by its groups of bits and the scope in which it is comparable."""
        self._waits = 0
        self._waiting: dict[tuple[int, int], list[ReportedBlock]] = {}
        """Loaded blocks, and blocks of other requests that were reused, by hash and groups of bits."""
        self._by_content: dict[int, set[int]] = {}
        """The hashes of these blocks by their groups, and the groups by hash."""
        self._by_hash: dict[int, set[int]] = {}

    def is_right(self, block: ReportedBlock) -> bool:
        """Whether this content was computed under the block's hash."""
        salt = _salt(block.event)
        if salt is None:
            return False
        contents = self._of_hash(_key(block.number, salt))
        if block.event.check_slice is None:
            return block.fingerprint in contents
        return _groups(block.fingerprint) in map(_groups, contents)  # the other bits are of all heads of a rank

    def foreign(self, event: BlockCheck) -> list[tuple[ReportedBlock, ReportedBlock]]:
        """The blocks that a request loaded or reused and that hold another block's content, each with the block to which the
        content belongs."""
        salt = _salt(event)
        if salt is None or event.check_look not in TAKEN or not self._computed:
            return []
        return [
            (block, owner)
            for block in reported_blocks(event)
            if _is_unlike(block.fingerprint, self._of_hash(_key(block.number, salt)))
            and (owner := self._owner(block)) is not None
        ]

    def unlike_given(
        self, event: BlockCheck, giver: tuple[str, str], beside: BlockCheck | None
    ) -> list[tuple[ReportedBlock, ReportedBlock]]:
        """The loaded blocks that are unlike all contents computed under their hashes, each with the block that a request of
        the sending engine computed, as far as known. Empty if one of them is like it. Blocks that are reported `beside` the
        load count too."""
        salt = _salt(event)
        if salt is None:
            return []
        fresh = [] if beside is None or _salt(beside) != salt else reported_blocks(beside)
        unlike = []
        for block in reported_blocks(event):
            key = _key(block.number, salt)
            known = [*(each for each in fresh if each.number == block.number), *self._computed.get(key, ())]
            given = next((each for each in known if (each.event.engine, each.event.request) == giver), None)
            if given is None:
                continue
            if not _is_unlike(block.fingerprint, [each.fingerprint for each in known]):
                return []
            unlike.append((block, given))
        return unlike

    def found_late(self, event: BlockCheck) -> Iterator[tuple[ReportedBlock, ReportedBlock]]:
        """The loaded blocks that hold another block's content, as shown by the computed blocks of this event."""
        salt = _salt(event)
        if salt is None or not self._waiting:
            return
        owners, ranks = reported_blocks(event), _ranks(event)
        computed: dict[int, set[int]] = {}
        for owner in owners:
            computed.setdefault(_key(owner.number, salt), set()).add(owner.fingerprint)
        owners_of = {_groups(owner.fingerprint): owner for owner in reversed(owners)}
        waiting = {(hash_, groups) for groups in owners_of for hash_ in self._by_content.get(groups ^ ranks, ())} | {
            (hash_, groups) for hash_ in computed for groups in self._by_hash.get(hash_, ())
        }
        for key in sorted(waiting):
            blocks = self._waiting[key]
            if not _is_unlike(blocks[0].fingerprint, [*self._of_hash(key[0]), *computed.get(key[0], ())]):
                continue
            for block in blocks:
                of = owners_of.get(key[1])
                if of is None or _have_one_hash(of, block) or not _have_one_identity(of, block):
                    of = self._owner(block)
                if of is not None:
                    yield block, of

    def enter(self, event: BlockCheck) -> None:
        """Remember the blocks that an event reports."""
        salt = _salt(event)
        if salt is None or not event.check_fingerprints:
            return
        if event.check_look == COMPUTED:
            for block, _ in [*self.found_late(event)]:
                if (name := (_key(block.number, _salt(block.event) or 0), _groups(block.fingerprint))) in self._waiting:
                    self._give_up(name)
            self._enter_computed(event, salt)
        elif event.check_look in TAKEN:
            wrong = {block.number for block, _ in self.foreign(event)}
            for block in reported_blocks(event):
                if block.number not in wrong and not self.is_right(block):
                    self._enter_waiting(block, salt)

    def _enter_computed(self, event: BlockCheck, salt: int) -> None:
        ranks = _ranks(event)
        for block in reported_blocks(event):
            key, content = _key(block.number, salt), (_groups(block.fingerprint), ranks)
            if block.fingerprint in self._of_hash(key):
                continue
            self._computed[key] = (*self._computed.pop(key, ()), block)[-MAX_VERSIONS:]
            self._owners[content] = (*self._owners.pop(content, ()), block)[-MAX_VERSIONS:]
            if (key, content[0]) in self._waiting:
                self._give_up((key, content[0]))

    def _owner(self, block: ReportedBlock) -> ReportedBlock | None:
        """The block that was computed with this content, under another hash or for another KV cache group."""
        owners = self._owners.get((_groups(block.fingerprint), _ranks(block.event)), ())
        others = (each for each in owners if not _have_one_hash(each, block))
        return next((each for each in others if _have_one_identity(each, block)), None)

    def _of_hash(self, key: int) -> list[int]:
        """The contents that were computed under a hash."""
        return [block.fingerprint for block in self._computed.get(key, ())]

    def _enter_waiting(self, block: ReportedBlock, salt: int) -> None:
        key = (_key(block.number, salt), _groups(block.fingerprint))
        self._waiting.setdefault(key, []).append(block)
        self._waits += 1
        self._by_hash.setdefault(key[0], set()).add(key[1])
        self._by_content.setdefault(key[1] ^ _ranks(block.event), set()).add(key[0])
        while self._waits > MAX_WAITING:
            self._give_up(next(iter(self._waiting)))

    def _give_up(self, key: tuple[int, int]) -> None:
        blocks = self._waiting.pop(key)
        self._waits -= len(blocks)
        ranks = _ranks(blocks[0].event)
        for index, name, value in ((self._by_hash, key[0], key[1]), (self._by_content, key[1] ^ ranks, key[0])):
            index[name].discard(value)
            if not index[name]:
                del index[name]


def _key(number: int, salt: int) -> int:
    """The key of a hash in the scope in which it is comparable."""
    return number ^ salt


def _groups(fingerprint: int) -> int:
    return fingerprint >> _DRAWN_BITS


def _is_unlike(content: int, others: set[int] | list[int]) -> bool:
    """Whether there are other contents, and this one is unlike all of them."""
    return bool(others) and all(
        sum((content ^ other) >> shift & 0xFF == 0 for shift in _GROUP_SHIFTS) <= MAX_COMMON_GROUPS for other in others
    )


def _have_one_identity(one: ReportedBlock, other: ReportedBlock) -> bool:
    """Whether the blocks' hashes can differ only because of their tokens, or of earlier tokens."""
    return one.event.identity is not None and one.event.identity == other.event.identity


def _have_one_hash(one: ReportedBlock, other: ReportedBlock) -> bool:
    """Whether they are the same block of the same KV cache group."""
    return one.number == other.number and one.event.group == other.event.group


def _salt(event: BlockCheck) -> int | None:
    """The scope in which hashes are comparable: the cache's identity, the rank, and the KV cache group."""
    if event.check_slice is None and event.cache_identity is None:
        return None
    return hash((*_place(event), event.group)) & _ALL


def _ranks(event: BlockCheck) -> int:
    """The scope in which contents are comparable. It has no group, since a block may hold another group's content."""
    return hash(_place(event)) & _ALL


def _place(event: BlockCheck) -> tuple[object, ...]:
    return (event.cache_identity, event.rank) if event.check_slice is None else (event.check_slice,)

"""What was computed under which hash, as workers report it: the references that engines with comparable caches share.

An engine judges what it has computed itself. Of what it loads under a hash that it never computed, it reports the
fingerprint, and here that may be known from another engine. Nothing is wrong for being absent here: spans get lost, and a
store may hold other versions of a block. Only content that is known to be another block's is wrong, of a request with the
same adapter and salt: a salt changes the hashes of a prompt, and not its KV. Pure and bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.ledger.slim_reference_hashes import COMPUTED, LOADED, TAKEN, SlimBlock, SlimReferences, slim_blocks

MAX_CONTENTS = 100_000
"""Contents remembered; beyond that, the hash that was reported longest ago is forgotten, with all its contents."""
MAX_WAITING = 50_000
"""Loaded contents remembered that may yet turn out to be another block's, since engines report in any order."""

MAX_LOADS = 4_096
"""Requests with loads remembered that may be compared with what was handed over, once that is reported."""
MAX_CHECKS = 64
"""Of one request."""
SEVERAL = 3
"""So many blocks of one load, and all that can be compared, differ from what was computed by no accident, whoever they belong
to: a read copies bits, and the engine that gave them had computed these itself."""
MAX_WRONG = 50_000
"""Wrong blocks remembered, and again of those that loads have left behind; beyond that, those of the check that was found
wrong longest ago are forgotten."""

Scope = tuple[str, int, int | None]
"""Where hashes are comparable: the cache's identity, the rank, and the KV cache group."""
Rank = tuple[str, int]
"""Where contents are: a block may hold what belongs to another group."""


@dataclass(frozen=True, slots=True)
class ReportedBlock:
    """A block with the hash and content that a worker reported, and its first token in the request."""

    event: BlockCheck
    hash: str
    fingerprint: int
    token: int


Block = ReportedBlock | SlimBlock
WrongBlocks = dict[int, tuple[Block, Block]]
"""Of one check, by token: a block that holds what was computed under another hash, and the block with that content."""


def reported_blocks(event: BlockCheck) -> Iterator[ReportedBlock]:
    """The blocks with a hash and content in an event; an event with arrays of different lengths has none."""
    hashes, contents, tokens = event.check_hashes, event.check_fingerprints, event.check_tokens
    if len(hashes) == len(contents) == len(tokens):
        for hash_, content, token in zip(hashes, contents, tokens, strict=True):
            yield ReportedBlock(event, hash_, content, token)


@dataclass(slots=True)
class SharedReferences:
    """What is known of computed contents."""

    slim: SlimReferences = field(default_factory=SlimReferences)
    """By some bytes of every block."""
    _of_hash: dict[tuple[Scope, str], dict[int, ReportedBlock]] = field(default_factory=dict)
    """By hash, its contents, each with the block that was reported first."""
    _contents: int = 0
    _of_content: dict[tuple[Rank, int], ReportedBlock] = field(default_factory=dict)
    """By content, the block that was reported first."""
    _waiting: dict[tuple[Rank, int], list[ReportedBlock]] = field(default_factory=dict)
    """By content, loaded blocks that nobody is known to have computed."""
    _waits: int = 0
    _wrong: dict[str, WrongBlocks] = field(default_factory=dict)
    """By the span of a check, the wrong blocks that are known of it until now."""
    _wrongs: int = 0
    _loads: BoundedDict[tuple[str, str], tuple[BlockCheck, ...]] = field(default_factory=lambda: BoundedDict(MAX_LOADS))
    """By engine and request, the checks of what it loaded and its engine does not know."""
    _asked: tuple[BlockCheck, list[WrongBlocks]] | None = None
    """The event that was asked about last, until one is entered: a rule asks first."""
    _left: BoundedDict[tuple[str, int, int | None, str], str] = field(default_factory=lambda: BoundedDict(MAX_WRONG))
    """By engine, rank, group and hash, the request with the load that left another's content in a block."""

    def wrong(self, event: BlockCheck) -> list[WrongBlocks]:
        """The checks with blocks that this event proves wrong, before it is entered: its own, or those of blocks that hold
        what it reports as computed. Each has the wrong blocks that are known by now, those found before included."""
        if self._asked is None or self._asked[0] is not event:
            if event.check_look in TAKEN:
                fresh = [self._foreign(event)]
            else:
                fresh = [*self._found_late(event).values()] if event.check_look == COMPUTED else []
            self._asked = event, [{**self._known_of(blocks), **blocks} for blocks in fresh if blocks]
        return self._asked[1]

    def is_known_of(self, wrong: WrongBlocks) -> bool:
        """Whether some of these were found before."""
        return bool(self._known_of(wrong))

    def loads_of(self, engine: str, request: str) -> tuple[BlockCheck, ...]:
        """The checks of what a request loaded and its engine does not know."""
        return self._loads.get((engine, request), ())

    def unlike_given(self, event: BlockCheck, giver: tuple[str, str], beside: BlockCheck | None = None) -> WrongBlocks:
        """The blocks of a load, if there are several, that differ from all that was computed under their hashes, each with
        what a request of the engine that gives computed. None of them, unless all do that can be compared. What is
        reported `beside` the load, and not yet entered, counts, too."""
        if event.check_look != LOADED or event.check_unknown != event.check_blocks:
            return {}  # some are known to be right
        slim = self.slim.unlike_given(event, giver, beside)
        if slim is None:
            return {}
        unlike: WrongBlocks = {block.token: (block, given) for block, given in slim}
        if (scope := _scope(event)) is not None:
            fresh = [] if beside is None or _scope(beside) != scope else list(reported_blocks(beside))
            for block in reported_blocks(event):
                known = [each for each in fresh if each.hash == block.hash]
                known += self._of_hash.get((scope, block.hash), {}).values()
                if any(each.fingerprint == block.fingerprint for each in known):
                    return {}
                given = next((each for each in known if (each.event.engine, each.event.request) == giver), None)
                if given is not None:
                    unlike[block.token] = block, given
        return unlike if len(unlike) >= SEVERAL else {}

    def left_by(self, block: Block, beside: Iterable[WrongBlocks]) -> str | None:
        """The request with the load that left another's content in a block that another request takes over; `beside` it these
        have come to light."""
        place = _place(block)
        loads = (each for wrong in beside for each, _ in wrong.values() if each.event.check_look == LOADED)
        return self._left.get(place) or next((each.event.request for each in loads if _place(each) == place), None)

    def is_any_right(self, event: BlockCheck) -> bool:
        """Whether somebody computed the content of some block of a check under its hash."""
        return any(map(self.is_right, reported_blocks(event))) or any(map(self.slim.is_right, slim_blocks(event)))

    def is_right(self, block: ReportedBlock) -> bool:
        """Whether somebody computed this content under the block's hash."""
        scope = _scope(block.event)
        return scope is not None and block.fingerprint in self._of_hash.get((scope, block.hash), ())

    def owner(self, block: ReportedBlock) -> ReportedBlock | None:
        """The block with the content of a loaded one, if that was computed under another hash or for another KV cache group,
        and not under its own."""
        scope = _scope(block.event)
        if scope is None or self.is_right(block):
            return None
        owner = self._of_content.get((scope[:2], block.fingerprint))
        return owner if owner is not None and _have_one_identity(owner, block) else None

    def waiting(self, block: ReportedBlock) -> list[ReportedBlock]:
        """The loaded blocks that hold the content of this one, which nobody was known to have computed."""
        scope = _scope(block.event)
        held = [] if scope is None else self._waiting.get((scope[:2], block.fingerprint), [])
        return [each for each in held if _have_one_identity(block, each)]

    def enter(self, event: BlockCheck) -> None:
        """Remember what an event reports."""
        wrongs, self._asked = self.wrong(event), None
        for wrong in wrongs:
            check = _check_of(wrong)
            self._wrongs += len(wrong) - len(self._wrong.get(check.span_id, ()))
            self._wrong[check.span_id] = wrong
            while self._wrongs > MAX_WRONG:
                self._wrongs -= len(self._wrong.pop(next(iter(self._wrong))))
            if check.check_look == LOADED:
                self._left.update({_place(block): check.request or "" for block, _ in wrong.values()})
        self.slim.enter(event)
        if event.check_look == LOADED and event.check_unknown and (event.check_hashes or event.check_slim):
            of = (event.engine, event.request or "")
            self._loads[of] = (*self._loads.get(of, ()), event)[-MAX_CHECKS:]
        scope = _scope(event)
        if scope is None:
            return
        if event.check_look == COMPUTED:
            for block in reported_blocks(event):
                self._enter_computed(scope, block)
        elif event.check_look in TAKEN:
            for block in reported_blocks(event):
                if not self.is_right(block) and self.owner(block) is None:
                    self._enter_waiting((scope[:2], block.fingerprint), block)

    def _known_of(self, wrong: WrongBlocks) -> WrongBlocks:
        return self._wrong.get(_check_of(wrong).span_id, {})

    def _foreign(self, event: BlockCheck) -> WrongBlocks:
        """The blocks of a check that hold what was computed under other hashes; where both kinds of fingerprints show one,
        that of all its bytes counts."""
        foreign: WrongBlocks = {block.token: (block, owner) for block, owner in self.slim.foreign(event)}
        for each in reported_blocks(event):
            if (owner := self.owner(each)) is not None:
                foreign[each.token] = each, owner
        return foreign

    def _found_late(self, event: BlockCheck) -> dict[str, WrongBlocks]:
        """By the span of a check, its blocks that this event of computed ones proves wrong."""
        checks: dict[str, WrongBlocks] = {}
        owners = list(reported_blocks(event))
        right = {(event.group, owner.hash, owner.fingerprint) for owner in owners}
        for owner in owners:
            for block in self.waiting(owner):
                if (block.event.group, block.hash, block.fingerprint) not in right:
                    checks.setdefault(block.event.span_id, {})[block.token] = block, owner
        for slim, of in self.slim.found_late(event):
            checks.setdefault(slim.event.span_id, {}).setdefault(slim.token, (slim, of))
        return checks

    def _enter_computed(self, scope: Scope, block: ReportedBlock) -> None:
        contents = self._of_hash.setdefault((scope, block.hash), {})
        self._contents += block.fingerprint not in contents
        contents.setdefault(block.fingerprint, block)
        self._of_content.setdefault((scope[:2], block.fingerprint), block)
        self._waits -= len(self._waiting.pop((scope[:2], block.fingerprint), ()))
        while self._contents > MAX_CONTENTS:
            self._forget(next(iter(self._of_hash)))

    def _forget(self, key: tuple[Scope, str]) -> None:
        (identity, rank, _), _ = key
        contents = self._of_hash.pop(key)
        self._contents -= len(contents)
        for content, block in contents.items():
            name = ((identity, rank), content)
            if self._of_content.get(name) is block:
                del self._of_content[name]

    def _enter_waiting(self, key: tuple[Rank, int], block: ReportedBlock) -> None:
        self._waiting.setdefault(key, []).append(block)
        self._waits += 1
        while self._waits > MAX_WAITING:
            self._waits -= len(self._waiting.pop(next(iter(self._waiting))))


def _check_of(wrong: WrongBlocks) -> BlockCheck:
    return next(iter(wrong.values()))[0].event


def _place(block: Block) -> tuple[str, int, int | None, str]:
    return block.event.engine, block.event.rank, block.event.group, block.hash


def _have_one_identity(one: ReportedBlock, other: ReportedBlock) -> bool:
    """Whether the blocks' hashes can differ only because their tokens do, or those before them."""
    return one.event.identity is not None and one.event.identity == other.event.identity


def _scope(event: BlockCheck) -> Scope | None:
    return None if event.cache_identity is None else (event.cache_identity, event.rank, event.group)

"""What was computed under which hash, as workers report it: the references that engines with comparable caches share.

An engine judges what it has computed itself. Of what it loads under a hash that it never computed, it reports the
fingerprint, and here that may be known from another engine. Nothing is wrong for being absent here: spans get lost, and a
store may hold other versions of a block. Only content that is known to be another block's is wrong, of a request with the
same adapter and salt: a salt changes the hashes of a prompt, and not its KV. Pure and bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.ledger.slim_reference_hashes import SlimReferences

COMPUTED, LOADED = "computed", "loaded"
MAX_CONTENTS = 100_000
"""Contents remembered; beyond that, the hash that was reported longest ago is forgotten, with all its contents."""
MAX_WAITING = 50_000
"""Loaded contents remembered that may yet turn out to be another block's, since engines report in any order."""

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
        self.slim.enter(event)
        scope = _scope(event)
        if scope is None:
            return
        if event.check_look == COMPUTED:
            for block in reported_blocks(event):
                self._enter_computed(scope, block)
        elif event.check_look == LOADED:
            for block in reported_blocks(event):
                if not self.is_right(block) and self.owner(block) is None:
                    self._enter_waiting((scope[:2], block.fingerprint), block)

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


def _have_one_identity(one: ReportedBlock, other: ReportedBlock) -> bool:
    """Whether the blocks' hashes can differ only because their tokens do, or those before them."""
    return one.event.identity is not None and one.event.identity == other.event.identity


def _scope(event: BlockCheck) -> Scope | None:
    return None if event.cache_identity is None else (event.cache_identity, event.rank, event.group)

"""What was computed under which hash, as workers tell it: the truth that engines with comparable caches share.

An engine judges what it has computed itself. Of what it loads under a hash that it never computed, it tells the fingerprint,
and here that may be known from another engine. Nothing is wrong for being absent here: spans get lost, and a store may hold
other versions of a block. Only content that is known to be another block's is wrong, of a request with the same adapter and
salt: a salt changes the hashes of a prompt, and not its KV. Pure and bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.ledger.slim_reference_hashes import SlimTruth

COMPUTED, LOADED = "computed", "loaded"
MOST_CONTENTS = 100_000
"""Contents remembered; beyond that, the hash of which was told longest ago is forgotten, with all its contents."""
MOST_WAITING = 50_000
"""Loaded contents remembered that may yet turn out to be another block's, since engines are not heard in order."""

Scope = tuple[str, int, int | None]
"""Where hashes and fingerprints are comparable: the cache's identity, the rank, and the KV cache group."""


@dataclass(frozen=True, slots=True)
class Told:
    """A block of which a worker told hash and content, and its first token in the request."""

    event: BlockCheck
    hash: str
    fingerprint: int
    token: int


def told(event: BlockCheck) -> Iterator[Told]:
    """The blocks of which an event tells hash and content; an event whose arrays differ in length tells nothing."""
    hashes, contents, tokens = event.check_hashes, event.check_fingerprints, event.check_tokens
    if len(hashes) == len(contents) == len(tokens):
        for hash_, content, token in zip(hashes, contents, tokens, strict=True):
            yield Told(event, hash_, content, token)


@dataclass(slots=True)
class Truth:
    """What is known of computed contents."""

    slim: SlimTruth = field(default_factory=SlimTruth)
    """By some bytes of every block."""
    _of_hash: dict[tuple[Scope, str], dict[int, Told]] = field(default_factory=dict)
    """By hash, its contents, each with the block that was told first."""
    _contents: int = 0
    _of_content: dict[tuple[Scope, int], Told] = field(default_factory=dict)
    """By content, the block that was told first."""
    _waiting: dict[tuple[Scope, int], list[Told]] = field(default_factory=dict)
    """By content, loaded blocks that nobody is known to have computed."""
    _waits: int = 0

    def is_right(self, block: Told) -> bool:
        """Whether somebody computed this content under the block's hash."""
        scope = _scope(block.event)
        return scope is not None and block.fingerprint in self._of_hash.get((scope, block.hash), ())

    def owner(self, block: Told) -> Told | None:
        """The block whose content a loaded one holds, if that was computed under another hash and not under its own."""
        scope = _scope(block.event)
        if scope is None or self.is_right(block):
            return None
        owner = self._of_content.get((scope, block.fingerprint))
        return owner if owner is not None and _have_one_identity(owner, block) else None

    def waiting(self, block: Told) -> list[Told]:
        """The loaded blocks that hold the content of this one, whose content was not known to be anybody's."""
        scope = _scope(block.event)
        held = [] if scope is None else self._waiting.get((scope, block.fingerprint), [])
        return [each for each in held if _have_one_identity(block, each)]

    def enter(self, event: BlockCheck) -> None:
        """Remember what an event tells."""
        self.slim.enter(event)
        scope = _scope(event)
        if scope is None:
            return
        if event.check_look == COMPUTED:
            for block in told(event):
                self._enter_computed(scope, block)
        elif event.check_look == LOADED:
            for block in told(event):
                if not self.is_right(block) and self.owner(block) is None:
                    self._enter_waiting((scope, block.fingerprint), block)

    def _enter_computed(self, scope: Scope, block: Told) -> None:
        contents = self._of_hash.setdefault((scope, block.hash), {})
        self._contents += block.fingerprint not in contents
        contents.setdefault(block.fingerprint, block)
        self._of_content.setdefault((scope, block.fingerprint), block)
        self._waits -= len(self._waiting.pop((scope, block.fingerprint), ()))
        while self._contents > MOST_CONTENTS:
            self._forget(next(iter(self._of_hash)))

    def _forget(self, key: tuple[Scope, str]) -> None:
        scope, _ = key
        contents = self._of_hash.pop(key)
        self._contents -= len(contents)
        for content, block in contents.items():
            if self._of_content.get((scope, content)) is block:
                del self._of_content[scope, content]

    def _enter_waiting(self, key: tuple[Scope, int], block: Told) -> None:
        self._waiting.setdefault(key, []).append(block)
        self._waits += 1
        while self._waits > MOST_WAITING:
            self._waits -= len(self._waiting.pop(next(iter(self._waiting))))


def _have_one_identity(one: Told, other: Told) -> bool:
    """Whether the blocks' hashes can differ only because their tokens do, or those before them."""
    return one.event.identity is not None and one.event.identity == other.event.identity


def _scope(event: BlockCheck) -> Scope | None:
    return None if event.cache_identity is None else (event.cache_identity, event.rank, event.group)

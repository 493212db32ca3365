"""Accesses to a prefix cache: chunks in order. A chunk is a hit only if all chunks before it are hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvtrail.tracer.events.cache_groups import FULL, MAMBA, SLIDING, groups_of
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Alloc, Event, Lookup, Store
from kvtrail.tracer.events.hash_chains import Chain

LMCACHE = frozenset({"LMCacheConnectorV1", "LMCacheConnectorV1Dynamic"})
"""LMCache's connectors. They store the tokens that a request has at its admission, not generated ones. They store a prefix in
token order, so that its head is evicted first."""


class Access(NamedTuple):
    """One access to a prefix, in chunks from its first one.

    Attributes:
        keys: the chunks, each by the hash of its last block; equal keys mean equal prefixes.
        wanted: for each chunk, the tokens that a hit would have saved: less than a chunk if vLLM's own cache held a part of
            it, and 0 if it held all of it. Empty for an access that only stores.
        used: the number of chunks, from the first one, that are used by this access. The others are only looked up, and are
            stored once they are computed. By default, all chunks are used.
    """

    keys: Sequence[bytes]
    wanted: Sequence[int] = ()
    used: int | None = None


@dataclass(slots=True)
class RequestPrefix:
    """The prefix of an admitted request in a connector's store. It grows while the request is computed.

    Attributes:
        alloc: its latest allocation.
        chain: the known hashes of the request's full blocks.
        chunk_size, block_size: tokens of a chunk of the store, and of a block.
        done: the number of its chunks that have been computed or loaded.
        limit: the maximum number of its tokens that the connector stores; None if there is no limit.
    """

    alloc: Alloc
    chain: Chain
    chunk_size: int
    block_size: int
    done: int = 0
    limit: int | None = None

    def admit(self, lookup: Lookup) -> Access:
        """Enter the allocation of blocks after a lookup's answer; returns the access."""
        keys = self._keys(lookup.total)
        self.done = (lookup.computed + self.alloc.allocated) // self.chunk_size
        self.limit = lookup.total if self.alloc.connector in LMCACHE else None
        total = lookup.total
        if ends_early(lookup):
            total = (total - 1) // self.chunk_size * self.chunk_size + 1
        wanted = wanted_of(len(keys), self.chunk_size, computed=lookup.computed, total=total)
        return Access(keys, wanted, self.done)

    def compute(self, tokens: int) -> Access | None:
        """Enter that the request has been computed up to this number of tokens. Returns the access of the store that this
        allows; None if no chunk was completed."""
        kept = tokens if self.limit is None else min(tokens, self.limit)
        if kept // self.chunk_size <= self.done or len(keys := self._keys(kept)) <= self.done:
            return None
        self.done = len(keys)
        return Access(keys)

    def _keys(self, tokens: int) -> Sequence[bytes]:
        """The known keys of the full chunks among its first tokens: for each, the hash of its last block."""
        if not self.block_size or self.chunk_size % self.block_size or not self.chain.is_whole:
            return []
        step = self.chunk_size // self.block_size
        end = min(len(self.chain.hashes), tokens // self.chunk_size * step)
        return self.chain.hashes[step - 1 : end : step]


def ends_early(event: Event) -> bool:
    """Whether a hit ends with a chunk before the last token. This is so in a store of several KV cache groups if not all of
    them keep everything."""
    return event.has(Capability.TELLS_GROUPS) and any(group.kind != FULL for group in groups_of(event.groups))


def room_of(event: Store) -> int | None:
    """The bytes that the chunk of a copy occupies in its store; None if unknown. With several KV cache groups, the store
    reserves space in each chunk for everything that a hit can need of each group, whether or not it was copied."""
    size, groups = event.chunk_size, groups_of(event.groups)
    if len(groups) < 2 or not size or not event.has(Capability.TELLS_GROUPS):
        return event.bytes
    room = 0
    for group in groups:
        if not (group.page_bytes and group.block_size):
            return event.bytes
        blocks = size // group.block_size
        if group.kind == MAMBA:
            blocks = 1
        elif group.kind != FULL and group.window:
            seen = group.window - (group.kind == SLIDING)  # without the token itself
            blocks = min(blocks, -(-seen // group.block_size))
        room += blocks * group.page_bytes
    return event.count * room // size


def wanted_of(chunks: int, chunk_size: int, *, computed: int, total: int) -> list[int]:
    """The tokens of each chunk that a connector may load for a request with `computed` of `total` tokens in vLLM's own cache.

    The last token is always computed, for its logits (`kvtrail.tracer.events.contract`)."""
    begins = range(0, chunks * chunk_size, chunk_size)
    return [max(0, min(begin + chunk_size, total - 1) - max(begin, computed)) for begin in begins]

"""What a request asks of a prefix cache: chunks in order, each of which counts only if those before it are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Touch(NamedTuple):
    """One use of a prefix, in chunks from its first on.

    Attributes:
        keys: the chunks, each by the hash of its last block; equal keys mean equal prefixes.
        wanted: for each chunk, the tokens that a hit on it would have spared: less than a chunk where vLLM held a part of
            it, and 0 where it held all. Empty for a touch that wants nothing and only stores.
        used: how many of the chunks, from the first on, are used at this moment: the others are only asked for, and stored
            once they are computed. All of them by default.
    """

    keys: Sequence[bytes]
    wanted: Sequence[int] = ()
    used: int | None = None


def wanted_of(chunks: int, chunk_size: int, *, computed: int, total: int) -> list[int]:
    """The tokens of each chunk that a connector may give to a request with `computed` of `total` tokens in vLLM's own cache.

    The last token is always computed, for its logits (`kvtrail.tracer.events.contract`)."""
    end = total - 1
    wanted = [0] * chunks
    begin, until = max(0, -(-computed // chunk_size)), min(chunks, end // chunk_size)
    if begin < until:
        wanted[begin:until] = [chunk_size] * (until - begin)
    for n in (computed // chunk_size, end // chunk_size):  # only a part of these may be wanted
        if 0 <= n < chunks:
            wanted[n] = max(0, min((n + 1) * chunk_size, end) - max(n * chunk_size, computed))
    return wanted


def keys_of(chain: Sequence[bytes], tokens: int, *, chunk_size: int, block_size: int) -> Sequence[bytes]:
    """The keys of the full chunks among the first tokens of a chain of blocks: the hash of each chunk's last block, as far as
    the chain is known."""
    if not block_size or chunk_size % block_size:
        return []
    step = chunk_size // block_size
    end = min(len(chain), tokens // chunk_size * step)
    return chain[step - 1 : end : step]

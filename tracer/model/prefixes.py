"""Prefixes of prompts, and what they are named by: the hash of a block, which stands for the whole prompt up to its end."""

from __future__ import annotations

from collections.abc import Sequence

PREFIX_TOKENS = 64
"""The beginning of a prompt by which requests are grouped, in tokens: past what a chat template puts before every prompt, and
before what most system prompts end with. It is the same for every request, engine and sidecar: what requests happen to share
with those before them would depend on their order, and would be longer with each turn of a conversation."""
PREFIX_BYTES = 8
"""Of the hash of a block: enough to tell prefixes apart."""


def name_of(block_hash: bytes) -> str:
    """The name of the prefix that ends with this block, in hexadecimal."""
    return block_hash[:PREFIX_BYTES].hex()


def prefix_of(chain: Sequence[bytes], block_size: int) -> str:
    """The prefix of a prompt by the hashes of its full blocks: that of the last block within the first `PREFIX_TOKENS`
    tokens, or of the first block, if blocks are longer. Empty where the prompt has no full block."""
    within = chain[: blocks_of_prefix(block_size)]
    return name_of(within[-1]) if within else ""


def blocks_of_prefix(block_size: int) -> int:
    """How many full blocks decide about the prefix; 0 where their size is not known."""
    return max(1, PREFIX_TOKENS // block_size) if block_size else 0

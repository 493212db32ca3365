"""Prefixes of prompts. A prefix is named by the hash of its last block, which stands for the whole prompt up to its end."""

from __future__ import annotations

from collections.abc import Sequence

PREFIX_TOKENS = 64
"""Length in tokens of the prefix by which requests are grouped: longer than the beginning that a chat template adds to every
prompt, and shorter than most system prompts. The length is the same for every request, engine and sidecar. A prefix shared
with earlier requests would depend on their order, and would grow with each turn of a conversation."""
PREFIX_BYTES = 8
"""Bytes of a block's hash in a prefix's name: enough to distinguish prefixes."""


def name_of(block_hash: bytes) -> str:
    """The name of the prefix that ends with this block, in hexadecimal."""
    return block_hash[:PREFIX_BYTES].hex()


def prefix_of(chain: Sequence[bytes], block_size: int) -> str:
    """The name of a prompt's prefix, from the hashes of its full blocks. The prefix ends with the last block within the first
    `PREFIX_TOKENS` tokens, or with the first block if blocks are longer. Empty if the prompt has no full block."""
    within = chain[: blocks_of_prefix(block_size)]
    return name_of(within[-1]) if within else ""


def blocks_of_prefix(block_size: int) -> int:
    """The number of full blocks in a prefix; 0 if the size of a block is unknown."""
    return max(1, PREFIX_TOKENS // block_size) if block_size else 0

"""The hashes of full blocks, as a recording at level `detailed` holds them: what each begins with, one after the other."""

from __future__ import annotations

DIGITS = 12
"""Hexadecimal digits that are recorded of a hash; see `kvtrail.block.hashes`."""


def split(hashes: str) -> tuple[str, ...]:
    """The beginnings of the hashes, in the order of the blocks' tokens."""
    return tuple(hashes[at : at + DIGITS] for at in range(0, len(hashes), DIGITS))

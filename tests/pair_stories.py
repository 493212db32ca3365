"""One hand-off of 600 tokens as both engines record it, for histories: `engine` gives it, and `d` takes it."""

from __future__ import annotations

GIVES = """
    start 600
    L 600 c0 -> 0
    A 0
    S 0+600
    gives h1 600/600 of {digest}
    end delayed length_capped handoff computed 600 lease 30
"""
"""With the digest of the prompt's ids; `a` is that of the request that takes."""
TAKES = """
    <d> start 600
    <d> takes h1 600/600 of a
    <d> L 600 c0 -> 599 async
    <d> A 599
    <d> R
"""
EXPIRED = "wait 30\nfreed expired\nsent\n"
"""The lease runs out."""

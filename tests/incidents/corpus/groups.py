"""Incidents and legal look-alikes of models with several KV cache groups."""

from __future__ import annotations

from incidents.incident import Incident, LookAlike, vllm

WINDOW = "full 32, window 32 100"
STATE = "full 32, state 32"


def _alike(of: str, rule: str, what: str, text: str, groups: str = WINDOW) -> LookAlike:
    return LookAlike(of=of, rule=rule, what=what, text=text, groups=groups)


def _nulls(count: int) -> str:
    """So many null blocks, at the beginning of a table."""
    return "0 " * count


INCIDENTS = [
    Incident(
        id="vllm-46453",
        of="N2",
        url=vllm(46453),
        block=256,
        groups="full 256, state 256",
        text="""
            # the hits of the groups are [1 2] and [null null null state]; both are cut to 512. The length is ours
            L 1100 c512 -> 0
            A 0 [1-5 | 0 0 0 0 20]
            S 512+588 [1-5 | 0 0 0 0 20]
        """,
        rule="null-block",
        numbers={"group": 1, "kind": "mamba", "token": 256, "needed_from": 256, "begins": 512, "missing": 1},
        says="it needs the state of its first 512 tokens, and its table has the null block there",
    ),
    Incident(
        id="vllm-rbln-1151",
        of="C8",
        url="https://github.com/RBLN-SW/vllm-rbln/issues/1151",
        groups="full 32, window 32 128",  # gpt-oss; the other numbers are ours
        text=f"""
            L 1000 c512 h768 -> 256
            A 256 [1-32 | {_nulls(20)}50-61]
            S 768+232 [1-32 | {_nulls(20)}50-61]
            error [17-24 | 50-53]
            S 512+488
        """,
        rule="null-block",
        numbers={
            "group": 1, "kind": "sliding_window", "token": 384, "needed_from": 384, "begins": 512, "missing": 8,
        },
        says="needs the blocks from token 384 on, and 8 of them are the null block",
    ),
]  # fmt: skip

LOOK_ALIKES = [
    _alike(
        "N2",
        "null-block",
        "what a window has left behind",
        f"L 600 c512 h0 -> 0\nA 0 [1-19 | {_nulls(12)}50-56]\nS 512+88 [1-19 | {_nulls(12)}50-56]",
    ),
    _alike(
        "N2",
        "null-block",
        "a load fills the group that lags",
        f"L 600 c256 h512 -> 256\nA 256 [1-19 | {_nulls(12)}50-56]\nS 512+88 [1-19 | {_nulls(12)}50-56]",
    ),
    _alike(
        "N2",
        "null-block",
        "the second allocation, after an asynchronous load",
        f"L 600 c0 h512 -> 512 async\nA 512 [1-16 | {_nulls(12)}50-53]\nR\nA 0 [1-19 | {_nulls(12)}50-56]\n"
        f"S 512+88 [1-19 | {_nulls(12)}50-56]",
    ),
    _alike(
        "N2",
        "null-block",
        "states that no step has written are not needed",
        "L 120 c96 h0 -> 0\nA 0 [1-4 | 0 0 30 31]\nS 96+24 [1-4 | 0 0 30 31]",
        STATE,
    ),
    _alike(
        "C8",
        "null-block",
        "all is computed again after a failed load, in other blocks",
        f"L 600 c0 h512 -> 512 async\nA 512 [1-16 | {_nulls(12)}50-53]\nerror [3]\nR failed\n"
        "L 600 c0 h0 -> 0\nA 0 [1-3 | 50-52]\nS 0+96 [1-3 | 50-52]\nS 96+64 [4 5 | 53 54]",
    ),
    _alike(
        "C8",
        "null-block",
        "a request goes back to where its window is still held",
        f"L 600 c512 h544 -> 32\nA 32 [1-19 | {_nulls(12)}50-56]\nS 544+56 [1-19 | {_nulls(12)}50-56]\n"
        "S 600+1\nerror [17]\nS 512+90",
    ),
]

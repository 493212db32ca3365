"""Incidents and legal look-alikes of models with several KV cache groups."""

from __future__ import annotations

from incidents.incident import Incident, LookAlike, lmcache, vllm

WINDOW = "full 32, window 32 100"
STATE = "full 32, state 32"
ALIGNED = "full 32, state 32 align"
"""Of recurrent states there are those at the ends of steps."""


def _alike(of: str, rule: str, what: str, text: str, groups: str = WINDOW) -> LookAlike:
    return LookAlike(of=of, rule=rule, what=what, text=text, groups=groups)


def _nulls(count: int) -> str:
    """A number of null blocks, at the beginning of a table."""
    return "0 " * count


INCIDENTS = [
    Incident(
        id="vllm-47812",
        of="C8",
        url=vllm(47812),
        groups=WINDOW,
        text=f"""
            # no numbers in the thread: the load of one group's block fails, and nothing goes back
            L 600 c0 h512 -> 512
            A 512 [1-19 | {_nulls(12)}50-56]
            S 512+88 [1-19 | {_nulls(12)}50-56]
            error [53]
            S 600+1
        """,
        rule="failed-load-used",
        numbers={"where": "run on", "block": 53, "first_invalid": 480, "begins": 600},
        says="it holds this request's tokens from 480 on",
    ),
    Incident(
        id="vllm-46694",
        of="C5",
        url=vllm(46694),
        groups=WINDOW,
        text=f"""
            # a group's shifted table is the thread's; by how much, and the numbers, are ours
            L 600 c0 h512 -> 512 async
            A 512 [1-19 | {_nulls(12)}50-56]
            plan load 0+512 [1-16 | 51-54] at 0,384
        """,
        rule="plan-blocks",
        numbers={"where": "table",
            "start": 384, "count": 512, "planned": [51, 52, 53, 54], "expected": [50, 51, 52, 53], "foreign": [],
            "table_length": 19, "group": 1, "of_group": 1,
        },
        says="in blocks 51, 52, 53, 54 of KV cache group 1",
    ),
    Incident(
        id="vllm-42959",
        of="C16",
        url=vllm(42959, "pull"),
        groups=WINDOW,
        text="""
            # a block that was not stored in time is freed and given out again: the thread's; the numbers are ours
            L 300 c0 h0 -> 0
            A 0 [1-10 | 51-60]
            S 0+300 [1-10 | 51-60]
            b: L 32 c0 h0 -> 0
            b: A 0 [20 | 70]
            b: S 0+32 [20 | 70]
            b: S 32+1 [21 | 53]
            plan store 0+256 [1-8 | 53-58] at 0,64 #1
        """,
        rule="plan-blocks",
        numbers={"where": "reassigned", "block": 53, "group": 1, "other": "b-cmpl-1-0-0123abcd", "stale": 1},
        says="was given to request",
    ),
    Incident(
        id="vllm-30618",
        of="C4",
        url=vllm(30618, "pull"),
        text="""
            # steps of 8192 and 3 drafts are the thread's, the prompt's length is ours
            L 12000 c0 -> 0
            A 0
            S 0+8192 drafts 0
            S 8192+3811 drafts 3
        """,
        rule="early-drafts",
        numbers={"begins": 8192, "prompt": 12000, "computes": 3808, "drafted": 3, "end": 12003},
        says="a recurrent state after it is that of 12003 tokens instead of 12000",
    ),
    Incident(
        id="LMCache-5004",
        of="C22",
        url=lmcache(5004, "pull"),
        connector="LMCacheMPConnector",
        chunk=1616,
        block=1616,
        groups="full 1616, state 1616 align",
        text="""
            L 4538 c0 h0 -> 0
            A 0 [1 | 20 21]  # 21 is the block for drafts, which vLLM moves; ids are ours
            S 0+1616 [1 | 20 21]
            S 1616+2922 [2 3 | 22]
            plan store 0+3232 [1 2 | 20 21] at 0,0
        """,
        rule="state-boundary",
        numbers={"group": 1, "boundary": 3232, "block": 21, "begins": 1616, "end": 4538},
        says="A step ran from token 1616 to 4538 without an end there",
    ),
    Incident(
        id="vllm-53084",
        of="C22",
        url=vllm(53084),
        connector="MooncakeStoreConnector",
        chunk=1056,
        block=1056,
        groups="full 1056, state 1056 align",
        text="""
            # the null block at 2112 is the thread's; the block size and the prompt's length are ours
            L 4000 c0 h0 -> 0
            A 0 [1-4 | 0 0 0 23]
            S 0+4000 [1-4 | 0 0 0 23]
            plan store 1056+1056 [2 | 0] at 1056,1056
        """,
        rule="state-boundary",
        numbers={"group": 1, "boundary": 2112, "block": 0},
        says="that is the null block, which nobody has written",
    ),
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
        says="it needs the blocks from token 256 on: the null block is in the place of 1 of them",
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
        says="needs the blocks from token 384 on: the null block is in the place of 8 of them",
    ),
]  # fmt: skip

_STORING = "L 600 c0 h0 -> 0\nA 0 [1 2 | 51 52]\nS 0+64 [1 2 | 51 52]\nplan store 0+64 [1 2 | 51 52] at 0,0 #1\n"
_LOADING = f"L 600 c0 h512 -> 512 async\nA 512 [1-16 | {_nulls(12)}50-53]\n"
_AGAIN = "L 600 c0 h0 -> 0\nA 0 [1-19 | 50-68]\nS 0+600 [1-19 | 50-68]\n"
_FAILED = f"L 600 c0 h512 -> 512\nA 512 [1-19 | {_nulls(12)}50-56]\nS 512+88 [1-19 | {_nulls(12)}50-56]\n"
LOOK_ALIKES = [
    _alike(
        "C16",
        "plan-blocks",
        "what the window has left behind was given to no request",
        "L 300 c0 h0 -> 0\nA 0 [1-10 | 51-60]\nS 0+300 [1-10 | 51-60]\nplan store 0+256 [1-8 | 51-58] at 0,0 #1\ndone #1",
    ),
    _alike(
        "C16",
        "plan-blocks",
        "blocks that another request had before are hits of the prefix cache",
        "L 300 c0 h0 -> 0\nA 0 [1-10 | 51-60]\nS 0+300 [1-10 | 51-60]\nend\n"
        "b: L 300 c256 h0 -> 0\nb: A 0 [1-8 11 12 | 0 0 0 0 55-58 71 72]\nb: S 256+44 [1-8 11 12 | 0 0 0 0 55-58 71 72]\n"
        "b: plan store 128+128 [5-8 | 55-58] at 128,128 #2\nb: done #2",
    ),
    _alike(
        "C16",
        "plan-blocks",
        "a state is handed over in a copy, in a block that another request had before",
        "L 60 c0 -> 0\nA 0 [1 2 | 21 22]\nS 0+48 [1 2 | 21 22]\nb: L 60 c0 -> 0\nb: A 0 [11 12 | 0 34]\n"
        "b: S 0+60 [11 12 | 0 34]\nb: end\nS 48+12\nplan store 32 [2 | 34] at 32,32",
        ALIGNED,
    ),
    _alike(
        "C16",
        "block-reuse",
        "the null block is in every request's window",
        f"{_LOADING}b: L 600 c512 h0 -> 0\nb: A 0 [21-39 | {_nulls(12)}60-66]\nR",
    ),
    _alike(
        "C16",
        "block-reuse",
        "a block that the window has left behind is given away when its store has ended",
        _STORING + "done #1\nS 64+130 [3-7 | 53-57]\nb: L 32 c0 h0 -> 0\nb: A 0 [51 | 60]",
    ),
    _alike(
        "C16",
        "read-before-loaded",
        "the prefix cache's part of full attention is shared, and the window's null blocks",
        f"L 600 c256 h512 -> 256 async\nA 256 [1-16 | {_nulls(12)}50-53]\n"
        f"b: L 300 c256 h0 -> 0\nb: A 0 [1-8 20 21 | {_nulls(4)}60-65]\nR",
    ),
    _alike(
        "C16",
        "read-before-loaded",
        "another request's blocks are stored, in both groups",
        f"{_LOADING}b: L 64 c0 h0 -> 0\nb: A 0 [21 22 | 61 62]\nb: S 0+64 [21 22 | 61 62]\n"
        "b: plan store 0+64 [21 22 | 61 62] at 0,0 #1\nb: done #1\nR",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "all is computed again before it is stored, of both groups",
        f"{_LOADING}error [13 50]\nR failed\n{_AGAIN}plan store 0+512 [1-16 | 50-65] at 0,0",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "all is computed again, in the same blocks",
        f"{_LOADING}error [13 50]\nR failed\n{_AGAIN}S 600+1",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "the block lies before the window of the step",
        f"{_FAILED}error [50]\nS 600+1",
        "full 32, window 32 64",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "the request that shares the block computes it again",
        "L 96 c64 h96 -> 31\nA 31 [1-3 | 51-53]\nS 95+1 [1-3 | 51-53]\nb: L 96 c95 h0 -> 0\nb: A 0 [1-3 | 51-53]\n"
        "error [53]\nS 64+32\nb: S 95+1 [1-3 | 51-53]",
    ),
    _alike(
        "C5",
        "plan-blocks",
        "each group's blocks, from different tokens on",
        f"{_LOADING}plan load 0+512 [1-16 | 50-53] at 0,384 #1\ndone #1\nR",
    ),
    _alike(
        "C5",
        "plan-blocks",
        "groups with blocks of different sizes",
        "L 128 c0 h0 -> 0\nA 0 [1-4 | 51-58]\nS 0+128 [1-4 | 51-58]\nplan store 64+64 [3 4 | 55-58] at 64,64",
        "full 32, window 16 100",
    ),
    _alike(
        "C5",
        "unreported-blocks",
        "a group with larger blocks has fewer of them",
        "L 128 c0 h0 -> 0\nA 0 [1-8 | 51]\nS 0+128 [1-8 | 51]\nS 128+1 [9 | 52]\nend [1-9 51 52]",
        "full 16, state 128",
    ),
    _alike("C4", "early-drafts", "the first step after the prompt", "L 300 c0 -> 0\nA 0\nS 0+300\nS 300+4 drafts 3"),
    _alike("C4", "early-drafts", "one token is left, and padded", "L 300 c0 h512 -> 299\nA 299\nS 299+4 drafts 3"),
    _alike(
        "C4",
        "early-drafts",
        "tokens of output, computed again after a preemption",
        "L 300 c0 -> 0\nA 0\nS 0+300\nS 300+4 drafts 3\nP\nL 303 c0 -> 0\nA 0\nS 0+306 drafts 3",
    ),
    _alike(
        "C4",
        "early-drafts",
        "a failed load sends it back behind its prompt's end",
        "L 300 c0 h256 -> 256\nA 256 [1-10]\nS 256+44 [1-10]\nerror [8]\nS 224+80 drafts 3",
        "full 32",
    ),
    _alike(
        "C22",
        "state-boundary",
        "steps that end at each boundary",
        "L 120 c0 -> 0\nA 0 [1-4 | 21-24]\nS 0+32 [1-4 | 21-24]\nS 32+32\nS 64+56\nplan store 0+64 [1 2 | 21 22] at 0,0",
        ALIGNED,
    ),
    _alike(
        "C22",
        "state-boundary",
        "the last state of a long step",
        "L 120 c0 -> 0\nA 0 [1-3 | 0 0 23]\nS 0+96 [1-3 | 0 0 23]\nplan store 0+96 [1-3 | 23] at 0,64",
        ALIGNED,
    ),
    _alike(
        "C22",
        "state-boundary",
        "a hit's state",
        "L 120 c64 -> 0\nA 0 [1-4 | 0 22 23 24]\nS 64+56 [1-4 | 0 22 23 24]\nplan store 32+32 [2 | 22] at 32,32",
        ALIGNED,
    ),
    _alike(
        "C22",
        "state-boundary",
        "one token after the other",
        "L 60 c0 -> 0\nA 0 [1 2 | 21 22]\nS 0+60 [1 2 | 21 22]\nS 60+1\nS 64+1 [3 | 23]\nplan store 32+32 [2 | 22] at 32,32",
        ALIGNED,
    ),
    _alike(
        "C22",
        "state-boundary",
        "accepted drafts with the state that vLLM keeps",
        "L 60 c0 -> 0\nA 0 [1 2 | 21 22]\nS 0+60 [1 2 | 21 22]\nS 60+6 [3 | 23] drafts 5\nS 66+1\n"
        "plan store 32+32 [2 | 22] at 32,32",
        ALIGNED,
    ),
    _alike(
        "C22",
        "state-boundary",
        "a mode in which a step writes the states of all blocks",
        "L 120 c0 -> 0\nA 0 [1-4 | 21-24]\nS 0+120 [1-4 | 21-24]\nplan store 0+96 [1-3 | 21-23] at 0,0",
        "full 32, state 32 all",
    ),
    _alike(
        "C22",
        "state-boundary",
        "a checkpoint before the prompt's end",
        "L 120 c0 -> 0\nA 0 [1-4 | 0 0 23 24]\nS 0+120 [1-4 | 0 0 23 24]\nplan store 64+32 [3 | 23] at 64,64",
        "full 32, state 32 align checkpoints",
    ),
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

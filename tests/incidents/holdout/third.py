"""Incidents of pairs of engines, of KV cache groups and of others, none of which was used before.

They are from 29 searches of public issue trackers, by subject: what no part of this project named until then, and tells of a
failure of its own. Left out is what does not say what went wrong, and what has the cause of an incident that was used.
Where a thread has no numbers, the history's are ours. Each was written down with the rule that should find it before any was
judged. What they showed then is `FIRST_BY_AREA`.
"""

from __future__ import annotations

from incidents.incident import Holdout, lmcache, sglang, vllm
from kvtrail.connector.known.nixl import CONNECTOR as NIXL
from kvtrail.tracer.events.capabilities import declaration

FIRST_BY_AREA = {"pairs": (10, 7), "groups": (9, 7), "others": (10, 9)}
"""When they were judged for the first time: how many events can decide, and how many of these their rule found. No other rule
found anything. Beside the four that no rule looks at, vllm-54272 was missed, which `byte-drift` was expected to find, and
vllm-58222, since its history did not declare what a recorder of today does."""


def _ascend(number: int) -> str:
    return f"https://github.com/vllm-project/vllm-ascend/issues/{number}"


def _prefill(key: str, lease_s: int, name: str = "") -> str:
    """The engine's part that computes a prompt of 600 tokens and keeps it."""
    calls = (
        "start 600",
        "L 600 c0 -> 0",
        "A 0",
        "S 0+600",
        f"gives {key} 600/600 of a",
        f"end delayed length_capped handoff computed 600 lease {lease_s}",
    )
    return "".join(f"{name}{call}\n" for call in calls)


_RENEWED = 8 * "wait 20 busy\na: lease 30\n"
_AGAIN = 8 * "L 600 c0 -> later\nwait 30 spare\n"

PAIRS = [
    Holdout(
        id="vllm-50719",
        of="C12",
        area="pairs",
        url=vllm(50719),
        connector="MooncakeConnector",
        text="""
            # three of the loads that fail in the same second: "Timeout waiting for P side ready"
            r0: L 600 c0 -> 599 async
            r0: A 599
            r1: L 600 c0 -> 599 async
            r1: A 599
            r2: L 600 c0 -> 599 async
            r2: A 599
            wait 480
            r0: R failed
            r1: R failed
            r2: R failed
            r0: end error
            r1: end error
            r2: end error
        """,
        uncovered="Loads that were under way at the same time end in their time-out: nothing follows from one such moment.",
    ),
    Holdout(
        id="vllm-ascend-12383",
        of="C12",
        area="pairs",
        url=_ascend(12383),
        connector="MooncakeConnectorV1",
        text="""
            # 32 requests of 100,000 tokens at a time; the pool stays at 99 %, and nothing is taken in. Four of them:
            r0: L 100000 c0 -> 99999 async
            r0: A 99999
            r1: L 100000 c0 -> 99999 async
            r1: A 99999
            r2: L 100000 c0 -> 99999 async
            r2: A 99999
            r3: L 100000 c0 -> 99999 async
            r3: A 99999
        """,
        later_s=1200,
        rule="stuck-load",
    ),
    Holdout(
        id="vllm-50425",
        of="C13",
        area="pairs",
        url=vllm(50425),
        connector="MooncakeConnector",
        text=f"""
            {_prefill("h1", 480)}
            # the client is gone before the other engine has the request
            wait 480
            freed expired
            sent
        """,
        why="The request never reached the other engine, and the lease gave the blocks back, as it may.",
    ),
    Holdout(
        id="vllm-55097",
        of="N9",
        area="pairs",
        url=vllm(55097, "pull"),
        connector="MooncakeConnector",
        groups="full 32, window 32 100",
        cache_identity="one model",
        text="""
            # the fourth of the blocks [2 3 4 0] is left out first, so 3 is written to 7, which belongs to 4
            start 620
            L 620 c0 -> 0
            A 0
            S 0+620
            check computed 3 group 1 tells ea:1@512 eb:2@544 ec:3@576 as plain
            gives h1 620/620 of a
            end delayed length_capped handoff computed 620 lease 480
            <d> start 620
            <d> takes h1 620/620 of a
            <d> L 620 c0 -> 619 async
            <d> A 619
            xfer write posted 3 peer d [2-4] of [6-8]
            xfer write done peer d
            <d> R
            <d> check loaded 2 unknown 2 group 1 tells eb:1@544 ec:2@576 as plain
            sent
        """,
        rule="byte-drift",
    ),
    Holdout(
        id="vllm-54272",
        of="N9",
        area="pairs",
        url=vllm(54272, "pull"),
        connector="MooncakeConnector",
        block=768,
        cache_identity="one model",
        text="""
            # each piece of 64 tokens is written with the length of 768, into the block of another request
            start 1600
            L 1600 c0 -> 0
            A 0
            S 0+1600
            check computed 2 tells ca:1@0 cb:2@768 as plain
            gives h1 1600/1600 of a
            end delayed length_capped handoff computed 1600 lease 480
            <d> start 1600
            <d> takes h1 1600/1600 of a
            <d> L 1600 c0 -> 1599 async
            <d> A 1599 [5-7]
            <d> R
            <d> check loaded 2 unknown 2 tells ca:9@0 cb:2@768 as plain
            sent
        """,
        uncovered="One wrong block between right ones that were read from another engine, and whose content nobody computed.",
    ),
    Holdout(
        id="vllm-ascend-17044",
        of="C8",
        area="pairs",
        url=_ascend(17044),
        connector="MooncakeHybridConnector",
        text=f"""
            {_prefill("h1", 480)}
            <d> start 600
            <d> takes h1 600/600 of a
            <d> L 600 c0 -> 599 async
            <d> A 599
            <d> xfer read posted 19 peer engine
            <d> xfer read failed peer engine !ret: -1
            <d> R
            <d> A 0
            <d> S 599+1
        """,
        rule="incomplete-load",
        shown=False,
    ),
    Holdout(
        id="vllm-ascend-13934",
        of="C5",
        area="pairs",
        url=_ascend(13934),
        connector="MooncakeConnectorV1",
        text="""
            L 20000 c0 -> 19999 async  # prompts of 20,000 to 40,000 tokens
            A 19999
            failure start_load_kv rank 0 !IndexError: list index out of range
        """,
        rule="failed-call",
    ),
    Holdout(
        id="vllm-19338",
        of="C5",
        area="pairs",
        url=vllm(19338),
        connector="NixlConnector",
        text="""
            L 600 c0 -> 599 async  # one rank has 111,680 blocks and the others 111,488
            A 599
            failure start_load_kv rank 3 !AssertionError
        """,
        rule="failed-call",
    ),
    Holdout(
        id="vllm-58222",
        of="C13",
        area="pairs",
        url=vllm(58222),
        connector="NixlConnector",
        text=f"""
            {_prefill("h1", 30, "a: ")}
            {_prefill("h2", 30, "b: ")}
            # the reader of a lives, so that nobody looks at b, which stands behind it
            {_RENEWED}
            wait 20 busy
        """,
        capabilities=declaration({"NixlConnector": NIXL.capabilities}),
        rule="late-free",
    ),
    Holdout(
        id="vllm-47021",
        of="C16",
        area="pairs",
        url=vllm(47021, "pull"),
        connector="NixlConnector",
        text="""
            # the engine that decodes gives to the one that prefills, which reads for the next turn when the time is over
            start 600
            L 600 c0 -> 0
            A 0
            S 0+600
            gives h1 600/600 of a
            end delayed length_capped computed 600 lease 480
            wait 480
            freed expired
            sent
            <p> start 700
            <p> takes h1 600/700 of a
            <p> L 700 c0 -> 600 async
            <p> A 600
            <p> R
            read
        """,
        rule="stale-handoff",
        also=("stale-handoff",),
    ),
    Holdout(
        id="LMCache-1350",
        of="C7",
        area="pairs",
        url=lmcache(1350),
        connector="LMCacheConnectorV1",
        text="""
            L 600 c0 h512 -> 512  # the other engine has not put it there yet
            A 512
            S 512+88
            load 0/512
            S 600+1
        """,
        rule="incomplete-load",
    ),
]

GROUPS = [
    Holdout(
        id="vllm-43884",
        of="C4",
        area="groups",
        url=vllm(43884),
        connector="OffloadingConnector",
        block=16,
        groups="full 16, window 16 1024",
        text="""
            L 4096 c2048 -> 1024 async
            A 1024 !AssertionError
        """,
        rule="failed-call",
    ),
    Holdout(
        id="vllm-52735",
        of="C1",
        area="groups",
        url=vllm(52735),
        connector="OffloadingConnector",
        groups="full 32, state 32 align",
        text="""
            # a prompt of about 30,000 tokens is stored, and none of it is ever found again
            start 100 of a b c
            L 100 c0 -> 0
            A 0 [1-4 | 0 0 23 24]
            S 0+96 [1-4 | 0 0 23 24]
            cache of cpu + a b c
            S 96+4
            end
            b: start 100 of a b c
            b: L 100 c0 -> 0
            b: A 0 [5-8 | 0 0 33 34]
            b: S 0+96 [5-8 | 0 0 33 34]
        """,
        uncovered="A lookup that offers less than its store holds: only the cause of the miss says so.",
    ),
    Holdout(
        id="vllm-52807",
        of="C4",
        area="groups",
        url=vllm(52807, "pull"),
        connector="OffloadingConnector",
        groups="full 32, state 32 align",
        text="""
            L 600 c64 -> 480 async  # a prefix of 17 chunks
            A 480 [1-17 | 0 20] !AssertionError
        """,
        rule="failed-call",
    ),
    Holdout(
        id="local-inference-vllm-402",
        of="N2",
        area="groups",
        url="https://github.com/local-inference-lab/vllm/issues/402",
        connector="LMCacheMPConnector",
        block=1600,
        groups="full 1600, state 1600 align",
        text="""
            L 4000 c3200 h3200 -> 0  # full attention has two blocks, and no state is held at their end
            A 0 [1-3 | 0 0 20]
            S 3200+800 [1-3 | 0 0 20]
        """,
        rule="null-block",
    ),
    Holdout(
        id="vllm-51468",
        of="C4",
        area="groups",
        url=vllm(51468, "pull"),
        connector="NixlConnector",
        groups="full 32, state 32 align",
        text="""
            L 600 c64 -> 512 async
        """,
        why="The scheduler itself dies, between the lookup and the allocation; no call of the connector raises.",
    ),
    Holdout(
        id="1cat-vllm-249",
        of="C22",
        area="groups",
        url="https://github.com/1CatAI/1Cat-vLLM/pull/249",
        connector="OffloadingConnector",
        groups="full 32, state 32 align",
        text="""
            # four drafts a step; 24 is a block for drafts, and the state of 96 tokens is in 23
            L 100 c0 -> 0
            A 0 [1-4 | 0 0 23 24]
            S 0+96 [1-4 | 0 0 23 24]
            S 96+4
            S 100+5 drafts 4
            plan store 64+32 [3 | 24] at 64,64
        """,
        uncovered="A state that is stored from another block than its own: vLLM may hand over a copy in any block.",
    ),
    Holdout(
        id="vllm-41712",
        of="N2",
        area="groups",
        url=vllm(41712, "pull"),
        connector="OffloadingConnector",
        groups="full 32, state 32 align",
        text="""
            L 600 c0 -> 512 async  # no state is stored, and the load is never begun
            A 512
        """,
        later_s=300,
        rule="stuck-load",
    ),
    Holdout(
        id="vllm-51362",
        of="C22",
        area="groups",
        url=vllm(51362, "pull"),
        connector="MooncakeStoreConnector",
        groups="full 32, state 32 align",
        text="""
            L 120 c0 -> 0
            A 0 [1-4 | 0 0 23 24]
            S 0+96 [1-4 | 0 0 23 24]
            S 96+24
            plan store 0+96 [1-3 | 0 0 23] at 0,0
        """,
        rule="state-boundary",
        shown=False,
    ),
    Holdout(
        id="1cat-vllm-598",
        of="N3",
        area="groups",
        url="https://github.com/1CatAI/1Cat-vLLM/pull/598",
        connector="OffloadingConnector",
        groups="full 32, state 32 align",
        text="""
            L 600 c0 -> 512 async  # new blocks are still being zeroed when they are loaded
            A 512
            R
            A 0
            S 512+88
            check loaded 16 wrong drift 3@64 holds zeros
        """,
        rule="byte-drift",
    ),
    Holdout(
        id="vllm-42554",
        of="C5",
        area="groups",
        url=vllm(42554, "pull"),
        connector="NixlConnector",
        groups="full 32, state 32 align",
        text="""
            L 96 c0 -> 95 async
            A 95 [1-3 | 0 0 14]
            failure start_load_kv rank 0 !AssertionError
        """,
        rule="failed-call",
    ),
    Holdout(
        id="sglang-36926",
        of="C13",
        area="groups",
        url=sglang(36926, "pull"),
        text="""
            L 40000 c0 -> 0  # 16,384 tokens of full attention and three states are missing afterwards
            A 0
            S 0+16384
            end aborted
        """,
        gap="How many blocks of the pool are held, beside those that requests hold.",
    ),
]

OTHERS = [
    Holdout(
        id="vllm-ascend-16662",
        of="C13",
        area="others",
        url=_ascend(16662),
        connector="AscendStoreConnector",
        text="""
            L 600 c0 -> 512 async
            A 512
            end aborted
        """,
        later_s=900,
        rule="late-free",
    ),
    Holdout(
        id="vllm-ascend-10098",
        of="C13",
        area="others",
        url=_ascend(10098),
        connector="AscendStoreConnector",
        text="""
            L 600 c0 -> 512  # all of it is in the pool, so nothing is put there, and no end is reported
            A 512
            S 512+88
            end delayed
        """,
        later_s=900,
        rule="late-free",
    ),
    Holdout(
        id="vllm-39732",
        of="C8",
        area="others",
        url=vllm(39732),
        connector="OffloadingConnector",
        text="""
            L 600 c0 -> 512 async
            A 512
            failure get_finished rank 0 !AssertionError
        """,
        rule="failed-call",
    ),
    Holdout(
        id="dingocache-76",
        of="C16",
        area="others",
        url="https://github.com/dingodb/DingoCache/pull/76",
        text="""
            L 300 c0 -> 0
            A 0 [1-10]
            S 0+300 [1-10]
            P  # while its blocks are read, which another request gets in the same step
            b: L 128 c0 -> 0
            b: A 0 [5-8]
            b: S 0+128 [5-8]
            b: end
            c: L 300 c0 -> 256
            c: A 256 [11-20]
            c: S 256+44 [11-20]
            c: check loaded 8 wrong drift 15@128 wrong drift 16@160
        """,
        rule="byte-drift",
    ),
    Holdout(
        id="mooncake-4153",
        of="N4",
        area="others",
        url="https://github.com/kvcache-ai/Mooncake/issues/4153",
        connector="MooncakeStoreConnector",
        block=1152,
        text="""
            L 1200 c0 -> 64  # of a block of 1152 tokens, 64 are shared, and the answer is about something else
            A 64
            S 64+1136
        """,
        gap="Fingerprints of blocks that are not full.",
    ),
    Holdout(
        id="vllm-55297",
        of="C8",
        area="others",
        url=vllm(55297, "pull"),
        connector="MooncakeStoreConnector",
        text=11 * "L 600 c0 -> 512 async\nA 512 [1-16]\nerror [1-16]\nR failed\n",
        uncovered="One request's load fails and is tried again without an end.",
    ),
    Holdout(
        id="vllm-49328",
        of="N6",
        area="others",
        url=vllm(49328, "pull"),
        connector="OffloadingConnector",
        text=f"""
            # the file cannot be read, and its promotion is begun again in every step
            {_AGAIN}
        """,
        rule="endless-deferral",
    ),
    Holdout(
        id="vllm-46855",
        of="C11",
        area="others",
        url=vllm(46855, "pull"),
        connector="MooncakeStoreConnector",
        text="""
            L 600 c0 -> 256 async  # 1 of 710 keys is missing on rank 3, which was not asked
            A 256 [1-8]
            error [1-8]
            R failed
            end error
        """,
        gap="What each rank's store holds.",
    ),
    Holdout(
        id="vllm-ascend-15060",
        of="C7",
        area="others",
        url=_ascend(15060),
        connector="AscendStoreConnector",
        text="""
            L 600 c0 -> 512 async  # found, and evicted before it is loaded: -704
            A 512 [1-16]
            error [1-16]
            R failed
            end error
        """,
        gap="Evictions from a store that several engines write.",
    ),
    Holdout(
        id="LMCache-1514",
        of="C7",
        area="others",
        url=lmcache(1514),
        connector="LMCacheConnectorV1",
        block=16,
        text="""
            L 1519 c224 h239 -> 15  # 0 of 239 retrieved, 15 expected, of a total of 1519
            A 15
            S 239+1280
            load 0/15
            S 1519+1
        """,
        rule="incomplete-load",
    ),
    Holdout(
        id="vllm-56032",
        of="C12",
        area="others",
        url=vllm(56032, "pull"),
        connector="SimpleCPUOffloadConnector",
        text="""
            L 600 c0 -> 512 async  # the thread that reads from the disk has died
            A 512
        """,
        later_s=300,
        rule="stuck-load",
    ),
    Holdout(
        id="sglang-8901",
        of="N3",
        area="others",
        url=sglang(8901, "pull"),
        text="""
            L 600 c0 h512 -> 512  # a page counts as read before it is copied
            A 512
            S 512+88
            check loaded 16 wrong early 16@480
        """,
        rule="byte-drift",
    ),
    Holdout(
        id="vllm-46960",
        of="C16",
        area="others",
        url=vllm(46960, "pull"),
        connector="OffloadingConnector",
        text="""
            # the child that does not load is told of the blocks with 0 tokens, and forgets to wait for the older store
            @offloading L 300 c0 -> 0
            @nixl L 300 c0 -> 0
            @offloading A 0 [1-10]
            @nixl A 0 [1-10]
            @offloading S 0+300 [1-10]
            @offloading plan store 0+256 [1-8] #1
            @offloading P
            b: @nixl L 128 c0 -> 127 async
            b: @nixl A 127 [5-8]
            b: @offloading A 0 [5-8]
            @offloading done #1
        """,
        rule="block-reuse",
    ),
    Holdout(
        id="vllm-56772",
        of="C5",
        area="others",
        url=vllm(56772),
        connector="OffloadingConnector",
        text="""
            L 24147 c0 -> 24128 async  # stored by two ranks in rows of another size, and the answer is another one
            A 24128
            R
            A 0
            S 24128+19
        """,
        gap="Fingerprints that engines of different tensor-parallel sizes have in common.",
    ),
]

THIRD = [*PAIRS, *GROUPS, *OTHERS]

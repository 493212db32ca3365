"""N3, N4, N9 and N10: counts are right and bytes wrong."""

from typing import Any

from incidents.incident import Incident, LookAlike, lmcache, vllm


def _wrong(
    *,
    looked: int,
    blocks: list[int],
    tokens: list[int],
    look: str = "loaded",
    holds: list[str] | None = None,
    unlisted: int = 0,
    where: str = "differs",
) -> dict[str, Any]:
    """The numbers of a finding about these blocks, with no other request as their cause."""
    return {
        "where": where,
        "look": look,
        "looked": looked,
        "wrong": len(blocks),
        "unlisted": unlisted,
        "block_size": 16,
        "rank": 0,
        "blocks": blocks,
        "tokens": tokens,
        "holds": holds or ["unknown"] * len(blocks),
        "sources": [""] * len(blocks),
    }


INCIDENTS = [
    Incident(
        id="vllm-45704",
        of="N3",
        url=vllm(45704),
        connector="SimpleCPUOffloadConnector",
        block=16,
        text="""
            # 1024 wrong blocks in each of 150 rounds: the copy to the host began before they were computed
            L 16400 c0 h16384 -> 16384 async
            A 16384
            R
            S 16384+16
            check loaded 1024 wrong drift 1@0 wrong drift 2@16 more 1022
        """,
        rule="byte-drift",
        numbers=_wrong(looked=1024, blocks=[1, 2], tokens=[0, 16], unlisted=1022),
        says="Not named here: 1022 of the wrong blocks.",
    ),
    Incident(
        id="vllm-31210",
        of="N3",
        url=vllm(31210),
        connector="OffloadingConnector",
        block=16,
        text="""
            L 100 c0 h96 -> 96 async  # no numbers in the thread
            A 96
            R
            S 96+4
            check loaded 6 wrong drift 7@32 holds r-7@480
        """,
        rule="byte-drift",
        numbers=_wrong(looked=6, blocks=[7], tokens=[32], holds=["r-7@480"]),
        says="Block 7, this request's tokens 32 to 48, holds the KV of request r-7's tokens 480 to 496.",
    ),
    Incident(
        id="vllm-29608",
        of="N3",
        url=vllm(29608),
        block=16,
        text="""
            L 96 c0 h96 -> 95  # no numbers in the thread; the whole prompt is a hit, and one token is run
            A 95
            S 95+1
            check loaded 5 wrong early 5@64 holds zeros
        """,
        rule="byte-drift",
        numbers=_wrong(looked=5, blocks=[5], tokens=[64], holds=["zeros"], where="early"),
        says="Block 5, this request's tokens 64 to 80, held zeros.",
    ),
    Incident(
        id="vllm-56762",
        of="N3",
        url=vllm(56762, "pull"),
        block=16,
        text="""
            L 96 c0 h80 -> 80  # no numbers in the thread: the model never waits for a layer
            A 80
            S 80+16
            check loaded 5 wrong early 1@0
        """,
        rule="byte-drift",
        numbers=_wrong(looked=5, blocks=[1], tokens=[0], where="early"),
        says="at the next step they did. So their load went on after it counted as ended.",
    ),
    Incident(
        id="vllm-28677",
        of="N9",
        url=vllm(28677, "pull"),
        connector="NixlConnector",
        block=128,
        cache_identity="one model",
        text="""
            start 600  # blocks of 128 tokens, read as if they had those of the kernel; the length is ours
            L 600 c0 -> 0
            A 0
            S 0+600
            check computed 4 tells aa:1@0 ab:2@128 ac:3@256 ad:4@384 as plain
            gives h1 600/600 of a
            end delayed length_capped handoff computed 600 lease 30
            <d> start 600
            <d> takes h1 600/600 of a
            <d> L 600 c0 -> 599 async
            <d> A 599
            <d> R
            <d> check loaded 4 unknown 4 tells aa:5@0 ab:6@128 ac:7@256 ad:8@384 as plain
            read
            sent
        """,
        rule="byte-drift",
        numbers={
            "where": "differs",
            "look": "loaded",
            "looked": 4,
            "wrong": 4,
            "token": 0,
            "block_size": 128,
            "rank": 0,
            "given_by": "engine",
            "given": "cmpl-1-0-0123abcd",
        },
        says="All 4 that can be compared differ, the first of them this request's tokens 0 to 128.",
    ),
    Incident(
        id="vllm-55085",
        of="N4",
        url=vllm(55085, "pull"),
        connector="MooncakeStoreConnector",
        text="""
            L 130 c0 h120 -> 120 async  # no numbers in the thread: the load ends inside its last block
            A 120
            R
            S 120+10
            check loaded 3
        """,
        why="The rest of the last block keeps its former owner's bytes; a block that is not full has no hash.",
    ),
    Incident(
        id="LMCache-4463",
        of="N9",
        url=lmcache(4463),
        connector="LMCacheConnectorV1",
        block=16,
        text="""
            L 300 c0 h256 -> 256  # the model of the pull request has 36 layers
            A 256
            S 256+44
            check loaded 16 wrong drift 1@0 wrong drift 2@16 healed
        """,
        rule="byte-drift",
        numbers=_wrong(looked=16, blocks=[1, 2], tokens=[0, 16]),
        says="16 blocks were compared",
    ),
    Incident(
        id="vllm-52234",
        of="N9",
        url=vllm(52234),
        connector="NixlConnector",
        block=16,
        cache_identity="0123456789abcdef",
        text="""
            # the lengths are ours; the reference is stale: the producer has given the blocks to the next prompt
            <producer> old: L 64 c0 h0 -> 0
            <producer> old: A 0
            <producer> old: S 0+64
            <producer> old: check computed 2 tells aa:11@0 ab:12@16 as plain
            <producer> next: L 64 c0 h0 -> 0
            <producer> next: A 0
            <producer> next: S 0+64
            <producer> next: check computed 2 tells ba:21@0 bb:22@16 as plain
            L 40 c0 -> 32 async
            A 32
            R
            S 32+8
            check loaded 2 unknown 2 tells aa:21@0 ab:22@16 as plain
        """,
        rule="byte-drift",
        numbers={
            "where": "differs",
            "look": "loaded",
            "looked": 2,
            "wrong": 2,
            "token": 0,
            "block_size": 16,
            "rank": 0,
            "owner": "next-cmpl-1-0-0123abcd",
            "owner_engine": "producer",
            "owner_token": 0,
        },
        says="this request's tokens 0 to 16 hold what engine producer computed at",
    ),
    Incident(
        id="vllm-56104",
        of="N10",
        url=vllm(56104, "pull"),
        connector="NixlConnector",
        block=16,
        text="""
            gone: L 600 c0 -> 512 async  # no numbers in the thread: one of its transfers has failed, others still write
            gone: A 512
            gone: R failed
            gone: end error
            L 600 c0 -> 0
            A 0
            S 0+600
            check held 2 wrong rot 12@256 holds gone@256
        """,
        rule="byte-drift",
        numbers=_wrong(look="held", looked=2, blocks=[12], tokens=[256], holds=["gone@256"], where="changed"),
        says="Block 12, this request's tokens 256 to 272, holds the KV of request gone's tokens 256 to 272.",
    ),
]

_GIVEN = (
    "start 200\ncheck computed 4 tells aa:1@0 ab:2@32 ac:3@64 ad:4@96 as plain\n{more}gives h1 200/200 of a\n"
    "end delayed length_capped handoff computed 200 lease 30\n<d> start 200\n<d> takes h1 200/200 of a\n"
    "<d> L 200 c0 -> 199 async\n<d> A 199\n<d> R\n<d> check loaded 4 unknown 4 tells {took} as plain\nread\nsent"
)

LOOK_ALIKES = [
    LookAlike(of=of, rule=rule, what=what, text=text, cache_identity="0123456789abcdef")
    for of, rule, what, text in (
        (
            "N3",
            "byte-drift",
            "nothing was computed under these hashes here",
            "check loaded 4 unknown 4 tells aa:1@0 ab:2@32 as plain",
        ),
        (
            "N9",
            "byte-drift",
            "one block that was handed over is another version",
            _GIVEN.format(more="", took="aa:1@0 ab:2@32 ac:3@64 ad:9@96"),
        ),
        (
            "N9",
            "byte-drift",
            "a request that was preempted has handed over its second version",
            _GIVEN.format(more="P\n", took="aa:5@0 ab:6@32 ac:7@64 ad:8@96"),
        ),
        (
            "N3",
            "byte-drift",
            "after a reset all is unknown",
            "check computed 1 tells aa:1@0 as plain\nreset\nb: check loaded 1 unknown 1",
        ),
        (
            "N9",
            "byte-drift",
            "a shared store has another engine's version",
            "<other> check computed 2 tells aa:1@0 ab:2@32 as plain\n<other> b: check computed 1 tells aa:9@0 as plain\n"
            "check loaded 2 unknown 2 tells aa:9@0 ab:2@32 as plain",
        ),
        (
            "N9",
            "byte-drift",
            "an unreported version",
            "<other> check computed 1 tells aa:1@0 as plain\ncheck loaded 1 unknown 1 tells aa:7@0 as plain",
        ),
        (
            "N9",
            "byte-drift",
            "the same number of another rank, and what is right in its own group",
            "<other> check computed 1 tells ba:1@0 as plain rank 1\n<other> check computed 1 group 2 tells aa:1@0 as plain\n"
            "check loaded 1 unknown 1 group 2 tells aa:1@0 as plain",
        ),
        (
            "N9",
            "byte-drift",
            "the same content under two hashes, one of them its own",
            "<other> check computed 2 tells ba:1@0 aa:1@0 as plain\ncheck loaded 1 unknown 1 tells aa:1@0 as plain",
        ),
        (
            "N9",
            "byte-drift",
            "the same prompt under another salt, with an unreported computation",
            "<other> check computed 1 tells ba:1@0 as plain\ncheck loaded 1 unknown 1 tells aa:1@0 as salted",
        ),
        (
            "N9",
            "byte-drift",
            "taken over from vLLM's prefix cache, as another engine had computed it",
            "<other> check computed 2 tells aa:1@0 ab:2@32 as plain\ncheck loaded 2 unknown 2 tells aa:1@0 ab:2@32 as plain\n"
            "b: check admitted 2 unknown 2 tells aa:1@0 ab:2@32 as plain",
        ),
        (
            "N9",
            "byte-drift",
            "taken over, and another version than others are known to have computed",
            "<other> check computed 2 tells aa:1@0 ab:2@32 as plain\nb: check admitted 1 unknown 1 tells aa:7@0 as plain",
        ),
        ("N10", "byte-drift", "held and as it was", "check held 4711"),
        ("N10", "byte-drift", "taken over, and unknown", "b: check loaded 3 unknown 3\ncheck admitted 3 unknown 3"),
        ("N3", "byte-drift", "right when it was read", "L 749 c0 h256 -> 256\nA 256\nS 256+80\ncheck loaded 8"),
        (
            "N3",
            "byte-drift",
            "a load that failed and was reported",
            "L 300 c0 h256 -> 256\nA 256 [1-10]\nS 256+44 [1-10]\nerror [1-8]\ncheck loaded 8 unknown 8",
        ),
    )
]

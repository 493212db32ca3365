"""C7 and C8: what was found is gone when it is loaded, and what happens after a load has failed."""

from incidents.incident import Incident, lmcache, vllm

INCIDENTS = [
    Incident(
        id="LMCache-1094",
        of="C7",
        url=lmcache(1094),
        text="""
            L 200 c0 h130 -> 130  # the request's length is ours
            A 130
            S 130+70
            load 0/130  # the tokens came, the count is wrong: either way the account is
            end
        """,
        rule="incomplete-load",
        numbers={"where": "short", "expected": 130, "loaded": 0, "rank": 0},
        says="meant to bring 130 tokens and brought 0",
    ),
    Incident(
        id="LMCache-889",
        of="C7",
        url=lmcache(889),
        text="""
            L 263 c0 h256 -> 256
            A 256
            S 256+7
            load 0/253 rank 7
            S 263+1
        """,
        rule="incomplete-load",
        numbers={"where": "short", "expected": 253, "loaded": 0, "rank": 7},
        says="meant to bring 253 tokens and brought 0",
    ),
    Incident(
        id="LMCache-1101",
        of="C7",
        url=lmcache(1101, "pull"),
        text="""
            L 600 c0 h512 -> 512  # no numbers in the thread: rank 0 has pinned, rank 1 has not
            A 512
            S 512+88
            load 512/512 rank 0
            load 256/512 rank 1
            S 600+1
        """,
        rule="incomplete-load",
        numbers={"where": "short", "expected": 512, "loaded": 256, "rank": 1},
        says="no load error had been reported",
    ),
    Incident(
        id="LMCache-2106",
        of="C7",
        url=lmcache(2106),
        text="""
            L 6000 c5872 h5888 -> 16  # the request's length is ours
            A 16
            S 5888+112
            load 0/16
            S 6000+1
        """,
        rule="incomplete-load",
        numbers={"where": "short", "expected": 16, "loaded": 0, "rank": 0},
        says="meant to bring 16 tokens and brought 0",
    ),
    Incident(
        id="LMCache-953",
        of="C7",
        url=lmcache(953),
        text="""
            L 600 c256 h512 -> 256  # no numbers in the thread
            A 256
            S 512+88
            load 128/256
            S 600+1
        """,
        rule="incomplete-load",
        numbers={"where": "short", "expected": 256, "loaded": 128, "rank": 0},
        says="meant to bring 256 tokens and brought 128",
    ),
    Incident(
        id="LMCache-1770",
        of="C7",
        url=lmcache(1770),
        text="""
            L 300 c247 h256 -> 9  # only the 9 is in the thread
            A 9
            S 256+44
            load 0/9 rank 3
            end
        """,
        rule="incomplete-load",
        numbers={"where": "short", "expected": 9, "loaded": 0, "rank": 3},
        says="meant to bring 9 tokens and brought 0",
    ),
    Incident(
        id="vllm-42289",
        of="C7",
        url=vllm(42289, "pull"),
        chunk=256,
        text="""
            # one key stands for the 252416 tokens that stayed, one for the 18 blocks of 256 that went
            L 260000 c0 h0 -> 0
            plan store 0+252416 keys stayed
            plan store 252416+4608 keys went
            b: L 260000 c0 h257024 -> 257024 keys stayed,went
            evict went
            b: A 257024 !AssertionError: Expected 257024 hit tokens, got 252416
        """,
        rule="evicted-in-use",
        numbers={"where": "found", "key": "went", "missing": 1, "count": 257024},
        says="blocks were allocated to load 257024 tokens of them, and the store does not hold 1 of the chunks any more",
    ),
    Incident(
        id="UCM-1007",
        of="C8",
        url="https://github.com/ModelEngine-Group/unified-cache-management/pull/1007",
        text="""
            L 224 c0 h96 -> 96  # 3 blocks stored, 3 + 4 asked
            A 96 [1-7]
            S 96+128 [1-7]
            error [1-3]
            S 0+224 []
            plan store 96+224
        """,
        rule="store-uncomputed",
        numbers={"end": 320, "computed": 0, "scheduled": 224, "drafted": 0, "at_most": 224},
        says="the connector stores up to 320",
    ),
    Incident(
        id="vllm-ascend-10561",
        of="C8",
        url="https://github.com/vllm-project/vllm-ascend/issues/10561",
        text="""
            L 300 c0 h256 -> 256  # no numbers in the thread
            A 256
            S 256+44
            load 0/256
            S 300+1
        """,
        rule="incomplete-load",
        numbers={"where": "short", "expected": 256, "loaded": 0, "rank": 0},
        says="the request went on, and no load error had been reported",
    ),
    Incident(
        id="LMCache-3207",
        of="C8",
        url=lmcache(3207),
        text="""
            L 1024 c0 h512 -> 512  # no numbers in the thread
            A 512 [1-32]
            S 512+512 [1-32]
            load 256/512
            error [9-16]
            S 512+512 []
        """,
        rule="failed-load-used",
        numbers={"where": "run on", "block": 9, "first_invalid": 256, "begins": 512},
        says="the request runs from token 512, and no step has computed the block since",
    ),
    Incident(
        id="vllm-49250",
        of="C8",
        url=vllm(49250),
        text="""
            L 300 c0 h256 -> 256  # blocks and lengths are ours; block 1 is shared first
            A 256 [1-10]
            b: L 300 c0 h256 -> 256
            b: A 256 [1-8 11 12]
            S 256+44 [1-10]
            b: S 256+44 [1-8 11 12]
            error [1-8]
            S 0+32 []
            b: S 300+1 []
        """,
        rule="failed-load-used",
        numbers={"where": "run on", "block": 2, "first_invalid": 32, "begins": 300},
        says="the load of block 2 was reported as failed",
    ),
]

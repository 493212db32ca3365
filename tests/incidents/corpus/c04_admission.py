"""C4 to C6: where a request resumes and in which blocks, chunks against blocks, and lookups that are asked again."""

from incidents.incident import Incident, lmcache, vllm

INCIDENTS = [
    Incident(
        id="RBLN-1009",
        of="C4",
        url="https://github.com/RBLN-SW/vllm-rbln/pull/1009",
        text="""
            L 50000 c0 h0 -> 0  # the request's length is ours
            A 0
            S 0+49000
            P
            L 50000 c48128 h48128 -> 0
            A 0
            S 48640+512
        """,
        rule="wrong-resume-offset",
        numbers={"computed": 48128, "allocated": 0, "expected": 48128, "begins": 48640},
        says="the first step must begin at 48128",
    ),
    Incident(
        id="UCM-927",
        of="C4",
        url="https://github.com/ModelEngine-Group/unified-cache-management/pull/927",
        text="""
            L 256 c0 h128 -> 128  # no numbers in the thread; the hit counts twice
            A 128 [1-8]
            S 128+128 [1-8]
            plan store 128+256 [5-8]
        """,
        rule="store-uncomputed",
        numbers={"end": 384, "computed": 128, "scheduled": 128, "drafted": 0, "at_most": 256},
        says="256 are sure. At S2 the connector stores up to 384",
    ),
    Incident(
        id="vllm-52170",
        of="C4",
        url=vllm(52170),
        connector="OffloadingConnector",
        text="""
            L 1024 c0 -> 0  # no numbers in the thread; the list of blocks lost four at the resumption
            A 0 [1-16]
            S 0+512 [1-16]
            plan store 0+512 [1-16] #1
            done #1
            P
            L 1024 c0 -> 0
            A 0 [20-43]
            S 0+768 [20-43]
            plan store 512+256 [36-39] #2
        """,
        rule="plan-blocks",
        numbers={
            "where": "table",
            "start": 512,
            "count": 256,
            "planned": [36, 37, 38, 39],
            "expected": [36, 37, 38, 39, 40, 41, 42, 43],
            "foreign": [],
            "table_length": 24,
        },
        says="these tokens lie in blocks 36, 37, 38, 39, 40, 41, ... (8 in all)",
    ),
    Incident(
        id="dynamo-8490",
        of="C4",
        url="https://github.com/ai-dynamo/dynamo/pull/8490",
        text="""
            L 14 c0 h0 -> 0
            A 0 [2117]
            S 0+14 [2117]
            S 31+1 []
            S 32+1 []
        """,
        rule="unreported-blocks",
        numbers={"computed": 32, "scheduled": 1, "end": 33, "table_length": 1, "room": 32},
        says="were announced to the connector, 1 in all, hold 32",
    ),
    Incident(
        id="vllm-30358",
        of="C4",
        url=vllm(30358),
        text="""
            L 100 c0 h0 -> 0  # 235 of 1320 requests did so; blocks and lengths are ours
            A 0 [1 2]
            S 0+64 [1 2]
            S 64+36 [3 4]
            S 100+29 [5]
            end [1-5]
        """,
        why="A table grows after the allocation; that it is longer at the end is legal as long as the steps reported it.",
    ),
    Incident(
        id="vllm-18631",
        of="C4",
        url=vllm(18631, "pull"),
        text="""
            L 512 c0 -> 512 async  # no numbers in the thread
            A 512
            R
            A 0
            S 0+512
        """,
        rule="wrong-resume-offset",
        numbers={"computed": 0, "allocated": 512, "expected": 511, "begins": 0},
        says="the first step must begin at 511",
    ),
    Incident(
        id="vllm-48959",
        of="C5",
        url=vllm(48959),
        text="""
            L 98100 c0 h98012 -> 98012
            A 98012
            S 98012+88
            plan load 93917+4095
        """,
        why="Nothing drifted: the engine's own bound of 128 blocks was wrong; 129 are legal where a window is not aligned.",
    ),
    Incident(
        id="vllm-ascend-8908",
        of="C5",
        url="https://github.com/vllm-project/vllm-ascend/pull/8908",
        text="""
            L 128 c0 -> 128 async  # a multiple of the block size; the length is ours
            A 128 [1-4]
            plan load 0+160 [1-4]  # five remote blocks, with that for the drafts
        """,
        rule="load-range",
        numbers={"where": "beyond the allocation", "computed": 0, "allocated": 128, "end": 160, "at_most": 128},
        says="plans to load up to token 160",
    ),
    Incident(
        id="LMCache-1732",
        of="C5",
        url=lmcache(1732),
        text="""
            L 128 c0 h0 -> 0  # no numbers in the thread; two ranks share the context, the connector computes as with one
            A 0 [1 2]
            S 0+128 [1 2]
        """,
        rule="unreported-blocks",
        numbers={"computed": 0, "scheduled": 128, "end": 128, "table_length": 2, "room": 64},
        says="up to 128. The blocks that were announced to the connector, 2 in all, hold 64",
    ),
    Incident(
        id="LMCache-1732 (the copy)",
        of="C5",
        url=lmcache(1732),
        text="""
            L 128 c0 h0 -> 0  # the same, where only the worker's copy is reported
            A 0
            S 0+128
            store 0+128 in 2
        """,
        rule="block-shortage",
        numbers={"start": 0, "count": 128, "blocks_count": 2, "block_size": 32, "need_blocks": 4},
        says="which fill 4 blocks of 32. It named 2 different blocks",
    ),
    Incident(
        id="vllm-56701",
        of="C5",
        url=vllm(56701),
        text="""
            plan store 0+256 keys a  # of the request before; no numbers in the thread
            plan store 256+256 keys b
            plan store 512+256 keys c
            plan store 768+256 keys d
            b: L 1100 c0 h1024 -> 1024 keys c,d  # a window of two chunks
            b: A 1024
            b: plan load 256+768 keys b,c,d  # and what the drafts might need before it
        """,
        rule="load-range",
        numbers={
            "where": "beyond the allocation",
            "computed": 0,
            "allocated": 1024,
            "end": 1024,
            "at_most": 1024,
            "unclaimed": ["b"],
        },
        says="plans to load the chunk with key b. It was not among those that the lookup",
    ),
    Incident(
        id="vllm-28585",
        of="C6",
        url=vllm(28585, "pull"),
        text="""
            L 1000 c0 h1000 -> 1000 async  # a hit rate of 100% fell to 50%; the length is ours
            A 1000
            stats 1000 queried 1000
            R
            A 0
            stats 1000 queried 1000
            S 999+1
        """,
        rule="stats-mismatch",
        numbers={
            "total": 1000,
            "queried": 1000,
            "broken": "the 1000 tokens asked for had been counted before in the same admission",
        },
        says="counted before in the same admission",
    ),
    Incident(
        id="LMCache-1075",
        of="C6",
        url=lmcache(1075, "pull"),
        text="""
            L 600 c0 h512 -> 512  # one pin a lookup; two chunks are ours
            # which are locked
            L 600 c0 h512 -> 512
            # and locked again
            A 512
            S 512+88
            # unlocked once
            end
        """,
        gap="Locks of chunks, by request.",
    ),
    Incident(
        id="LMCache-4508",
        of="C6",
        url=lmcache(4508),
        connector="LMCacheMPConnector",
        text="""
            L 2048 c0 h512 -> 512  # the length is ours
            L 2048 c0 h512 -> 512 cached
            A 512
            S 512+1024
            store 1024+512
        """,
        rule="retried-lookup",
        numbers={"asked": 2, "matched": 512, "begins": 1024, "held": 512},
        says="the store begins at 1024, though only 512 tokens are held",
    ),
]

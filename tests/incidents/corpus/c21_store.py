"""C21 to C25: holes in what is stored, tokens that were not computed, keys, resets and indexes."""

from incidents.incident import Incident, lmcache, vllm

INCIDENTS = [
    Incident(
        id="LMCache-3012",
        of="C21",
        url=lmcache(3012, "pull"),
        connector="LMCacheMPConnector",
        block=64,
        text="""
            # Of the 4096 tokens with a hit of 3840, nothing is stored; a request that asks not to be saved looks the same.
            # The same calculation with 8192: 68 blocks of this run less the 60 that were hit.
            L 8192 c0 h3840 -> 3840
            A 3840
            S 3840+4352
            store 3840+512
            S 8192+1
            end
        """,
        rule="store-gap",
        numbers={"where": "at the end", "prompt": 8192, "computed": 8192, "held": 4352, "wanted": 8192},
        says="8192 could be stored. When the request ended at R1, 4352 were",
    ),
    Incident(
        id="vllm-47235",
        of="C21",
        url=vllm(47235, "pull"),
        connector="OffloadConnector",
        text="""
            L 1024 c0 h0 -> 0  # no numbers in the thread; reported as by a connector that reports everything it stores
            A 0
            S 0+512
            plan store 0+256
            S 512+512
            plan store 512+256
        """,
        rule="store-gap",
        numbers={"where": "between stores", "hole_from": 256, "hole_to": 512, "matched": 0},
        says="tokens 256 to 512 are missing",
    ),
    Incident(
        id="LMCache-3238",
        of="C21",
        url=lmcache(3238),
        connector="LMCacheConnectorV1",
        text="""
            L 2600 c0 h0 -> 0
            A 0
            S 0+2600
            store 0+2560
            b: L 2700 c0 h256 -> 256
            b: A 256
        """,
        why="No drift: a lookup finds prefixes, and the rest of the document is none.",
    ),
    Incident(
        id="vllm-53498",
        of="C21",
        url=vllm(53498),
        connector="OffloadConnector",
        chunk=853,
        text="""
            # 112 of 217 blocks; a prompt of 185101 tokens makes them 853 each. As by a connector that reports everything.
            L 185101 c0 h0 -> 0
            A 0
            S 0+4096
            plan store 0+95536
            S 185101+1
            end
        """,
        rule="store-gap",
        numbers={"where": "at the end", "prompt": 185101, "computed": 185101, "held": 95536, "wanted": 185101},
        says="95536 were",
    ),
    Incident(
        id="LMCache-886",
        of="C22",
        url=lmcache(886),
        text="""
            L 300 c0 h0 -> 0  # no numbers in the thread
            A 0 [1-10]
            S 0+300 [1-10]
            S 300+4 [] drafts 3
            plan store 256+48
        """,
        rule="store-uncomputed",
        numbers={"end": 304, "computed": 300, "scheduled": 4, "drafted": 3, "at_most": 301},
        says="3 of them speculative: 301 are sure",
    ),
    Incident(
        id="vllm-53505",
        of="C22",
        url=vllm(53505),
        chunk=1600,
        text="""
            L 1700 c0 h0 -> 0
            A 0
            S 0+1700
            store 0+1600
            b: L 1700 c0 h1600 -> 1600
            b: A 1600
            b: S 1600+100
            b: load 1600/1600
            b: S 1700+1
        """,
        why="All counts are right, 1600 stored and 1600 loaded; the bytes are a Mamba state, and its blocks are not judged.",
    ),
    Incident(
        id="LMCache-2979",
        of="C23",
        url=lmcache(2979),
        text="""
            <rank0> key 6d0f of tokens  # the keys are ours
            <rank1> key 9a31 of tokens
        """,
        rule="key-mismatch",
        numbers={"key": "9a31", "other": "6d0f", "parent": None},
        says="the first chunk of a prompt got the key 6d0f",
    ),
    Incident(
        id="LMCache-2511",
        of="C23",
        url=lmcache(2511),
        text="""
            <prefill> key -1983622685967036160 after -5282990986457227702 of tokens
            <decode> key -3755946580118951140 after -5282990986457227702 of tokens
        """,
        rule="key-mismatch",
        numbers={
            "key": "-3755946580118951140",
            "other": "-1983622685967036160",
            "parent": "-5282990986457227702",
        },
        says="the same tokens after the same chunk got -3755946580118951140",
    ),
    Incident(
        id="pegaflow-396",
        of="C21",
        url="https://github.com/novitalabs/pegaflow/issues/396",
        text="""
            L 1100 c0 h0 -> 0  # the blocks a to d of the thread; their size, and that there is room for three, are ours
            A 0 [1-35]
            S 0+512 [1-35]
            plan store 0+512 keys a,b
            S 512+588
            evict a by cmpl-1-0-0123abcd
            plan store 512+512 keys c,d
        """,
        rule="self-eviction",
        numbers={"key": "a", "position": 0, "start": 512},
        says="the request's chunk at token 512 is stored behind the hole",
    ),
    Incident(
        id="vllm-57727",
        of="C24",
        url=vllm(57727),
        text="""
            L 1025 c0 h0 -> 0
            A 0
            S 0+1025
            plan store 0+1024 keys a
            end
            reset
            b: L 1025 c0 h1024 -> 1024
        """,
        rule="reset-hit",
        numbers={"matched": 1024, "returned": 1024, "answered": True},
        says="it matched 1024 tokens",
    ),
    Incident(
        id="vllm-41956",
        of="C24",
        url=vllm(41956, "pull"),
        connector="OffloadingConnector",
        text="""
            L 600 c0 -> 0  # no numbers in the thread: it had no reset, and does not show what it matches
            A 0 [1-19]
            S 0+600 [1-19]
            plan store 0+512 [1-16] #1
            done #1
            end
            reset silent
            b: L 600 c0 -> 512 async
        """,
        rule="reset-hit",
        numbers={"matched": None, "returned": 512, "answered": None},
        says="it offered 512 tokens",
    ),
    Incident(
        id="llmd-663",
        of="C25",
        url="https://github.com/llm-d/llm-d-kv-cache/pull/663",
        text="start 600  # 3 applied, 0 declined, of 8 published; no numbers in the thread",
        gap="The counts of an index that follows KV events.",
    ),
]

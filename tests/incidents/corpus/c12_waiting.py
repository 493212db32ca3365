"""C12 to C15: what never comes, what is never given back or twice, and preemptions in vain."""

from incidents.incident import Incident, lmcache, sglang, vllm

INCIDENTS = [
    Incident(
        id="vllm-27074",
        of="C12",
        url=vllm(27074),
        text="""
            L 4096 c0 h2048 -> 2048 async
            A 2048
            R
        """,
        later_s=130,
        rule="never-scheduled",
        numbers={"where": "after its load", "waited_s": 130.0, "counted_s": 130.0},
        says="130.0 seconds later it has not run a step, and holds its blocks",
    ),
    Incident(
        id="dynamo-5012",
        of="C12",
        url="https://github.com/ai-dynamo/dynamo/issues/5012",
        text="""
            L 600 c0 h512 -> 512 async  # no numbers in the thread
            A 512
        """,
        later_s=600,
        rule="stuck-load",
        numbers={"allocated": 512, "waited_s": 600.0, "counted_s": 600.0},
        says="512 tokens began to load asynchronously. 600.0 seconds later",
    ),
    Incident(
        id="vllm-50754",
        of="C12",
        url=vllm(50754, "pull"),
        text="""
            L 600 c0 -> 599 async  # no numbers in the thread; one of the notifications never comes
            A 599
        """,
        later_s=125,
        rule="stuck-load",
        numbers={"allocated": 599, "waited_s": 125.0, "counted_s": 125.0},
        says="the load is neither finished nor failed",
    ),
    Incident(
        id="vllm-57841",
        of="C12",
        url=vllm(57841, "pull"),
        text="""
            L 1000 c0 -> later  # no numbers in the thread
            b: L 600 c0 h512 -> 512 async
            b: A 512
            b: R
            L 1000 c0 -> later
        """,
        later_s=130,
        rule="never-scheduled",
        numbers={"where": "after its load", "waited_s": 130.0, "counted_s": 130.0},
        also=("endless-deferral",),
        says="it has not run a step",
    ),
    Incident(
        id="vllm-53095",
        of="C12",
        url=vllm(53095),
        text="""
            L 600 c0 -> 599 async  # a lease of 30 s; the lengths are ours
            A 599
        """,
        later_s=150,
        rule="stuck-load",
        numbers={"allocated": 599, "waited_s": 150.0, "counted_s": 150.0},
        says="599 tokens began to load asynchronously",
    ),
    Incident(
        id="vllm-45388",
        of="C12",
        url=vllm(45388),
        block=16,
        text="""
            b: L 20000 c0 h19984 -> 19984 async  # 1249 blocks, of 16 tokens
            b: A 19984
            L 25600 c0 h19984 -> 19984 async  # 1600 blocks, which do not fit into 2048 - 1249
            b: R
        """,
        later_s=300,
        rule="never-scheduled",
        numbers={"where": "after its load", "waited_s": 300.0, "counted_s": 300.0},
        says="300.0 seconds later it has not run a step",
    ),
    Incident(
        id="sglang-28651",
        of="C12",
        url=sglang(28651, "pull"),
        text="""
            a: L 600 c0 -> 599 async  # the prefills have gone; the lengths and the callers' 45 s are ours
            a: A 599
            wait 45
            a: end aborted
            b: L 600 c0 -> 599 async
            b: A 599
            wait 45
            b: end aborted
            c: L 600 c0 -> 599 async
            c: A 599
            wait 45
            c: end aborted
        """,
        rule="stalled-connector",
        numbers={"where": "aborted requests", "waited_s": 135.0, "counted_s": 130.0, "requests": 3},
        says="and so did those of the following ones",
    ),
    Incident(
        id="LMCache-4759",
        of="C12",
        url=lmcache(4759),
        connector="LMCacheMPConnector",
        block=256,
        text="""
            b: L 600 c0 -> 0  # no numbers in the thread but the size of a block; the lengths are ours
            b: A 0
            b: S 0+600
            wait 10 full
            L 40000 c0 h39936 -> 39936 async  # a large load from the server
            A 39936
            wait 300 stuck  # no step ends, until vLLM itself ends the engine
        """,
        rule="stuck-step",
        numbers={"stuck_s": 240.0, "steps": 1000, "running": 1, "loads": 1, "stores": 0, "kept": 0},
        says="for 240.0 seconds, the scheduler was in its step 1000 and began no other, while it ran 1 request",
    ),
    Incident(
        id="LMCache-3770",
        of="C13",
        url=lmcache(3770),
        text="""
            L 1100 c0 h1024 -> 1024  # no numbers in the thread; the release found none of its keys
            # 4 chunks are locked
            A 1024
            S 1024+76
            # and none is unlocked
            end
        """,
        gap="Locks of chunks, by request.",
    ),
    Incident(
        id="vllm-41269",
        of="C13",
        url=vllm(41269, "pull"),
        text="""
            L 600 c0 h0 -> 0
            A 0
            S 0+600
            end delayed
            wait 480
            freed expired
        """,
        why="The lease gave the blocks back, as it may; no event here shows that the reader had refused the request.",
    ),
    Incident(
        id="vllm-46283",
        of="C13",
        url=vllm(46283),
        text="""
            L 600 c0 -> 599 async  # no numbers in the thread
            A 599
            end
        """,
        later_s=700,
        rule="late-free",
        numbers={"waited_s": 700.0, "counted_s": 700.0, "loading": 599},
        says="the request ended before they had come",
    ),
    Incident(
        id="sglang-37103",
        of="C13",
        url=sglang(37103, "pull"),
        text="""
            L 1100 c0 h512 -> 512  # no numbers in the thread; aborted before the prefetch was used
            # 2 chunks are locked
            prefetch 0+512
            end
        """,
        gap="Locks of chunks, by request.",
    ),
    Incident(
        id="sglang-37103 (re-match)",
        of="C13",
        url=sglang(37103, "pull"),
        text="""
            L 1100 c0 h512 -> 512  # its other half: a second match, longer than the planned one, is committed
            A 768
        """,
        rule="alloc-mismatch",
        numbers={"returned": 512, "allocated": 768},
        says="returned 512 tokens. At A1",
    ),
    Incident(
        id="LMCache-1130",
        of="C13",
        url=lmcache(1130),
        text="""
            L 300 c0 h256 -> 256
            refs 0
            pins 0
            end
        """,
        why="The counts are right; no event shows whether an object of count 0 was freed.",
    ),
    Incident(
        id="LMCache-987",
        of="C13",
        url=lmcache(987),
        text="""
            L 7283 c400 h0 -> 0
            A 0
            b: L 7325 c336 h0 -> 0
            b: A 0
        """,
        why="The printed -400 and -336 are legal; no count shows that the full pool holds what cannot be found.",
    ),
    Incident(
        id="LMCache-4852",
        of="C13",
        url=lmcache(4852, "pull"),
        text="""
            L 1100 c1024 h1024 -> 0  # four chunks are ours
            # which are locked
            A 0
            S 1024+76
            end
        """,
        gap="Locks of chunks, by request.",
    ),
    Incident(
        id="sglang-29701",
        of="C13",
        url=sglang(29701, "pull"),
        text="""
            L 600 c0 h0 -> 0  # no numbers in the thread; its end is never looked for
            A 0 [1-19]
            S 0+600 [1-19]
            plan store 0+512 [1-16] #1
            end delayed
        """,
        later_s=3600,
        rule="late-free",
        numbers={"waited_s": 3600.0, "counted_s": 3600.0},
        says="3600.0 seconds later they have not been given back",
    ),
    Incident(
        id="LMCache-4523",
        of="C14",
        url=lmcache(4523, "pull"),
        chunk=768,
        text="""
            # 167 chunks on 8 ranks are 1336 keys; 8 of them were locked: 1328 warnings
            L 128300 c0 h128256 -> 128256
            A 128256
            # all 1336 are unlocked
        """,
        gap="Locks of chunks, by request.",
    ),
    Incident(
        id="trtllm-12834",
        of="C14",
        url="https://github.com/NVIDIA/TensorRT-LLM/pull/12834",
        text="start 600  # -1 used, 101 free, of 100; no numbers in the thread",
        gap="The state of a tier: units in use, free and in all.",
    ),
    Incident(
        id="LMCache-3381",
        of="C14",
        url=lmcache(3381),
        text="""
            L 300 c0 h256 -> 256
            pins -1
        """,
        rule="double-free",
        numbers={"key": "c0ffee", "pins": -1},
        says="had -1 pins",
    ),
    Incident(
        id="sglang-13483",
        of="C14",
        url=sglang(13483),
        text="""
            L 1100 c0 h1024 -> 1024  # no numbers in the thread; two of four pages have come
            # 4 are locked
            prefetch 0+1024
            # 2 are unlocked, three times
        """,
        gap="Locks of chunks, by request.",
    ),
    Incident(
        id="vllm-49674",
        of="C15",
        url=vllm(49674),
        text="""
            P free 0  # how many fell is ours
            b: P free 0
            c: P free 0
        """,
        rule="idle-preemption",
        numbers={"free": 0, "preempted": 3},
        says="3 requests were preempted in a row, and the pool still has 0 free blocks",
    ),
]

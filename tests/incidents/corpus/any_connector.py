"""Incidents that any connector may have, whatever it copies: identities without a version, blocks that are hit too early,
threads
that died, chunks that leave too early; and their look-alikes."""

from incidents.incident import Incident, LookAlike, lmcache, vllm

_STORES = "".join(
    f"s{n}: L 600 c0 h0 -> 0\ns{n}: A 0\ns{n}: S 0+600\ns{n}: plan store 0+512 #{n}\n" for n in range(1, 8)
)
_KEPT = "".join(f"s{n}: L 600 c0 -> 0\ns{n}: A 0\ns{n}: S 0+600\ns{n}: end delayed{{0}}\n" for n in range(1, 8))
_SENT = "s1: sent\ns2: sent\ns3: sent\n"
_ENDS = "done #1\ndone #2\ndone #3\n"
_LOADS = "L 1200 c512 h1024 -> 512 async\nA 512 [1-32]\n"
_UNSURE = "start 600 as a version 1\nL 600 c0 h0 -> 0\nA 0\nS 0+600\nplan store 0+512 keys k1,k2\nend\n"
_VERSION = f"{_UNSURE}d: start 600 as a version 1\n"
_AGAIN = "b: start 600 as a version 2\n"
_OPEN = "L 600 c0 h0 -> 0\nA 0\nS 0+600\nplan store 0+512 keys k1,k2 #1\n"
_WAITS = "L 900 c0 -> later\nprefetch 0+512 keys k1,k2\n"

INCIDENTS = [
    Incident(
        id="UCM-716",
        of="C11",
        url="https://github.com/ModelEngine-Group/unified-cache-management/pull/716",
        block=16,
        text="""
            L 600 c0 h512 -> 512  # two ranks, only rank 0 loads; the lengths are ours
            A 512
            S 512+88
            check loaded 32
            check loaded 32 wrong drift 1@0 wrong drift 2@16 more 30 rank 1
        """,
        rule="byte-drift",
        numbers={
            "where": "differs",
            "look": "loaded",
            "looked": 32,
            "wrong": 2,
            "unlisted": 30,
            "block_size": 16,
            "rank": 1,
            "blocks": [1, 2],
            "tokens": [0, 16],
            "holds": ["unknown", "unknown"],
            "sources": ["", ""],
        },
        says="32 blocks were compared",
    ),
    Incident(
        id="vllm-ascend-4761",
        of="C11",
        url="https://github.com/vllm-project/vllm-ascend/pull/4761",
        text="""
            # keys of (tensor rank 1, pipeline rank 1) are never asked for: the lengths are ours
            rank 0 h512
            rank 1 h512
            rank 2 h512
            rank 3 h256
            L 600 c0 h512 -> 512
        """,
        rule="partial-hit",
        numbers={"where": "ranks", "claimed": 512, "by_rank": {"0": 512, "1": 512, "2": 512, "3": 256}, "rank": 3},
        says="3: 256",
    ),
    Incident(
        id="trtllm-17380",
        of="C11",
        url="https://github.com/NVIDIA/TensorRT-LLM/pull/17380",
        text="L 600 c0 h512 -> 512",
        why="Each rank sizes its host memory by what is free on its node: no event reports a rank's capacity.",
    ),
    Incident(
        id="vllm-42125",
        of="N1",
        url=vllm(42125),
        text="""
            start 600 as lora version 1  # the lengths are ours; `load_inplace` keeps name and number of the adapter
            L 600 c0 h0 -> 0
            A 0
            S 0+600
            plan store 0+512 keys k1,k2
            end
            c: start 100 as lora version 1
            b: start 600 as lora version 2
            b: L 600 c0 h512 -> 512 keys k1,k2
        """,
        rule="key-collision",
        numbers={
            "key": "k1",
            "identity": "lora",
            "other_identity": "lora",
            "other": "cmpl-1-0-0123abcd",
            "version": "2",
            "other_version": "1",
        },
        says="The adapter was replaced under its name",
    ),
    Incident(
        id="vllm-30931",
        of="N1",
        url=vllm(30931),
        text="""
            start 600 as lora version llama-a  # one name, two numbers, two paths; the lengths are ours
            L 600 c0 h0 -> 0
            A 0
            S 0+600
            plan store 0+512 keys k1,k2
            c: start 100 as lora version llama-a
            b: start 600 as lora version llama-b
            b: plan load 0+512 keys k1,k2
        """,
        rule="key-collision",
        numbers={
            "key": "k1",
            "identity": "lora",
            "other_identity": "lora",
            "other": "cmpl-1-0-0123abcd",
            "version": "llama-b",
            "other_version": "llama-a",
        },
        says="with version llama-b, uses the same chunk",
    ),
    Incident(
        id="bytedance-sglang-768-early",
        of="C16",
        url="https://github.com/bytedance-iaas/sglang/pull/768",
        block=256,
        text="""
            L 41100 c0 h40960 -> 40960 async  # 160 pages of 256; the lengths beyond them are ours
            A 40960 [1-160]
            b: L 41100 c40960 h40960 -> 0  # the sharers' #cached-token: 40960
            b: A 0 [1-161]
        """,
        rule="read-before-loaded",
        numbers={"where": "hit", "owner": "cmpl-1-0-0123abcd", "loading": 40960, "shared": 160, "block": 1},
        says="whatever they hold now is read as KV",
    ),
    Incident(
        id="vllm-46019",
        of="C12",
        url=vllm(46019, "pull"),
        connector="OffloadingConnector",
        text=_STORES
        + """
            wait 2 busy  # how long a copy takes, and how many there are, is ours
            done #1
            done #2
            done #3
            wait 320 busy  # the thread proposes to take a job for stalled after 300 s
        """,
        rule="stalled-connector",
        numbers={
            "where": "open transfers",
            "direction": "store",
            "ended": 3,
            "open": 4,
            "missed_s": 300.0,
            "steps": 60000,
            "longest_s": 2.0,
        },
        says="4 stores are open",
    ),
    Incident(
        id="LMCache-5263",
        of="C7",
        url=lmcache(5263),
        connector="LMCacheMPConnector",
        text="""
            L 600 c0 h0 -> 0  # the lengths are ours
            A 0
            S 0+600
            plan store 0+512 keys k1,k2 #1
            wait 600  # the write lock's lifetime
            evict k1
            done #1
        """,
        rule="evicted-in-use",
        numbers={"where": "being written", "key": "k1", "transfer": 1, "count": 512},
        says="its memory may be given away while the copy goes on",
    ),
    Incident(
        id="vllm-49902",
        of="C10",
        url=vllm(49902),
        connector="OffloadingConnector",
        text="""
            L 900 c0 -> later  # 50 requests wait; two of them are shown, with lengths of ours
            prefetch 0+512 keys k1,k2
            b: L 900 c0 -> later
            b: prefetch 0+512 keys k3,k4
            evict k1
            L 900 c0 -> later
            prefetch 0+256 keys k1
        """,
        rule="evicted-in-use",
        numbers={"where": "fetched", "key": "k1", "again": 1, "fetched": 1},
        says="before it was loaded, it was evicted",
    ),
]


def _alike(
    of: str, rule: str, what: str, text: str, *, later_s: float = 0.0, connector: str = "Connector"
) -> LookAlike:
    return LookAlike(of=of, rule=rule, what=what, text=text, later_s=later_s, connector=connector)


LOOK_ALIKES = [
    _alike(
        "N1",
        "key-collision",
        "the same weights again",
        f"{_VERSION}b: start 600 as a version 1\nb: L 600 c0 h512 -> 512 keys k1,k2",
    ),
    _alike(
        "N1",
        "key-collision",
        "under way when the adapter was replaced, perhaps",
        f"{_UNSURE}{_AGAIN}b: L 600 c0 h512 -> 512 keys k1,k2",
    ),
    _alike("N1", "key-collision", "replaced, and reset", f"{_VERSION}reset\n{_AGAIN}b: L 600 c0 h0 -> 0"),
    _alike(
        "N1",
        "key-collision",
        "replaced, and copied again",
        f"{_VERSION}{_AGAIN}b: L 600 c0 h0 -> 0\nb: A 0\nb: S 0+600\nb: plan store 0+512 keys k1,k2\n"
        "c: start 600 as a version 2\nc: L 600 c0 h512 -> 512 keys k1,k2",
    ),
    _alike(
        "N1",
        "key-collision",
        "a version that could not be read",
        f"{_VERSION}b: start 600 as a\nb: L 600 c0 h512 -> 512 keys k1,k2",
    ),
    _alike(
        "C16",
        "read-before-loaded",
        "a prefix that was computed here",
        f"{_LOADS}b: L 1200 c512 h0 -> 0\nb: A 0 [1-16 40-61]\nR",
    ),
    _alike("C16", "read-before-loaded", "received before", f"{_LOADS}R\nb: L 1200 c1024 h0 -> 0\nb: A 0 [1-38]"),
    _alike(
        "C16",
        "read-before-loaded",
        "loaded within the step",
        "L 1200 c512 h1024 -> 512\nA 512 [1-38]\nb: L 1200 c1024 h0 -> 0\nb: A 0 [1-32 40-45]",
    ),
    _alike(
        "C16",
        "read-before-loaded",
        "blocks that are stored",
        "L 600 c0 h0 -> 0\nA 0 [1-19]\nS 0+600 [1-19]\nplan store 0+512 [1-16] #1\n"
        "b: L 600 c512 h0 -> 0\nb: A 0 [1-16 20-22]\ndone #1",
    ),
    _alike(
        "C12", "stalled-connector", "the connector is not polled: no step is made", f"{_STORES}{_ENDS}wait 900 idle"
    ),
    _alike(
        "C12",
        "stalled-connector",
        "a slow store: the longest took 35 s",
        f"{_STORES}wait 35 busy\n{_ENDS}wait 330 busy\ndone #4",
    ),
    _alike(
        "C12",
        "stalled-connector",
        "one ends now and then",
        f"{_STORES}{_ENDS}wait 200 busy\ndone #4\nwait 250 busy\ndone #5\nwait 900 busy",
    ),
    _alike(
        "C12",
        "stalled-connector",
        "handed on, to a peer that may be slow",
        f"{_KEPT.format(' length_capped handoff')}{_SENT}wait 500 busy",
        connector="NixlConnector",
    ),
    _alike(
        "C12",
        "stalled-connector",
        "kept for a lease",
        f"{_KEPT.format(' length_capped lease 3600')}{_SENT}wait 500 busy",
    ),
    _alike("C12", "stalled-connector", "two are open", f"{_STORES}{_ENDS}done #4\ndone #5\nwait 900 busy"),
    _alike("C12", "stalled-connector", "dropped by a reset", f"{_STORES}{_ENDS}reset\nwait 900 busy"),
    _alike(
        "C12",
        "stalled-connector",
        "of requests that were aborted",
        f"{_STORES}{_ENDS}s4: end aborted\ns5: end aborted\nwait 900 busy",
    ),
    _alike("C7", "evicted-in-use", "evicted when the store had ended", f"{_OPEN}done #1\nevict k1"),
    _alike("C7", "evicted-in-use", "another chunk is evicted during a store", f"{_OPEN}evict k9\ndone #1"),
    _alike("C7", "evicted-in-use", "a store that has failed", f"{_OPEN}done #1 failed\nevict k1\nevict k2"),
    _alike(
        "C7",
        "evicted-in-use",
        "the copy of before a reset",
        f"{_OPEN}reset\nb: plan store 512+256 keys k3\nevict k1\ndone #1",
    ),
    _alike(
        "C10",
        "evicted-in-use",
        "loaded in between",
        f"{_WAITS}L 900 c0 h512 -> 512\nA 512\nevict k1\nP\nL 900 c0 -> later\nprefetch 0+512 keys k1,k2",
    ),
    _alike("C10", "evicted-in-use", "the fetch had failed", f"{_WAITS}prefetch 0+512 keys k1,k2"),
    _alike("C10", "evicted-in-use", "evicted, and not fetched again", f"{_WAITS}evict k1\nL 900 c0 h0 -> 0\nA 0"),
    _alike(
        "C10",
        "evicted-in-use",
        "another request fetches it later",
        f"{_WAITS}evict k1\nend aborted\nb: L 900 c0 -> later\nb: prefetch 0+512 keys k1,k2",
    ),
]

"""C1 to C3: answers that are too large, full hits that leave nothing to run, hits of what was never stored."""

from incidents.incident import Incident, lmcache, vllm

INCIDENTS = [
    Incident(
        id="LMCache-2158",
        of="C1",
        url=lmcache(2158),
        connector="LMCacheConnectorV1",
        text="""
            L 10009 c0 h0 -> 0
            A 0
            S 0+336  # the step's size is not in the thread; 336 were computed when it was asked again
            store 0+256
            P
            L 10009 c336 h256 -> 0
            L 10009 c336 h256 -> 256 cached
            A 256 !AssertionError: Mismatch in tokens to load: 256 vs 256 - 336
        """,
        rule="stale-lookup",
        numbers={
            "total": 10009,
            "matched": 256,
            "computed": 336,
            "returned": 256,
            "at_most": 0,
            "need_to_load": -80,
        },
        says="at most max(0, 256 - 336) = 0 can be new",
    ),
    Incident(
        id="LMCache-2091",
        of="C1",
        url=lmcache(2091, "pull"),
        text="""
            # the length of 40 is ours
            L 40 c0 h24 -> 24
            L 40 c16 h24 -> 24
        """,
        rule="stale-lookup",
        numbers={"total": 40, "matched": 24, "computed": 16, "returned": 24, "at_most": 8, "need_to_load": 8},
        says="at most max(0, 24 - 16) = 8 can be new. The connector answered 24",
    ),
    Incident(
        id="LMCache-3322",
        of="C2",
        url=lmcache(3322, "pull"),
        text="L 512 c256 h512 -> 256  # the thread has letters only",
        rule="no-token-left",
        numbers={"total": 512, "computed": 256, "returned": 256},
        says="256 + 256 = 512, which is the whole request",
    ),
    Incident(
        id="vllm-55113",
        of="C2",
        url=vllm(55113, "pull"),
        text="L 1024 c0 h1024 -> 1024  # found by reading, nothing was run",
        rule="no-token-left",
        numbers={"total": 1024, "computed": 0, "returned": 1024},
        says="The last token must be left",
    ),
    Incident(
        id="vllm-50864",
        of="C2",
        url=vllm(50864, "pull"),
        text="L 128 c64 -> 64  # the thread has letters only: L + M = N",
        rule="no-token-left",
        numbers={"total": 128, "computed": 64, "returned": 64},
        says="64 + 64 = 128",
    ),
    Incident(
        id="vllm-50864 (L + M > N)",
        of="C2",
        url=vllm(50864, "pull"),
        text="L 100 c64 -> 64  # its other assertion",
        rule="over-report",
        numbers={"total": 100, "matched": None, "computed": 64, "returned": 64, "at_most": 36},
        says="between 0 and 36 can be new. The connector answered 64",
    ),
    Incident(
        id="vllm-53314",
        of="C3",
        url=vllm(53314, "pull"),
        text="""
            # the thread's rule is align(N - 1); 1000 tokens and a first step of 256 are ours
            L 1000 c0 h0 -> 0
            A 0
            S 0+256
            plan store 0+256 keys a
            b: L 1000 c0 h992 -> 992 keys a,b,c,d
        """,
        rule="phantom-hit",
        numbers={"claimed": 4, "missing": 3, "key": "b", "matched": 992},
        says="claimed 4 chunks (992 tokens). Its store does not hold 3 of them, the first with key b",
    ),
]

"""C9 to C11: statistics, prefetches of what is there, ranks that hold different things."""

from incidents.incident import Incident, lmcache, vllm


def _stats(total: int, cached: int, external: int | None, broken: str) -> dict[str, object]:
    numbers = {"total": total, "reported": cached, "from_connector": external, "broken": broken}
    return {name: value for name, value in numbers.items() if value is not None}


INCIDENTS = [
    Incident(
        id="vllm-36752",
        of="C9",
        url=vllm(36752, "pull"),
        text="""
            L 4000 c1500 h1500 -> 0  # the request's length is ours
            A 0
            S 1500+2500
            P
            L 4000 c0 h2000 -> 2000
            A 2000
            S 2000+2000
            stats 4000 cached 1500 external 2000
        """,
        rule="stats-mismatch",
        numbers=_stats(
            4000, 1500, 2000, "2000 of 1500 cached tokens cannot have come from the connector: -500 would be local"
        ),
        says="-500 would be local",
    ),
    Incident(
        id="vllm-57596",
        of="C9",
        url=vllm(57596),
        text="""
            L 401 c0 h384 -> 384  # what the store held is ours
            A 0
            S 0+401
            stats 401 cached 0 external 0 queried 401
        """,
        rule="stats-mismatch",
        numbers={
            **_stats(401, 0, 0, ""),
            "queried": 401,
            "broken": "the lookup's answer of 384 tokens was discarded, so none were asked for, not 401",
        },
        says="384 tokens was discarded, so none were asked for, not 401",
    ),
    Incident(
        id="vllm-ascend-7489",
        of="C9",
        url="https://github.com/vllm-project/vllm-ascend/issues/7489",
        text="""
            L 600 c0 h256 -> 256  # the thread has the exception only
            A 256
            S 256+344
            stats 600 cached 128 external 256
        """,
        rule="stats-mismatch",
        numbers=_stats(
            600, 128, 256, "256 of 128 cached tokens cannot have come from the connector: -128 would be local"
        ),
        says="-128 would be local",
    ),
    Incident(
        id="vllm-30522",
        of="C9",
        url=vllm(30522, "pull"),
        text="""
            L 1000 c600 h800 -> 200
            A 200
            S 800+200
            stats 1000 cached 800 external 200 queried 1000
        """,
        rule="stats-mismatch",
        numbers={
            **_stats(1000, 800, 200, ""),
            "queried": 1000,
            "broken": "the lookup asked for 1000 - 600 = 400 tokens, not 1000",
        },
        says="1000 - 600 = 400 tokens, not 1000",
    ),
    Incident(
        id="LMCache-2912",
        of="C9",
        url=lmcache(2912),
        text="""
            L 17050 c768 h768 -> 0
            A 0
            S 768+8192
            P
            L 17050 c0 h8448 -> 8448
            A 8448
            S 8448+8192
            stats 17050 cached 768 external 8448
        """,
        rule="stats-mismatch",
        numbers=_stats(
            17050, 768, 8448, "8448 of 768 cached tokens cannot have come from the connector: -7680 would be local"
        ),
        says="-7680 would be local",
    ),
    Incident(
        id="vllm-37354",
        of="C9",
        url=vllm(37354, "pull"),
        text="""
            L 500 c0 h256 -> 256 async  # the -1 is the thread's
            A 256
            R failed
            stats 500 cached -1
            end
        """,
        rule="stats-mismatch",
        numbers=_stats(500, -1, None, "-1 tokens cannot be cached"),
        says="-1 tokens cannot be cached",
    ),
    Incident(
        id="LMCache-1922",
        of="C9",
        url=lmcache(1922, "pull"),
        text="""
            # vLLM has N, the store n < N, and the answer is N; 512 and 256 are ours
            L 700 c0 h0 -> 0
            A 0
            S 0+700
            plan store 0+256 keys a
            b: L 700 c512 h512 -> 0 keys a,b
        """,
        rule="phantom-hit",
        numbers={"claimed": 2, "missing": 1, "key": "b", "matched": 512},
        says="Its store does not hold 1 of them, the first with key b",
    ),
    Incident(
        id="vllm-ascend-10028",
        of="C9",
        url="https://github.com/vllm-project/vllm-ascend/issues/10028",
        text="""
            L 600 c0 h512 -> 512  # the thread has the exception only
            A 512
            S 512+88
            stats 600 cached 256 external 512
        """,
        rule="stats-mismatch",
        numbers=_stats(
            600, 256, 512, "512 of 256 cached tokens cannot have come from the connector: -256 would be local"
        ),
        says="-256 would be local",
    ),
    Incident(
        id="vllm-omni-1468",
        of="C9",
        url="https://github.com/vllm-project/vllm-omni/pull/1468",
        text="""
            L 3808 c0 h0 -> 0
            A 0
            stats 3808 cached -1 external 0
        """,
        rule="stats-mismatch",
        numbers=_stats(3808, -1, 0, "-1 tokens cannot be cached"),
        says="reported: -1",
    ),
    Incident(
        id="LMCache-3490",
        of="C10",
        url=lmcache(3490),
        text="""
            L 749 c288 h512 -> 224  # the request's length is ours
            prefetch 0+512
        """,
        gap="Prefetches of a connector with lookups that say what they matched.",
    ),
    Incident(
        id="LMCache-1467",
        of="C11",
        url=lmcache(1467),
        text="""
            rank 0 h1024  # no numbers in the thread; four ranks
            rank 1 h1024
            rank 2 h512
            rank 3 h1024
            L 1200 c0 h1024 -> 1024
        """,
        rule="partial-hit",
        numbers={"where": "ranks", "claimed": 1024, "by_rank": {"0": 1024, "1": 1024, "2": 512, "3": 1024}, "rank": 2},
        says="claimed 1024 tokens. Its ranks held: 0: 1024; 1: 1024; 2: 512",
    ),
    Incident(
        id="LMCache-1426",
        of="C11",
        url=lmcache(1426, "pull"),
        text="""
            rank 0 h512  # no numbers in the thread
            rank 1 h0
            L 600 c0 -> 512
        """,
        rule="partial-hit",
        numbers={"where": "ranks", "claimed": 512, "by_rank": {"0": 512, "1": 0}, "rank": 1},
        says="claimed 512 tokens. Its ranks held: 0: 512; 1: 0",
    ),
    Incident(
        id="LMCache-1357",
        of="C11",
        url=lmcache(1357),
        text="""
            L 600 c0 h256 -> 256
            L 600 c0 h256 -> 256
        """,
        why="An assertion about the lookup client's own counter; its answers, all that is recorded, were consistent.",
    ),
]

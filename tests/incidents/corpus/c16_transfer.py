"""C16 to C20: blocks given away under a transfer, completions that belong to nothing, connectors that were not chosen."""

from incidents.incident import Incident, lmcache, sglang, vllm


def _stored_over(number: int, id: str, url: str) -> Incident:
    return Incident(
        id=id,
        of="C16",
        url=url,
        text=f"""
            L 300 c0 h0 -> 0  # blocks and lengths are ours
            A 0 [1-10]
            S 0+300 [1-10]
            plan store 0+256 [1-8] #{number}
            P
            b: L 128 c0 h0 -> 0
            b: A 0 [5-8]
            done #{number}
        """,
        rule="block-reuse",
        numbers={"block": 5, "other": "b-cmpl-1-0-0123abcd", "transfer": "store"},
        says="a store of this request began over block 5",
    )


INCIDENTS = [
    Incident(
        id="bytedance-sglang-768",
        of="C16",
        url="https://github.com/bytedance-iaas/sglang/pull/768",
        block=256,
        text="""
            L 41100 c0 h40960 -> 40960 async  # 160 pages of 256; the lengths beyond them are ours
            A 40960 [1-160]
            b: L 41100 c40960 h40960 -> 0
            b: A 0 [1-161]
            b: S 40960+140 [1-161]
            error [88-160]
            R failed
            b: S 41100+1 []
        """,
        rule="failed-load-used",
        numbers={"where": "run on", "block": 88, "first_invalid": 22272, "begins": 41100},
        says="it holds this request's tokens from 22272 on",
        also=("read-before-loaded",),
    ),
    Incident(
        id="sglang-32564",
        of="C16",
        url=sglang(32564, "pull"),
        text="""
            L 1000 c0 -> 992 async  # A has pages 14 to 44, and aborts; B gets 1 to 32
            A 992 [14-44]
            end
            b: L 1020 c0 h0 -> 0
            b: A 0 [1-32]
            R
        """,
        rule="block-reuse",
        numbers={"block": 14, "other": "b-cmpl-1-0-0123abcd", "transfer": "load"},
        says="began over block 14. At A2",
    ),
    _stored_over(1, "LMCache-4822", lmcache(4822, "pull")),
    Incident(
        id="vllm-48596",
        of="C16",
        url=vllm(48596, "pull"),
        connector="OffloadingConnector",
        text="""
            # the last block's store is planned in the step after the end, in which the block is given away; numbers are ours
            step 0
            L 96 c0 h0 -> 0
            A 0 [1-3]
            S 0+96 [1-3]
            step 1
            end length_capped
            b: L 128 c0 h0 -> 0
            b: A 0 [3-6]
            b: S 0+128 [3-6]
            plan store 64+32 [3] #1
            step 2
            done #1
        """,
        rule="block-reuse",
        numbers={"block": 3, "other": "b-cmpl-1-0-0123abcd", "transfer": "store"},
        says="and nothing waited for the store",
    ),
    _stored_over(2, "vllm-29870", vllm(29870, "pull")),
    _stored_over(3, "vllm-52360", vllm(52360)),
    Incident(
        id="aws-do-eks-84",
        of="C16",
        url="https://github.com/aws-samples/aws-do-eks/pull/84",
        text="""
            end delayed
            wait 30
            freed expired
            wait 21
            read
        """,
        rule="stale-handoff",
        numbers={"where": "given", "late_s": 21.001, "expired": True},
        says="the lease had run out",
    ),
    Incident(
        id="vllm-51637",
        of="C17",
        url=vllm(51637),
        text="""
            L 300 c0 h0 -> 0  # lengths are ours; the count fell below 0, and the last store was never reported
            A 0
            S 0+300 [1-10]
            plan store 0+256 #1
            P
            L 301 c0 h0 -> 0
            A 0
            S 0+301 [11-20]
            plan store 0+256 #2
            done #1
            done #2
            end delayed
        """,
        later_s=900,
        rule="late-free",
        numbers={"waited_s": 900.0, "counted_s": 900.0},
        says="the connector kept its blocks",
    ),
    Incident(
        id="vllm-46240",
        of="C17",
        url=vllm(46240),
        text="""
            L 600 c0 -> 599 async  # no numbers in the thread
            A 599
            end
            R
            sent
        """,
        rule="stray-completion",
        numbers={"what": "store", "repeated": False},
        says="a store of the request was reported as finished, and none was under way",
    ),
    Incident(
        id="vllm-51595",
        of="C17",
        url=vllm(51595, "pull"),
        text="""
            @one L 600 c0 -> 599 async  # no numbers in the thread; two children load, and each reports
            @two L 600 c0 -> 599 async
            @one A 599
            @two A 0
            R
            R
        """,
        rule="stray-completion",
        numbers={"what": "load", "repeated": True, "connectors": 2},
        says="that had been reported at R1 already. By which of the 2 connectors",
    ),
    Incident(
        id="vllm-51786",
        of="C17",
        url=vllm(51786),
        text="""
            @nixl L 600 c0 -> 599 async  # no numbers in the thread; its other child reports a load that it was not asked for
            @lmcache L 600 c0 h512 -> 512 async
            @nixl A 599
            @lmcache A 0
            @nixl R
            @lmcache R
            @nixl A 0
            @lmcache A 0
            S 599+1
            @nixl R
            @lmcache R
        """,
        rule="stray-completion",
        numbers={"what": "load", "repeated": True, "connectors": 2},
        says="that had been reported at R1 already. By which of the 2 connectors",
    ),
    Incident(
        id="vllm-51864",
        of="C17",
        url=vllm(51864, "pull"),
        text="""
            @nixl L 600 c599 -> 0  # no numbers in the thread: a child that is given 0 tokens reports them as received
            @lmcache L 600 c599 h512 -> 0
            @nixl A 0
            @lmcache A 0
            S 599+1
            @nixl R
            @lmcache R
        """,
        rule="stray-completion",
        numbers={"what": "load", "repeated": False, "connectors": 2},
        says="none was under way. By which of the 2 connectors",
    ),
    Incident(
        id="vllm-45628",
        of="C17",
        url=vllm(45628, "pull"),
        text="""
            L 600 c0 -> 0  # no numbers in the thread: freed when it was aborted, and then its transfer ends
            A 0
            S 0+600
            end aborted
            R
        """,
        rule="stray-completion",
        numbers={"what": "load", "repeated": False},
        says="a load of the request was reported as finished, and none was under way",
    ),
    Incident(
        id="vllm-46014",
        of="C18",
        url=vllm(46014),
        connector="OffloadingConnector",
        text="""
            L 600 c0 -> 0  # lengths are ours
            A 0
            S 0+600 [1-19]
            plan store 0+512 #1
            P
            L 601 c0 -> 512 async
            A 512
            plan load 0+512 #2
        """,
        rule="load-store-overlap",
        numbers={"store": 1, "load": 2, "count": 512},
        says="has not ended. At L1",
    ),
    Incident(
        id="vllm-42831",
        of="C19",
        url=vllm(42841, "pull"),
        text="""
            @chosen L 600 c0 -> 599 async  # no numbers in the thread
            @other L 600 c0 -> 599 async
            @chosen A 599
            @other A 0 []
            @other plan load 0+599
        """,
        rule="load-range",
        numbers={"where": "nothing allocated", "allocated": 0, "count": 599},
        says="plans to load 599 tokens nevertheless",
    ),
    Incident(
        id="LMCache-4355",
        of="C19",
        url=lmcache(4355, "pull"),
        text="""
            @nixl L 600 c0 -> 599 async  # no numbers in the thread
            @lmcache L 600 c0 h512 -> 512 async
            @nixl A 599
            @lmcache A 0
            @lmcache plan load 0+512
            R
            S 599+1
            R
        """,
        rule="load-range",
        also=("stray-completion",),
        numbers={"where": "nothing allocated", "allocated": 0, "count": 512},
        says="allocated 0 external tokens for this connector",
    ),
    Incident(
        id="vllm-54301",
        of="C20",
        url=vllm(54301, "pull"),
        text="""
            L 600 c0 -> 599  # no numbers in the thread
            A 599
            S 599+1
            R
        """,
        rule="async-declaration",
        numbers={"allocated": 599, "async": False},
        says="the lookup had declared synchronous",
    ),
]

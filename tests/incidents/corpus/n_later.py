"""Incidents of the classes that the taxonomy lacked at first, and of exceptions."""

from incidents.incident import Incident, lmcache, vllm

INCIDENTS = [
    Incident(
        id="vllm-56841",
        of="C17",
        url=vllm(56841, "pull"),
        connector="ExampleHiddenStatesConnector",
        text="""
            L 600 c0 h0 -> 0  # no numbers in the thread; aborted while it waits
            failure request_finished !KeyError: 'cmpl-b98ee80d8ff99a38-0-8e7006c7'
        """,
        rule="failed-call",
        numbers={"call": "request_finished", "message": "KeyError: 'cmpl-b98ee80d8ff99a38-0-8e7006c7'"},
        says="`request_finished` raised",
    ),
    Incident(
        id="LMCache-4133",
        of="C7",
        url=lmcache(4133),
        connector="LMCacheConnectorV1",
        text="""
            L 1000 c0 h768 -> 768  # 651 of 768 tokens are staged; the request's length is ours
            A 768
            S 768+232
            load 651/768
            failure start_load_kv rank 0 !RuntimeError: k has 768 rows, old_k has 651
        """,
        rule="failed-call",
        numbers={
            "call": "start_load_kv",
            "message": "RuntimeError: k has 768 rows, old_k has 651",
            "expected": 768,
            "loaded": 651,
        },
        says="A load before it had brought 651 of 768 tokens",
    ),
    Incident(
        id="LMCache-1969",
        of="C1",
        url=lmcache(1969),
        connector="LMCacheConnectorV1",
        chunk=16,
        block=16,
        text="""
            L 34 c0 h0 -> 0
            A 0 [1-3]
            S 0+34 [1-3]
            store 0+32
            # the hit of the first resumption is ours: the thread describes those that followed
            P
            L 36 c0 h32 -> 32
            A 32 [1-3]
            S 32+4 [1-3]
            P
            L 38 c0 h32 -> 0
            A 0 [4-6]
            S 0+38 [4-6]
        """,
        rule="under-report",
        numbers={"offered": 32, "matched": 32, "computed": 0, "loadable": 32, "returned": 0},
        says="so it could offer 32. It answered 0",
    ),
    Incident(
        id="vllm-42371",
        of="C12",
        url=vllm(42371),
        connector="SimpleCPUOffloadConnector",
        text="""
            L 8000 c0 -> 0  # the lengths are ours: Running 0, Waiting 50
            wait 300
            L 8000 c0 -> 0
        """,
        later_s=400,
        rule="never-scheduled",
        numbers={"where": "after its lookup", "computed": 0, "total": 8000, "waited_s": 700.0, "counted_s": 700.0},
        says="it has been given no blocks",
    ),
    Incident(
        id="vllm-44250",
        of="N1",
        url=vllm(44250),
        connector="LMCacheMPConnector",
        text="""
            start 600 as adapter_a
            L 600 c0 h0 -> 0
            A 0
            S 0+600
            plan store 0+512 keys k1,k2
            end
            b: start 600 as adapter_b
            b: L 600 c0 h512 -> 512 keys k1,k2
        """,
        rule="key-collision",
        numbers={
            "key": "k1",
            "identity": "adapter_b",
            "other_identity": "adapter_a",
            "other": "cmpl-1-0-0123abcd",
        },
        says="uses the same key",
    ),
    Incident(
        id="vllm-50359",
        of="N2",
        url=vllm(50359, "pull"),
        connector="MooncakeStoreConnector",
        block=16,
        chunk=32,
        text="""
            group 0 h64 at 32,64  # full attention
            group 1 h48 at 32,48  # Mamba
            L 100 c0 h48 -> 48
        """,
        rule="partial-hit",
        numbers={"where": "groups", "claimed": 48, "group": 0, "by_group": {"0": [32, 64], "1": [32, 48]}, "joint": 32},
        says="Group 0 holds no object that ends at 48; the longest prefix that all of them hold has 32 tokens",
    ),
    Incident(
        id="vllm-46502",
        of="N5",
        url=vllm(46502),
        connector="MooncakeStoreConnector",
        text="""
            L 8000 c0 -> 0  # the length is ours: 40 % of the cache, for 20 minutes
            A 0 [1-250]
            S 0+8000 [1-250]
            wait 10 busy
            end delayed
            wait 500 idle
        """,
        rule="poll-starvation",
        numbers={"idle_s": 60.0, "held": 1, "steps": 1000},
        says="has held blocks for a transfer since",
    ),
    Incident(
        id="vllm-46008",
        of="N7",
        url=vllm(46008, "pull"),
        connector="MooncakeConnector",
        text="""
            start 600
            L 600 c0 -> 0  # the length is ours; the only token is the end of the text
            A 0
            S 0+600
            end stopped handoff computed 600
        """,
        rule="refused-handoff",
        numbers={"outcome": "stopped", "computed": 600, "prompt": 600},
        says="it ended (stopped) with 600 tokens computed",
    ),
    Incident(
        id="vllm-48141",
        of="N7",
        url=vllm(48141, "pull"),
        connector="NixlConnector",
        text="""
            start 600
            L 600 c0 -> 0  # no numbers in the thread: preempted in its only step; its token ends it all the same
            A 0
            S 0+600
            P
            end length_capped handoff output 1 computed 0 []
        """,
        rule="refused-handoff",
        numbers={"outcome": "length_capped", "computed": 0, "prompt": 600, "blocks": 0, "output": 1},
        says="holds 0 blocks and 0 computed tokens",
    ),
    Incident(
        id="vllm-36549",
        of="N7",
        url=vllm(36549, "pull"),
        connector="NixlConnector",
        text="""
            start 600
            @multi L 600 c0 -> 0  # the length is ours; the NIXL child is asked through a method that it does not have
            @nixl L 600 c0 -> 0
            @offload L 600 c0 -> 0
            @nixl A 0
            @offload A 0
            @multi A 0
            @multi S 0+600
            @nixl end length_capped handoff computed 600
        """,
        rule="refused-handoff",
        numbers={"outcome": "length_capped", "computed": 600, "prompt": 600},
        says="the engine that is to continue it waits in vain",
    ),
    Incident(
        id="LMCache-4817",
        of="N8",
        url=lmcache(4817),
        connector="LMCacheMPConnector",
        text="""
            # tier L1 is full to 79 percent, then to 100
            plan store 0+256 #1
            done #1 failed
            plan store 256+256 #2
            done #2 failed
            plan store 512+256 #3
            done #3 failed
            wait 66
            # it is still full
        """,
        gap="The state of a tier: units in use, free and in all.",
    ),
    Incident(
        id="vllm-ascend-16876",
        of="C8",
        url="https://github.com/vllm-project/vllm-ascend/pull/16876",
        connector="AscendStoreConnector",
        text="""
            L 600 c0 h512 -> 512  # no numbers in the thread
            A 512 [1-19]
            S 512+88 [1-19]
            error [9-16]
            plan store 256+256 [9-16]
        """,
        rule="failed-load-used",
        numbers={"where": "stored", "block": 9, "failed": 8, "count": 256},
        says="the connector stores 256 tokens from 8 such blocks, and no step has computed them since",
    ),
    Incident(
        id="vllm-ascend-16875",
        of="C8",
        url="https://github.com/vllm-project/vllm-ascend/pull/16875",
        connector="AscendStoreConnector",
        text="""
            z: plan store 0+256 keys a
            L 900 c0 h256 -> 256 keys a  # no numbers in the thread
            A 256 [1-29]
            S 256+644 [1-29]
            plan load 0+256 [1-8] keys a
            plan store 256+512 [9-24] keys b,c
            # the step has run, and stored: its report of errors was taken before
            error [3-8]
            S 64+836
            b: L 900 c0 h768 -> 768 keys a,b,c
        """,
        rule="failed-load-used",
        numbers={"where": "found", "key": "b", "other": "cmpl-1-0-0123abcd", "wrong": 2, "found": 3},
        says="the connector names 3 chunks for this request, and 2 of them were stored so",
    ),
    Incident(
        id="vllm-35092",
        of="C16",
        url=vllm(35092, "pull"),
        text="""
            @nixl L 600 c0 -> 512 async  # no numbers in the thread
            @offload L 600 c0 -> 0
            @nixl A 512 [1-16]
            @offload A 0 [1-16]
            @offload plan store 0+512 [1-16] #1
        """,
        rule="read-before-loaded",
        numbers={"where": "stored", "block": 1, "open": 16, "count": 512},
        says="what it stores is not there yet",
    ),
    Incident(
        id="vllm-53250",
        of="C12",
        url=vllm(53250, "pull"),
        connector="MoRIIOConnector",
        text="""
            L 600 c0 -> 600 async  # no numbers in the thread: its engines take 1024 tokens at most
            A 600
            R
            A 0
            S 599+1
            S 600+1
            P
            L 602 c0 -> 600 async
        """,
        rule="duplicate-load",
        numbers={"where": "offered again", "received": 600, "computed": 0, "returned": 600, "preempted": True},
        says="the engine that handed them on has given them up",
    ),
    Incident(
        id="vllm-18232",
        of="C6",
        url=vllm(18232, "pull"),
        text="""
            @nixl L 600 c0 -> 599 async  # no numbers in the thread
            @lmcache L 600 c0 -> 0
            @nixl A 599
            @lmcache A 0
            @nixl R
            @lmcache R
            @nixl L 600 c0 -> 0
            @lmcache L 600 c0 h512 -> 512
        """,
        rule="duplicate-load",
        numbers={"where": "offered again", "received": 599, "computed": 0, "returned": 512, "preempted": False},
        says="At L1 the request has not run, and the connector offers 512 tokens",
    ),
    Incident(
        id="LMCache-1960",
        of="N6",
        url=lmcache(1960, "pull"),
        connector="LMCacheConnectorV1",
        text="""
            L 8000 c0 -> later  # the lengths and the times are ours
            wait 30
            L 8000 c0 -> later
            wait 95
            L 8000 c0 -> later
        """,
        rule="endless-deferral",
        numbers={"computed": 0, "total": 8000, "waited_s": 125.0, "counted_s": 125.0},
        says="it has answered nothing else in the 125.0 seconds since",
    ),
]

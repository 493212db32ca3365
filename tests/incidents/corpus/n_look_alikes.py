"""Legal look-alikes of the rules about identities, boundaries, exceptions, and what goes on for too long."""

from __future__ import annotations

from incidents.incident import LookAlike


def _alike(
    of: str, rule: str, what: str, text: str, *, later_s: float = 0.0, connector: str = "Connector"
) -> LookAlike:
    return LookAlike(of=of, rule=rule, what=what, text=text, later_s=later_s, connector=connector)


_HANDED = "start 600\nL 600 c0 -> 0\nA 0\nS 0+600\n"
_OF_CHILDREN = "start 600\n@multi L 600 c0 -> 0\n@nixl L 600 c0 -> 0\n@nixl A 0\n@multi A 0\n@multi S 0+600\n"
_STORED = "start 600 as a\nL 600 c0 h0 -> 0\nA 0\nS 0+600\nplan store 0+512 keys k1,k2\n"
_FAILED = "L 600 c0 h512 -> 512\nA 512 [1-19]\nS 512+88 [1-19]\nerror [9-16]\n"
_RAN_ON = (
    "z: plan store 0+256 keys a\nL 900 c0 h256 -> 256 keys a\nA 256 [1-29]\nS 256+644 [1-29]\nplan load 0+256 [1-8] keys a\n"
    "plan store 256+512 [9-24] keys b,c\nerror [3-8]\n"
)
_AGAIN = "plan store 256+512 [9-24] keys b,c\n"
_FOUND = "b: L 900 c0 h768 -> 768 keys a,b,c"
_BOTH = "@nixl L 600 c0 -> 512 async\n@own L 600 c0 -> 0\n@nixl A 512 [1-16]\n@own A 0 [1-16]\n"

LOOK_ALIKES = [
    _alike(
        "C17",
        "failed-call",
        "the guard's own",
        "L 749 c336 h256 -> !ContractBreach: kvtrail: the connector returned 256 new tokens",
    ),
    _alike(
        "C7",
        "evicted-in-use",
        "evicted when the load had ended",
        "plan store 0+512 keys a,b\nb: L 600 c0 h512 -> 512 async keys a,b\nb: A 512\n"
        "b: plan load 0+512 keys a,b #1\nb: done #1\nevict a\nb: R",
    ),
    _alike(
        "C7",
        "evicted-in-use",
        "another chunk is evicted during a load",
        "plan store 0+512 keys a,b\nplan store 512+256 keys c\nb: L 600 c0 h512 -> 512 async keys a,b\nb: A 512\n"
        "b: plan load 0+512 keys a,b #1\nevict c\nb: done #1\nb: R",
    ),
    _alike(
        "C22",
        "store-uncomputed",
        "what was loaded, before the first step",
        "L 600 c0 h512 -> 512\nA 512\nplan store 0+512",
    ),
    _alike(
        "C8",
        "failed-call",
        "a load's error, from which vLLM recovers",
        "L 600 c0 h512 -> 512 async\nA 512 [1-19]\nload 512/512 !TimeoutError\nerror [9-16]\nR failed\nA 0 [1-19]\n"
        "S 256+344 [1-19]",
    ),
    _alike(
        "C1", "under-report", "the load had failed", "L 600 c0 h512 -> 512\nA 512\nerror [1]\nP\nL 600 c0 h512 -> 0"
    ),
    _alike("C1", "under-report", "capped, as before", "L 600 c0 h512 -> 256\nA 256\nP\nL 600 c0 h512 -> 256"),
    _alike("C1", "under-report", "less is left to load", "L 600 c0 h512 -> 512\nA 512\nP\nL 600 c256 h512 -> 0"),
    _alike("C1", "under-report", "evicted since", "L 600 c0 h512 -> 512\nA 512\nP\nL 600 c0 h256 -> 256"),
    _alike(
        "C12",
        "never-scheduled",
        "a busy engine, before its admission",
        "L 600 c0 -> 0\nwait 500\nL 600 c0 -> 0\nA 0\nS 0+600",
        later_s=900,
    ),
    _alike("C12", "never-scheduled", "aborted while it waits", "L 600 c0 -> 0\nwait 100\nend aborted", later_s=900),
    _alike(
        "C12",
        "never-scheduled",
        "preempted, and admitted again",
        "L 600 c0 -> 0\nA 0\nS 0+600\nwait 700\nP\nL 600 c0 -> 0",
    ),
    _alike(
        "N1", "key-collision", "the same adapter", f"{_STORED}b: start 600 as a\nb: L 600 c0 h512 -> 512 keys k1,k2"
    ),
    _alike(
        "N1",
        "key-collision",
        "another adapter, other keys",
        f"{_STORED}b: start 600 as b\nb: plan store 0+512 keys k3,k4\nc: start 600 as b\nc: L 600 c0 h512 -> 512 keys k3,k4",
    ),
    _alike(
        "N1",
        "key-collision",
        "evicted in between",
        f"{_STORED}evict k1\nevict k2\nb: start 600 as b\nb: plan store 0+512 keys k1,k2",
    ),
    _alike(
        "N2",
        "partial-hit",
        "the largest common length",
        "group 0 h64 at 32,64\ngroup 1 h48 at 32,48\nL 100 c0 h32 -> 32",
    ),
    _alike("N2", "partial-hit", "a full hit, cut by one", "group 0 h64 at 32,64\ngroup 1 h64 at 64\nL 64 c0 h64 -> 63"),
    _alike("N2", "partial-hit", "nothing in common", "group 0 h64 at 64\ngroup 1 h48 at 48\nL 100 c0 h0 -> 0"),
    _alike(
        "N5", "poll-starvation", "an idle engine that holds nothing", "L 600 c0 -> 0\nA 0\nS 0+600\nend\nwait 600 idle"
    ),
    _alike(
        "N5", "poll-starvation", "it goes on stepping", "L 600 c0 -> 0\nA 0\nS 0+600\nend delayed\nwait 300 busy\nsent"
    ),
    _alike(
        "N5",
        "poll-starvation",
        "sent within the minute",
        "L 600 c0 -> 0\nA 0\nS 0+600\nend delayed\nwait 50 idle\nsent\nwait 90 idle",
    ),
    _alike(
        "N6",
        "endless-deferral",
        "a slow lookup",
        "L 600 c0 -> later\nwait 100\nL 600 c0 h512 -> 512\nA 512",
        later_s=300,
    ),
    _alike("N6", "endless-deferral", "aborted", "L 600 c0 -> later\nend aborted", later_s=300),
    _alike("N7", "refused-handoff", "aborted", f"{_HANDED}end aborted handoff computed 600", connector="NixlConnector"),
    _alike(
        "N7",
        "refused-handoff",
        "kept",
        f"{_HANDED}end delayed length_capped handoff computed 600\nsent",
        connector="NixlConnector",
    ),
    _alike(
        "N7",
        "refused-handoff",
        "less than a block",
        "start 20\nL 20 c0 -> 0\nA 0\nS 0+20\nend handoff computed 20",
        connector="NixlConnector",
    ),
    _alike(
        "N7",
        "refused-handoff",
        "preempted, and computed again",
        f"{_HANDED}P\nL 600 c0 -> 0\nA 0 [1-19]\nS 0+600 [1-19]\n"
        "end delayed length_capped handoff output 1 computed 600 [1-19]\nsent",
        connector="NixlConnector",
    ),
    _alike(
        "N7",
        "refused-handoff",
        "preempted, and aborted",
        f"{_HANDED}P\nend aborted handoff output 1 computed 0 []",
        connector="NixlConnector",
    ),
    _alike(
        "N7",
        "refused-handoff",
        "another child of a MultiConnector keeps the blocks",
        f"{_OF_CHILDREN}@nixl end delayed length_capped handoff computed 600\nsent",
        connector="NixlConnector",
    ),
    _alike(
        "N7",
        "refused-handoff",
        "what the other child of a MultiConnector answers is not recorded",
        f"{_OF_CHILDREN}@nixl end length_capped handoff computed 600".replace("@multi", "@offload"),
        connector="NixlConnector",
    ),
    _alike("N7", "refused-handoff", "a connector that hands nothing on", f"{_HANDED}end handoff computed 600"),
    _alike(
        "C6",
        "duplicate-load",
        "the load failed, and vLLM asks again",
        "L 600 c0 -> 599 async\nA 599\nR failed\nL 600 c0 -> 599 async\nA 599\nR\nA 0\nS 599+1",
    ),
    _alike(
        "C6",
        "duplicate-load",
        "its first block could not be loaded",
        "L 600 c0 h512 -> 512 async\nA 512 [1-19]\nerror [1]\nR\nL 600 c0 h512 -> 512 async\nA 512 [1-19]",
    ),
    _alike(
        "C6",
        "duplicate-load",
        "a store answers after a preemption, too",
        "L 600 c0 -> 512 async\nA 512\nR\nA 0\nS 512+88\nP\nL 601 c0 -> 512 async\nA 512\nR\nA 0\nS 512+89",
        connector="MooncakeStoreConnector",
    ),
    _alike(
        "C12",
        "duplicate-load",
        "the hand-off failed, and is tried again after a preemption",
        "L 600 c0 -> 599 async\nA 599\nR failed\nL 600 c0 -> 0\nA 0\nS 0+600\nP\nL 601 c0 -> 599 async\nA 599",
        connector="NixlConnector",
    ),
    _alike(
        "C12",
        "duplicate-load",
        "more than was received",
        "L 900 c0 -> 512 async\nA 512\nR\nL 900 c512 -> 256 async\nA 256\nR\nA 0\nS 768+132",
    ),
    _alike("C8", "failed-load-used", "computed again first", f"{_FAILED}S 256+344\nplan store 256+256 [9-16]"),
    _alike("C8", "failed-load-used", "the blocks before the failed ones", f"{_FAILED}plan store 0+256 [1-8]"),
    _alike("C8", "failed-load-used", "stored again when it was computed again", f"{_RAN_ON}S 64+836\n{_AGAIN}{_FOUND}"),
    _alike(
        "C8",
        "failed-load-used",
        "forgotten, and stored by another request",
        f"{_RAN_ON}evict b\nevict c\nb: {_AGAIN}{_FOUND}",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "the store was emptied",
        f"{_RAN_ON}reset\nz: plan store 0+256 keys a\n{_AGAIN}{_FOUND}",
    ),
    _alike("C8", "failed-load-used", "the chunk before the failed block", f"{_RAN_ON}b: L 900 c0 h256 -> 256 keys a"),
    _alike(
        "C8",
        "failed-load-used",
        "stored before a preemption, and the load after it fails",
        "L 900 c0 -> 0\nA 0 [1-29]\nS 0+900 [1-29]\nplan store 0+768 [1-24] keys a,b,c\nP\nL 900 c0 h768 -> 768 keys a,b,c\n"
        f"A 768 [1-29]\nS 768+132 [1-29]\nplan load 0+768 [1-24] keys a,b,c\nerror [3-8]\n{_FOUND}",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "the load had ended before a request ran on its blocks",
        "z: plan store 0+256 keys a\nL 900 c0 h256 -> 256 async keys a\nA 256 [1-8]\nR failed\nerror [3-8]\n"
        f"L 900 c64 h256 -> 0\nA 0 [1-29]\nS 64+836 [1-29]\nplan store 256+512 [9-24] keys b,c\n{_FOUND}",
    ),
    _alike("C16", "read-before-loaded", "after the load", f"{_BOTH}@nixl R\n@own plan store 0+512 [1-16] #1"),
    _alike(
        "C16",
        "read-before-loaded",
        "another request's blocks",
        f"{_BOTH}b: L 64 c0 -> 0\nb: A 0 [17 18]\nb: S 0+64 [17 18]\nb: @own plan store 0+64 [17 18] #1\n@nixl R",
    ),
]

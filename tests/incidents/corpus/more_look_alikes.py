"""Legal look-alikes of the rules about counts, transfers and stores: C14 to C25."""

from __future__ import annotations

from incidents.incident import LookAlike


def _alike(of: str, rule: str, what: str, text: str, *, connector: str = "Connector") -> LookAlike:
    return LookAlike(of=of, rule=rule, what=what, text=text, connector=connector)


_LOADED = "L 300 c0 -> 256 async\nA 256\n"
_CHILDREN = "@a L 300 c0 -> 256 async\n@b L 300 c0 h128 -> 128 async\n@a A 256\n@b A 0\n"
_STORING = "L 300 c0 h0 -> 0\nA 0 [1-10]\nS 0+300 [1-10]\nplan store 0+256 [1-8] #1\n"
_ONE = "L 600 c0 h0 -> 0\nA 0\nS 0+600\n"

LOOK_ALIKES = [
    _alike("C14", "double-free", "set back to 0", "refs 1\nrefs 0\npins 0\nrefs 0"),
    _alike("C14", "double-free", "released in two parts", "refs 2\nrefs 1\nrefs 0"),
    _alike(
        "C15",
        "idle-preemption",
        "each child reports both",
        "".join(f"{n}: L 300 c0 -> 0\n{n}: A 0\n{n}: S 0+300\n" for n in "bc")
        + "".join(f"{n}: @{child} P free 2\n" for n in "bc" for child in ("one", "two")),
    ),
    _alike(
        "C15",
        "idle-preemption",
        "a deferred free, reported by the second",
        "P free 0\nb: P free 0\nc: P free 9\nd: P free 9",
    ),
    _alike(
        "C15",
        "idle-preemption",
        "steps between",
        "P free 0\nb: P free 0\nc: S 0+1\nd: P free 0\ne: P free 0",
    ),
    _alike(
        "C16",
        "block-reuse",
        "a shared prefix",
        f"{_STORING}b: L 300 c256 h256 -> 0\nb: A 0 [1-8 11 12]",
    ),
    _alike(
        "C16",
        "block-reuse",
        "given away when the store had ended",
        f"{_STORING}P\ndone #1\nb: L 128 c0 h0 -> 0\nb: A 0 [5-8]",
    ),
    _alike(
        "C16",
        "block-reuse",
        "kept until sent",
        f"{_STORING}end delayed\nb: L 64 c0 h0 -> 0\nb: A 0 [11 12]\ndone #1\nsent\nc: L 64 c0 h0 -> 0\nc: A 0 [1 2]",
    ),
    _alike(
        "C16",
        "block-reuse",
        "the last store is planned after the end, and waited for in the step that gives its block away",
        "step 0\nL 96 c0 h0 -> 0\nA 0 [1-3]\nS 0+96 [1-3]\nstep 1\nend\nb: L 128 c0 h0 -> 0\nb: A 0 [3-6]\n"
        "b: S 0+128 [3-6]\nplan store 64+32 [3] #1\nflush #1\ndone #1",
    ),
    _alike(
        "C16",
        "plan-blocks",
        "the last store is planned after the end, and its blocks are given away afterwards",
        "step 0\nL 96 c0 h0 -> 0\nA 0 [1-3]\nS 0+96 [1-3]\nstep 1\nend\nb: L 64 c0 h0 -> 0\nb: A 0 [7 8]\n"
        "b: S 0+64 [7 8]\nplan store 64+32 [3]\nstep 2\nb: S 64+64 [2 3]",
    ),
    _alike(
        "C16",
        "plan-blocks",
        "the last store is planned after the end, and copied before the step that its block is given to",
        "step 0\nL 96 c0 h0 -> 0\nA 0 [1-3]\nS 0+96 [1-3]\nstep 1\nend\nb: L 128 c0 h0 -> 0\nb: A 0 [3-6]\n"
        "b: S 0+128 [3-6]\nplan store 64+32 [3]",
    ),
    _alike(
        "C16",
        "plan-blocks",
        "the request has been resumed in other blocks, and has its old ones back",
        "step 0\nL 96 c0 h0 -> 0\nA 0 [1-3]\nS 0+96 [1-3]\nstep 1\nP\nb: L 64 c0 h0 -> 0\nb: A 0 [2 3]\nb: S 0+64 [2 3]\n"
        "step 2\nb: end\nL 97 c0 h0 -> 0\nA 0 [1-4]\nS 0+97 [1-4]\nplan store 0+96 [1-3]",
    ),
    _alike(
        "C16",
        "plan-blocks",
        "the blocks of the ended request are another one's by its prefix",
        "step 0\nL 96 c0 h0 -> 0\nA 0 [1-3]\nS 0+96 [1-3]\nstep 1\nend\nb: L 128 c96 h0 -> 0\nb: A 0 [1-4]\n"
        "b: S 96+32 [1-4]\nstep 2\nb: S 128+1 [5]\nplan store 0+96 [1-3]",
    ),
    _alike("C16", "stale-handoff", "read within the lease", "end delayed\nwait 29\nread\nwait 1\nfreed"),
    _alike("C16", "stale-handoff", "read twice, then freed", "end delayed\nread\nread\nsent\nfreed"),
    _alike(
        "C17", "stray-completion", "load and store end in one step", f"{_LOADED}R\nA 0\nS 256+44\nend delayed\nsent"
    ),
    _alike("C17", "stray-completion", "aborted while it loads", f"{_LOADED}end\nR"),
    _alike(
        "C17",
        "stray-completion",
        "a job of the epoch before",
        "plan store 0+256 #1\nP\nL 300 c0 -> 0\nA 0\nS 0+300\ndone #1",
    ),
    _alike(
        "C17",
        "stray-completion",
        "loaded again after a preemption",
        f"{_LOADED}R\nA 0\nS 256+44\nP\n{_LOADED}R\nA 0\nS 256+44\nend",
    ),
    _alike(
        "C17",
        "stray-completion",
        "each child of a MultiConnector is passed the report",
        f"{_CHILDREN}@b R\n@a R\n@a A 0\n@b A 0\nS 256+44",
    ),
    _alike("C17", "stray-completion", "the same, of one that was aborted", f"{_CHILDREN}end aborted\n@b R\n@a R"),
    _alike(
        "C17",
        "stray-completion",
        "received twice, since it was loaded twice",
        f"{_CHILDREN}@b R failed\n@a R failed\n{_CHILDREN}@b R\n@a R\n@a A 0\n@b A 0\nS 256+44",
    ),
    _alike(
        "C18",
        "load-store-overlap",
        "LMCache stores later chunks while it loads",
        "plan store 0+256 #1\nL 600 c0 h256 -> 256 async\nA 256\nplan load 0+256 #2",
        connector="LMCacheConnectorV1",
    ),
    _alike(
        "C18",
        "load-store-overlap",
        "the store had ended",
        "plan store 0+256 #1\ndone #1\nP\nL 600 c0 -> 256 async\nA 256\nplan load 0+256 #2\ndone #2\nR",
        connector="OffloadingConnector",
    ),
    _alike(
        "C19",
        "load-range",
        "blocks without tokens, and it only stores",
        "@a L 600 c0 -> 512\n@b L 600 c0 -> 256\n@a A 512 [1-19]\n@b A 0 [1-19]\nS 512+88 [1-19]\n@b plan store 0+600 [1-19]",
    ),
    _alike(
        "C19",
        "load-range",
        "the second, empty allocation of an asynchronous load",
        f"{_LOADED}R\nA 0\nplan load 0+256\nS 256+44",
    ),
    _alike(
        "C20",
        "async-declaration",
        "layer by layer, within the step",
        "L 300 c0 h256 -> 256\nA 256\nS 256+44\nload 256/256",
    ),
    _alike("C20", "async-declaration", "received, then run", f"{_LOADED}R\nA 0\nS 256+44"),
    _alike("C20", "async-declaration", "the guard loads nothing", "L 300 c0 h256 -> 0 async healed 256\nA 0\nS 0+300"),
    _alike(
        "C20", "async-declaration", "nothing to load, and later", "L 300 c0 -> later\nL 300 c0 h0 -> 0\nA 0\nS 0+300"
    ),
    _alike(
        "C21",
        "store-gap",
        "what was there already counts",
        f"{_ONE}plan store 0+256 keys a present\nplan store 256+256 keys b",
        connector="OffloadConnector",
    ),
    _alike(
        "C21",
        "store-gap",
        "from the hit on",
        "L 1100 c0 h512 -> 512\nA 512\nS 512+588\nstore 512+512",
        connector="LMCacheConnectorV1",
    ),
    _alike(
        "C21",
        "store-gap",
        "stored again from the start",
        f"{_ONE}store 0+512\nP\n{_ONE}store 0+512",
        connector="LMCacheConnectorV1",
    ),
    _alike(
        "C21",
        "self-eviction",
        "another request pushed it out",
        f"{_ONE}plan store 0+256 keys a\nevict a by b-cmpl-1-0-0123abcd\nplan store 256+256 keys b",
    ),
    _alike(
        "C21",
        "self-eviction",
        "the end of its prompt makes room for its beginning",
        f"{_ONE}plan store 0+256 keys a\nplan store 256+256 keys b\nevict a by b-cmpl-1-0-0123abcd\n"
        "evict b by cmpl-1-0-0123abcd\nplan store 0+256 keys a",
    ),
    _alike(
        "C21",
        "self-eviction",
        "others' chunks are kept, since they were used later",
        f"{_ONE}plan store 0+256 keys a\nb: plan store 0+256 keys x\nevict a by cmpl-1-0-0123abcd\nplan store 256+256 keys b",
    ),
    _alike(
        "C21",
        "self-eviction",
        "stored again before what follows",
        f"{_ONE}plan store 0+256 keys a\nevict a by cmpl-1-0-0123abcd\nplan store 0+256 keys a\nplan store 256+256 keys b",
    ),
    _alike(
        "C21",
        "store-gap",
        "the last chunk is not full",
        f"{_ONE}store 0+512\nS 600+1\nend",
        connector="LMCacheConnectorV1",
    ),
    _alike("C21", "store-gap", "asked not to save", f"{_ONE}S 600+1\nend", connector="LMCacheConnectorV1"),
    _alike(
        "C21",
        "store-gap",
        "output is not stored",
        f"{_ONE}store 0+512\nS 600+1\nS 900+1\nend",
        connector="LMCacheConnectorV1",
    ),
    _alike(
        "C21",
        "store-gap",
        "aborted in the middle of its prefill",
        "L 2048 c0 h0 -> 0\nA 0\nS 0+512\nstore 0+512\nS 512+512\nend",
        connector="LMCacheConnectorV1",
    ),
    _alike(
        "C21",
        "store-gap",
        "no room for the rest",
        f"{_ONE}plan store 0+256\nplan store 256+0\nS 600+1\nend",
        connector="OffloadConnector",
    ),
    _alike(
        "C22",
        "store-uncomputed",
        "up to the step's end",
        "L 512 c0 h0 -> 0\nA 0 [1-16]\nS 0+512 [1-16]\nplan store 0+512 [1-16]",
    ),
    _alike(
        "C22",
        "store-uncomputed",
        "drafts left out",
        "L 300 c0 h0 -> 0\nA 0 [1-10]\nS 0+300 [1-10]\nS 300+4 [] drafts 3\nplan store 256+45",
    ),
    _alike(
        "C22",
        "store-uncomputed",
        "there already, beyond what is computed",
        "L 600 c0 h0 -> 0\nA 0 [1-19]\nS 0+256 [1-19]\nplan store 256+256 keys b present",
    ),
    _alike("C23", "key-mismatch", "another salt", "<a> key k1 of tokens\n<b> key k2 of salted"),
    _alike(
        "C23", "key-mismatch", "another chunk before it", "<a> key k1 after k0 of tokens\n<b> key k2 after kx of tokens"
    ),
    _alike("C23", "key-mismatch", "the same in both", "<a> key k1 after k0 of tokens\n<b> key k1 after k0 of tokens"),
    _alike(
        "C24",
        "reset-hit",
        "vLLM's own cache was reset, the connector's was not",
        f"{_ONE}store 0+512\nb: L 600 c0 h512 -> 512\nb: A 512",
    ),
    _alike(
        "C24",
        "reset-hit",
        "the connector refused",
        f"{_ONE}plan store 0+512 keys a\nreset refused\nb: L 600 c0 h512 -> 512\nb: A 512",
    ),
    _alike(
        "C24",
        "reset-hit",
        "a hidden match of what was stored while it was reset",
        f"{_STORING}end\nreset\ndone #1\nb: L 300 c0 -> 256 async\nb: A 256",
        connector="OffloadingConnector",
    ),
    _alike(
        "C24",
        "reset-hit",
        "handed on by another engine",
        f"{_STORING}done #1\nend\nreset silent\nb: L 300 c0 -> 299 async\nb: A 299",
        connector="NixlConnector",
    ),
    _alike(
        "C24", "reset-hit", "stored again", f"reset\n{_ONE}plan store 0+512 keys a\nb: L 600 c0 h512 -> 512\nb: A 512"
    ),
]

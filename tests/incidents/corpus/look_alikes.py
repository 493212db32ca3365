"""Legal look-alikes of the rules about lookups, admissions, loads and what is waited for: C1 to C13."""

from __future__ import annotations

from incidents.incident import LookAlike


def _alike(
    of: str,
    rule: str,
    what: str,
    text: str,
    *,
    later_s: float = 0.0,
    connector: str = "Connector",
    groups: str | None = None,
) -> LookAlike:
    return LookAlike(of=of, rule=rule, what=what, text=text, later_s=later_s, connector=connector, groups=groups)


LOOK_ALIKES = [
    _alike(
        "C1", "stale-lookup", "a hit shorter than what is computed, answered 0", "L 749 c336 h256 -> 0\nA 0\nS 336+48"
    ),
    _alike(
        "C1", "stale-lookup", "remembered, and still right", "L 749 c0 h256 -> 256\nL 749 c0 h256 -> 256 cached\nA 256"
    ),
    _alike(
        "C1",
        "stale-lookup",
        "remembered as matched, and subtracted",
        "L 749 c0 h512 -> 512\nL 749 c256 h512 -> 256 cached",
    ),
    _alike(
        "C1", "over-report", "ask me later, twice", "L 749 c0 -> later\nL 749 c0 -> later\nL 749 c0 h256 -> 256\nA 256"
    ),
    _alike(
        "C1", "over-report", "output counts after a preemption", "L 300 c0 h256 -> 256\nA 256\nP\nL 340 c0 h320 -> 320"
    ),
    _alike("C1", "alloc-mismatch", "the answer was discarded", "L 749 c0 h256 -> 256\nA 0\nS 0+749"),
    _alike(
        "C1",
        "alloc-mismatch",
        "two children, each with its own answer",
        "@a L 749 c0 h256 -> 256\n@b L 749 c0 h512 -> 512\n@a A 0\n@b A 512\nS 512+237",
    ),
    _alike(
        "C2",
        "no-token-left",
        "asynchronous: the last token is taken back",
        "L 512 c0 h512 -> 512 async\nA 512\nR\nA 0\nS 511+1",
    ),
    _alike("C2", "no-token-left", "the last token is left to run", "L 512 c256 h512 -> 255\nA 255\nS 511+1"),
    _alike("C2", "no-token-left", "the last token is in another chunk", "L 513 c0 h512 -> 512\nA 512\nS 512+1"),
    _alike(
        "C3",
        "phantom-hit",
        "stored by another request",
        "plan store 0+256 keys a\nb: L 300 c0 h256 -> 256 keys a\nb: A 256",
    ),
    _alike(
        "C3",
        "phantom-hit",
        "a store that also keeps what it does not name",
        "plan store 0+256\nb: L 300 c0 h256 -> 256 keys a\nb: A 256",
    ),
    _alike(
        "C3",
        "phantom-hit",
        "evicted and stored again",
        "plan store 0+256 keys a\nevict a\nplan store 0+256 keys a\nb: L 300 c0 h256 -> 256 keys a\nb: A 256",
    ),
    _alike(
        "C4",
        "wrong-resume-offset",
        "a chunked prefill goes on where it stopped",
        "L 749 c0 h256 -> 256\nA 256\nS 256+48\nS 304+48",
    ),
    _alike(
        "C4",
        "wrong-resume-offset",
        "the load failed, and said so",
        "L 749 c0 h512 -> 512\nA 512 [1-24]\nerror [5]\nS 128+48 [1-24]",
    ),
    _alike(
        "C4",
        "wrong-resume-offset",
        "of two children one was chosen",
        "@a L 749 c32 h256 -> 224\n@b L 749 c32 h512 -> 480\n@a A 0\n@b A 480\nS 512+237",
    ),
    _alike(
        "C4",
        "plan-blocks",
        "the table grows, and the plan follows",
        "L 128 c0 h0 -> 0\nA 0 [1 2]\nS 0+64 [1 2]\nS 64+64 [3 4]\nplan store 0+128 [1-4]",
    ),
    _alike(
        "C4",
        "plan-blocks",
        "a resumption replaces the table",
        "L 64 c0 -> 0\nA 0 [1 2]\nS 0+64 [1 2]\nP\nL 65 c0 -> 0\nA 0 [7-9]\nS 0+65 [7-9]\nplan store 0+64 [7 8]",
    ),
    _alike(
        "C4",
        "unreported-blocks",
        "lookahead blocks for drafts",
        "L 60 c0 h0 -> 0\nA 0 [1-3]\nS 0+60 [1-3]\nS 60+4 [] drafts 3\nend [1-3]",
    ),
    _alike(
        "C4",
        "unreported-blocks",
        "decode takes a new block when it must",
        "L 32 c0 h0 -> 0\nA 0 [1]\nS 0+32 [1]\nS 32+1 [2]\nend [1 2]",
    ),
    _alike(
        "C4",
        "unreported-blocks",
        "a window's blocks are left behind",
        "L 64 c0 h0 -> 0\nA 0 [5 6]\nS 0+64 [5 6]\nS 64+1 [7]\nend [0 6 7]",
    ),
    _alike("C5", "block-shortage", "the last block is not full", "L 100 c0 h0 -> 0\nA 0\nS 0+100\nstore 0+100 in 4"),
    _alike("C5", "block-shortage", "one token in a block", "L 97 c0 h0 -> 0\nA 0\nS 0+97\nstore 96+1 in 1"),
    _alike(
        "C4",
        "wrong-resume-offset",
        "a hit that ends within a block of a recurrent group",
        "L 200 c160 -> 0\nA 0 [1-7 | 0 0 0 0 0 8 9]\nS 176+24 [1-7 | 0 0 0 0 0 8 9]",
        groups="full 32, state 32",
    ),
    _alike(
        "C4",
        "wrong-resume-offset",
        "the groups' hits differ, and with nothing to load vLLM goes back to the one that all of them share",
        "L 200 c64 -> 0\nA 0 [1-7 | 0 0 0 0 0 0 9]\nS 0+200 [1-7 | 0 0 0 0 0 0 9]",
        groups="full 32, state 32",
    ),
    _alike(
        "C4",
        "plan-blocks",
        "a state that vLLM has copied into a block of no table",
        "L 200 c0 h0 -> 0\nA 0 [1-6 | 0 0 0 0 0 8]\nS 0+176 [1-6 | 0 0 0 0 0 8]\nS 176+24 [7 | 9]\n"
        "plan store 160+32 [6 | 30] at 160,160",
        groups="full 32, state 32",
    ),
    _alike(
        "C4",
        "plan-blocks",
        "several groups without a declaration",
        "L 60 c0 h0 -> 0\nA 0 [1 2 | 5 6]\nS 0+60 [1 2 | 5 6]\nplan store 0+32 [1 | 5] at 0,0",
    ),
    _alike(
        "C5",
        "load-range",
        "the block in which a hit of a recurrent group ends is loaded whole",
        "L 200 c0 h112 -> 112\nA 112 [1-7 | 0 0 0 8 0 0 9]\nplan load 0+128 [1-4 | 8] at 0,96",
        groups="full 32, state 32",
    ),
    _alike("C5", "load-range", "begins at the start of a chunk", "L 749 c288 h512 -> 224\nA 224\nplan load 256+256"),
    _alike(
        "C5", "load-range", "a full hit's last block is loaded whole", "L 512 c0 h512 -> 511\nA 511\nplan load 0+512"
    ),
    _alike("C5", "load-range", "a window that is not aligned", "L 600 c0 h500 -> 500\nA 500\nplan load 201+299"),
    _alike(
        "C6",
        "retried-lookup",
        "asked three times, stored from the hit on",
        "L 2048 c0 h512 -> 512\nL 2048 c0 h512 -> 512\nL 2048 c0 h512 -> 512\nA 512\nS 512+512\nstore 512+512",
        connector="LMCacheConnectorV1",
    ),
    _alike(
        "C6",
        "retried-lookup",
        "another connector stores what it likes",
        "L 2048 c0 h512 -> 512\nL 2048 c0 h512 -> 512\nA 512\nS 512+1024\nstore 1024+512",
        connector="MooncakeStoreConnector",
    ),
    _alike(
        "C7",
        "incomplete-load",
        "the loss was reported",
        "L 300 c0 h256 -> 256\nA 256 [1-10]\nload 0/256\nerror [1-8]\nS 0+300 [1-10]",
    ),
    _alike("C7", "incomplete-load", "more came than was new", "L 5889 c5872 h5888 -> 16\nA 16\nload 256/16\nS 5888+1"),
    _alike(
        "C7",
        "incomplete-load",
        "an asynchronous load that failed aloud",
        "L 300 c0 h256 -> 256 async\nA 256\nload 0/256\nR failed\nS 0+300",
    ),
    _alike(
        "C7",
        "incomplete-load",
        "aborted in the step of the load: an error may have been on its way",
        "L 300 c0 h256 -> 256\nA 256\nS 256+44\nload 0/256\nend aborted",
    ),
    _alike(
        "C7",
        "incomplete-load",
        "the request fails in that step",
        "L 300 c0 h256 -> 256 async\nA 256\nload 0/256\nend error",
    ),
    _alike(
        "C7",
        "evicted-in-use",
        "evicted before the blocks were had, and asked again",
        "plan store 0+256 keys a\nb: L 300 c0 h256 -> 256 keys a\nevict a\nb: L 300 c0 h0 -> 0\nb: A 0",
    ),
    _alike(
        "C7",
        "evicted-in-use",
        "what is computed already may go",
        "plan store 0+256 keys a\nplan store 256+256 keys b\n"
        "b: L 600 c256 h512 -> 256 keys a,b\nevict a\nb: A 256\nb: plan load 256+256 keys b",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "recomputed from the first invalid block",
        "L 300 c0 h256 -> 256\nA 256 [1-10]\nS 256+44 [1-10]\nerror [5 6]\nS 128+172 []\nS 300+1 []",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "an asynchronous load failed in part, and the request resumes at the first failed block",
        "L 300 c0 h256 -> 256 async\nA 256 [1-8]\nerror [5 6]\nR\nA 0 [1-10]\nS 128+172 [1-10]\nS 300+1 []",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "an asynchronous load failed as a whole, and the same blocks are given out for the next try",
        "L 300 c0 h256 -> 256 async\nA 256 [1-8]\nR failed\nL 300 c0 h256 -> 256 async\nA 256 [1-8]\nR\nA 0 [1-10]\n"
        "S 256+44 [1-10]",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "its blocks went to another load when the failed request asked again and found no place",
        "L 300 c0 h256 -> 256 async\nA 256 [1-8]\nR failed\nL 300 c0 h256 -> 256 async\nb: L 300 c0 h256 -> 256 async\n"
        "b: A 256 [1-8]\nb: R\nb: A 0 [1-10]\nb: S 256+44 [1-10]",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "one owner recomputes a shared block",
        "A 0 [1 2]\nb: A 0 [1 3]\nS 0+64 [1 2]\nb: S 0+40 [1 3]\nerror [1]\nS 0+64 []\nb: S 40+1 []",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "who computes it again is halfway there, and comes to it in the reader's step",
        "step 1\nL 300 c0 h256 -> 256 async\nA 256 [1-8]\nerror [3-8]\nR\nA 0 [1-10]\nstep 2\nS 64+96 [1-10]\nstep 3\n"
        "b: L 300 c256 h0 -> 0\nb: A 0 [1-8 11 12]\nb: S 256+44 [1-8 11 12]\nS 160+140 []\nstep 4\nb: S 300+1 []",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "a reset of vLLM's cache preempts everybody, and the failed block is given to the first who is admitted again",
        "b: L 300 c0 h0 -> 0\nb: A 0 [11-20]\nb: S 0+300 [11-20]\nL 300 c0 h256 -> 256\nA 256 [1-10]\nS 256+44 [1-10]\n"
        "error [5]\ncache reset\nb: P\nb: L 301 c0 h256 -> 256\nb: A 256 [5 1-4 6-10]\nP\nL 300 c0 h0 -> 0\nA 0 [11-20]\n"
        "b: S 256+45 [5 1-4 6-10]\nS 0+300 [11-20]\nb: S 301+1 []",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "the error also names the blocks in vLLM's cache, into which the load did not copy",
        "b: L 300 c0 h0 -> 0\nb: A 0 [1-10]\nb: S 0+300 [1-10]\nb: end delayed\nL 300 c64 h128 -> 64 async\n"
        "A 64 [1 2 11 12]\nerror [1 2 11 12]\nR\nL 300 c64 h0 -> 0\nA 0 [1 2 11-18]\nS 64+236 [1 2 11-18]\nb: sent\n"
        "S 300+1 []",
    ),
    _alike(
        "C8",
        "failed-load-used",
        "the same, of blocks that an earlier load has filled",
        "step 1\nb: L 300 c0 h256 -> 256 async\nb: A 256 [1-8]\nb: R\nstep 2\nb: A 0 [1-10]\nb: S 256+44 [1-10]\n"
        "b: end delayed\nstep 3\nL 300 c64 h128 -> 64 async\nA 64 [1 2 11 12]\nerror [1 2 11 12]\nR\nstep 4\n"
        "L 300 c64 h0 -> 0\nA 0 [1 2 11-18]\nS 64+236 [1 2 11-18]\nb: sent\nstep 5\nS 300+1 []",
    ),
    _alike("C8", "failed-load-used", "the request ends instead", "L 300 c0 h256 -> 256\nA 256 [1-10]\nerror [5]\nend"),
    _alike(
        "C9",
        "stats-mismatch",
        "hits stay counted when the load fails, and it is admitted again",
        "L 600 c0 h256 -> 256 async\nA 256\nstats 600 cached 256 external 256 queried 600\nR failed\n"
        "L 600 c0 h256 -> 256 async\nA 256\nstats 600 cached 256 external 256 queried 600",
    ),
    _alike(
        "C9",
        "stats-mismatch",
        "each admission counts, with the output in N",
        "L 600 c0 h256 -> 256\nA 256\nS 256+344\nstats 600 cached 256 external 256 queried 600\nP\n"
        "L 640 c512 h600 -> 88\nA 88\nS 600+40\nstats 640 cached 600 external 88 queried 128",
    ),
    _alike(
        "C9",
        "stats-mismatch",
        "discarded, and not counted",
        "L 401 c0 h384 -> 384\nA 0\nS 0+401\nstats 401 cached 0 external 0 queried 0",
    ),
    _alike("C11", "partial-hit", "the smallest was answered", "rank 0 h512\nrank 1 h256\nL 600 c0 h256 -> 256\nA 256"),
    _alike("C11", "partial-hit", "shared keys: one rank answers", "rank 0 h512\nL 600 c0 h512 -> 512\nA 512"),
    _alike("C12", "stuck-load", "later, while a store is pending", "L 600 c0 -> later\nL 600 c0 -> later", later_s=100),
    _alike("C12", "stuck-load", "a slow prefill within its lease", "L 600 c0 -> 599 async\nA 599", later_s=119),
    _alike("C12", "stuck-load", "aborted", "L 600 c0 -> 599 async\nA 599\nend", later_s=130),
    _alike("C12", "never-scheduled", "promoted at once", "L 600 c0 -> 599 async\nA 599\nR\nA 0\nS 599+1", later_s=900),
    _alike("C12", "never-scheduled", "a busy engine, after its load", "L 600 c0 -> 599 async\nA 599\nR", later_s=100),
    _alike("C12", "never-scheduled", "ended before it ran", "L 600 c0 -> 599 async\nA 599\nR\nend", later_s=900),
    _alike("C13", "late-free", "a lease of 480 s", "end delayed", later_s=480),
    _alike("C13", "late-free", "freed when the lease ended", "end delayed\nwait 480\nfreed expired", later_s=900),
    _alike("C13", "late-free", "aborted, and its load came", "L 600 c0 -> 599 async\nA 599\nend\nR", later_s=900),
]

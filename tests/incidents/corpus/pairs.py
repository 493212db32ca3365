"""Incidents between an engine that prefills and one that decodes, with both sides' events, and what resembles them.

The prefill engine is `engine`, the other one `<d>`.
"""

from __future__ import annotations

from incidents.incident import Incident, LookAlike, sglang, vllm
from kvtrail.tracer.events.events import STAND_IN_DIGEST


def _prefill(tokens: int, prompt: int, digest: str = "a", *, name: str = "", more: str = "") -> str:
    """The prefill engine's part up to the request's end; its KV is kept."""
    calls = (
        f"start {prompt}", f"L {prompt} c0 -> 0", "A 0", f"S 0+{prompt}", f"gives h1 {tokens}/{prompt} of {digest}{more}",
        f"end delayed length_capped handoff computed {tokens} lease 30",
    )  # fmt: skip
    return "".join(f"{name}{call}\n" for call in calls)


def _decode(
    tokens: int | str,
    prompt: int,
    digest: str = "a",
    *,
    name: str = "",
    key: str = "h1",
    load: int = 0,
    loaded: bool = True,
) -> str:
    """The other engine's part, up to the end of its load, or to its begin."""
    load = load or prompt - 1
    calls = (
        f"start {prompt}", f"takes {key} {tokens}/{prompt} of {digest}", f"L {prompt} c0 -> {load} async", f"A {load}",
        *(["R"] if loaded else []),
    )  # fmt: skip
    return "".join(f"<d> {name}{call}\n" for call in calls)


def _declined(side: str) -> str:
    """The other engine's part where the request never reaches its scheduler: vLLM's stand-in begins and ends at once."""
    return f"<d> s: start 1\n<d> s: {side}\n<d> s: end aborted computed 0\n"


def _reads(*posted: tuple[int, int, int]) -> str:
    """Reads that ranks of the other engine begin: of each the rank, from which rank, and the number of expected reports."""
    return "".join(f"<d> xfer read posted by {own} rank {rank} peer engine of {of}\n" for own, rank, of in posted)


def _reading(*posted: tuple[int, int, int]) -> str:
    """The other engine's part, with these reads, which end well."""
    ended = "".join(f"<d> xfer read done by {own} rank {rank} peer engine\n" for own, rank, _ in posted)
    return _decode(600, 600, loaded=False) + _reads(*posted) + ended + "<d> R\n"


_TAKEN = _prefill(600, 600) + _decode(600, 600, loaded=False)


def _failing(count: int, *, first: int = 0, at_once: bool = False, last: str = "R failed", peers: int = 1) -> str:
    """The other engine's part: loads that fail, one after the other or all at once, but maybe the last."""
    numbers = range(first, first + count)
    begun = [
        "".join(
            f"<d> r{n}: {call}\n"
            for call in ("start 600", f"takes h{n} 600/600 of a from p{n % peers}", "L 600 c0 -> 599 async", "A 599")
        )
        for n in numbers
    ]
    ended = [f"<d> r{n}: {last if n == numbers[-1] else 'R failed'}\n" for n in numbers]
    if at_once:
        return "".join(begun) + "".join(ended)
    return "".join(text for both in zip(begun, ended, strict=True) for text in both)


INCIDENTS = [
    Incident(
        id="sglang-39846",
        of="N3",
        url=sglang(39846),
        text="""
            start 600
            L 600 c0 -> 599 async  # two components of the state; the lengths are ours
            A 599
            xfer read posted 19 rank 0 peer p of 1
            xfer read posted 1 rank 1 peer p of 1
            xfer read done rank 0 peer p
            R
            xfer read done rank 1 peer p
        """,
        rule="incomplete-load",
        numbers={"where": "unread", "allocated": 599, "reads": 1, "rank": 0},
        says="was reported as received, and of its reads 1 had not ended",
    ),
    Incident(
        id="vllm-21570",
        of="C16",
        url=vllm(21570),
        connector="NixlConnector",
        text=f"""
            {_prefill(600, 600)}
            # no numbers in the thread: the decode engine's queue is longer than the prefill engine's patience
            wait 30
            freed expired
            sent
            {_decode(600, 600)}
            read
        """,
        rule="stale-handoff",
        numbers={
            "where": "taken",
            "giver": "engine",
            "other": "cmpl-1-0-0123abcd",
            "expired": True,
            "late_s": 0.007,
            "given_out": None,
        },
        says="the lease had run out",
        also=("stale-handoff",),
    ),
    Incident(
        id="vllm-38900",
        of="N11",
        url=vllm(38900, "pull"),
        connector="NixlConnector",
        text=f"""
            {_prefill(600, 600)}
            # n = 3: the children of one prompt have one reference; no lengths in the thread
            {_decode(600, 600, name="s0: ")}
            read
            sent
            {_decode(600, 600, name="s1: ")}
        """,
        rule="duplicate-load",
        numbers={"where": "received twice", "key": "transfer_id:h1", "other": "s0-cmpl-1-0-0123abcd", "taker": "d"},
        says="keeps the blocks for one reader",
    ),
    Incident(
        id="vllm-50558",
        of="N11",
        url=vllm(50558, "pull"),
        connector="NixlConnector",
        block=64,
        text=f"""
            {_prefill(2048, 2048)}
            # the proxy has appended the first generated token to the prompt; 1984 tokens were in the decode engine's cache
            <d> start 2049
            <d> takes h1 2048/2049 of a
            <d> L 2049 c1984 -> 65 async
            <d> A 65
        """,
        rule="handoff-mismatch",
        numbers={"where": "more tokens", "handed": 2048, "computed": 1984, "allocated": 65, "beyond": 1},
        says="1 more than there are",
    ),
    Incident(
        id="vllm-52234-reference",
        of="N11",
        url=vllm(52234),
        connector="NixlConnector",
        text=f"""
            {_prefill(600, 600, "first")}
            # no lengths in the thread: the reference of an earlier prompt is given to another one
            {_decode(600, 700, "second", load=600)}
        """,
        rule="handoff-mismatch",
        numbers={
            "where": "another prompt",
            "giver": "engine",
            "other": "cmpl-1-0-0123abcd",
            "given_prompt": 600,
            "prompt": 700,
            "compared": 600,
            "handed": 600,
            "shorter": False,
        },
        says="the digests of the 600 tokens that are handed over",
    ),
    Incident(
        id="vllm-52234-blocks",
        of="N11",
        url=vllm(52234),
        connector="NixlConnector",
        text=f"""
            {_prefill(600, 600, more=" [1-19]")}
            # "out-of-range `remote_block_ids`, correct group shape"; no ids in the thread
            <d> start 600
            <d> takes h1 600/600 of a [1-18 9019]
        """,
        rule="handoff-mismatch",
        numbers={
            "where": "other blocks",
            "giver": "engine",
            "other": "cmpl-1-0-0123abcd",
            "given_blocks": 19,
            "blocks": 19,
            "at": 19,
        },
        says="they differ from number 19 on",
    ),
    Incident(
        id="vllm-27083",
        of="N7",
        url=vllm(27083),
        connector="NixlConnector",
        text=f"""
            # no lengths in the thread: each handshake ends with another engine's id than the expected one, the decode
            # engine "fails to get KV cache from the prefill node and re-computes the prompt"
            {_failing(9)}
        """,
        rule="peer-always-failing",
        numbers={"peer": "p0", "failed": 8, "gone": None},
        says="8 in a row",
    ),
    Incident(
        id="vllm-49796",
        of="C13",
        url=vllm(49796, "pull"),
        connector="MooncakeConnector",
        text=f"""
            {_prefill(600, 600)}
            # no lengths in the thread: a client chooses a `transfer_id` that is in use
            {_prefill(900, 900, "b", name="b: ")}
        """,
        rule="ambiguous-handoff",
        numbers={"name": "transfer_id:h1", "other": "cmpl-1-0-0123abcd"},
        says="kept under the same name",
    ),
    Incident(
        id="vllm-46332",
        of="C16",
        url=vllm(46332, "pull"),
        connector="MoRIIOConnector",
        text=f"""
            {_prefill(600, 600)}
            # no lengths in the thread: four ranks prefill and eight decode, so that two read from each, and the first
            # report, as MoRIIO counted until then, ends the sending
            {_decode(600, 600, loaded=False)}
            read of 2
            sent
            read of 2
            <d> R
        """,
        rule="miscounted-readers",
        numbers={"readers": 1, "expected": 2, "reports": 1, "rank": 0},
        says="when 1 of them had reported",
    ),
    Incident(
        id="vllm-43541",
        of="C13",
        url=vllm(43541, "pull"),
        connector="MoRIIOConnector",
        text=f"""
            {_prefill(600, 600)}
            {_decode(600, 600)}
            # the report has the decode engine's own id, which the prefill engine does not know
            wait 60
            freed expired
            sent
            wait 30
        """,
        rule="unacknowledged-handoff",
        numbers={"giver": "engine", "other": "cmpl-1-0-0123abcd", "received": True, "quiet_s": 10},
        says="not all of their readers had reported to need them no more",
    ),
    Incident(
        id="vllm-18590",
        of="C13",
        url=vllm(18590, "pull"),
        connector="NixlConnector",
        block=16,
        text=f"""
            {_prefill(24, 24)}
            # no lengths in the thread: short prompts are left out of what the decode engine's worker is to do, and so is
            # the report for which the prefill engine waits
            <d> start 24
            <d> takes h1 24/24 of a
            <d> L 24 c0 -> 0
            <d> A 0
            <d> S 0+24
            <d> end
            wait 30
            freed expired
            sent
            wait 30
        """,
        rule="unacknowledged-handoff",
        numbers={
            "giver": "engine",
            "other": "cmpl-1-0-0123abcd",
            "received": False,
            "outcome": "stopped",
            "quiet_s": 10,
        },
        says="ended without that",
    ),
    Incident(
        id="vllm-rbln-1024",
        of="C16",
        url="https://github.com/RBLN-SW/vllm-rbln/pull/1024",
        connector="NixlPushConnector",
        text=f"""
            {_prefill(600, 600, more=" [1-19]")}
            xfer write posted 19 peer d for b
            # the engine waits for its write for some time, and then releases the blocks that the write still reads
            wait 5
            sent
            b: L 64 c0 -> 0
            b: A 0 [3 4]
            wait 2
            xfer write done peer d for b
        """,
        rule="stale-handoff",
        numbers={"where": "given", "late_s": 2.004, "expired": False, "state": "done"},
        says="its own write of them to the other engine ended",
    ),
    Incident(
        id="vllm-43509",
        of="C13",
        url=vllm(43509, "pull"),
        connector="NixlConnector",
        text=f"""
            {_prefill(600, 600)}
            # of two ranks that read from one, the first report comes before the worker knows the request, and is dropped; no
            # lengths in the thread
            {_decode(600, 600, loaded=False)}
            read by d-0 of 2
            read by d-1 of 2
            <d> R
            wait 30
            freed expired
            sent
            wait 30
        """,
        rule="unacknowledged-handoff",
        numbers={"written": False, "kept_s": 30.002, "reports": 2},
        says="the last of its 2 readers reported, and its blocks were kept until the lease ran out",
    ),
]


def _alike(of: str, rule: str, what: str, text: str) -> LookAlike:
    return LookAlike(of=of, rule=rule, what=what, text=text, connector="NixlConnector")


LOOK_ALIKES = [
    _alike("C16", "stale-handoff", "read in time", f"{_prefill(600, 600)}{_decode(600, 600)}read\nsent"),
    _alike(
        "C16", "stale-handoff", "two ranks read in time", f"{_prefill(600, 600)}{_decode(600, 600)}read\nread\nsent"
    ),
    _alike(
        "C16",
        "stale-handoff",
        "the lease ended and the load failed",
        f"{_prefill(600, 600)}wait 30\nfreed expired\nsent\n{_decode(600, 600).replace('> R', '> R failed')}",
    ),
    _alike(
        "C16",
        "miscounted-readers",
        "both readers have reported",
        f"{_prefill(600, 600)}{_decode(600, 600)}read by r0 of 2\nread by r1 of 2\nsent",
    ),
    _alike(
        "C16",
        "miscounted-readers",
        "one report came twice, and the other one in time",
        f"{_prefill(600, 600)}{_decode(600, 600)}read by r0 of 2\nread by r0 of 2\nread by r1 of 2\nsent",
    ),
    _alike(
        "C16",
        "miscounted-readers",
        "the lease ran out when one of two had reported",
        f"{_prefill(600, 600)}{_decode(600, 600)}read by r0 of 2\nwait 30\nfreed expired\nsent",
    ),
    _alike(
        "C16",
        "miscounted-readers",
        "the report of the only reader came again when all was over",
        f"{_prefill(600, 600)}{_decode(600, 600)}read by r0 of 1\nsent\nread by r0 of 1",
    ),
    _alike(
        "C16",
        "miscounted-readers",
        "two ranks read from one, and their reports say so",
        f"{_prefill(600, 600)}{_reading((0, 0, 2), (1, 0, 2))}read by r0 of 2\nread by r1 of 2\nsent",
    ),
    _alike(
        "C16",
        "miscounted-readers",
        "each of two ranks reads from two others",
        f"{_prefill(600, 600)}{_reading((0, 0, 1), (0, 1, 1), (1, 2, 1), (1, 3, 1))}",
    ),
    _alike(
        "N3",
        "incomplete-load",
        "all of its reads have ended",
        f"{_prefill(600, 600)}{_reading((0, 0, 1), (0, 1, 1))}<d> A 0\n<d> S 599+1",
    ),
    _alike(
        "N3",
        "incomplete-load",
        "a read that failed is begun again",
        f"{_TAKEN}{_reads((0, 0, 1))}<d> xfer read failed rank 0 peer engine\n{_reads((0, 0, 1))}"
        "<d> xfer read done rank 0 peer engine\n<d> R",
    ),
    _alike(
        "N3", "incomplete-load", "it failed before it read", f"{_TAKEN}<d> xfer read failed peer engine\n<d> R failed"
    ),
    _alike("N3", "incomplete-load", "its caller has ended it", f"{_TAKEN}{_reads((0, 0, 1))}<d> end aborted\n<d> R"),
    _alike(
        "N3",
        "incomplete-load",
        "its blocks are reported as not loaded while another read goes on",
        f"{_TAKEN}{_reads((0, 0, 1), (0, 1, 1))}<d> xfer read failed rank 0 peer engine\n<d> error [1 2]\n<d> R",
    ),
    _alike("N3", "incomplete-load", "the other engine writes", f"{_TAKEN}<d> sent registration peer engine\n<d> R"),
    _alike(
        "N3",
        "incomplete-load",
        "nothing is needed, which is said",
        f"{_prefill(600, 600)}{_reading((0, 0, 1))}<d> b: start 600\n<d> b: L 600 c0 -> 599 async\n<d> b: A 599\n"
        "<d> b: sent done peer engine\n<d> b: R",
    ),
    _alike(
        "C16",
        "miscounted-readers",
        "a rank reads again after its load has failed",
        f"{_prefill(600, 600)}{_reading((0, 0, 1))}<d> xfer read failed peer engine\n{_reads((0, 0, 1))}",
    ),
    _alike(
        "N11", "handoff-mismatch", "a prefill of one token less", f"{_prefill(599, 600)}{_decode(599, 600)}read\nsent"
    ),
    _alike(
        "N11",
        "handoff-mismatch",
        "the engine that decodes refused the request, and vLLM's stand-in has its blocks freed",
        f"{_prefill(600, 600)}{_declined('declines h1 600/1')}read\nsent",
    ),
    _alike(
        "N11",
        "handoff-mismatch",
        "a recorder that knows no stand-ins takes it for a reader, with the stand-in's prompt",
        f"{_prefill(600, 600)}{_declined(f'takes h1 600/1 of {STAND_IN_DIGEST}')}read\nsent",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "one server refuses the request, and another one takes it",
        f"{_prefill(600, 600)}{_declined('declines h1 600/1')}{_decode(600, 600, name='b: ')}read\nsent",
    ),
    _alike(
        "N11",
        "handoff-mismatch",
        "the router drops the number of tokens",
        f"{_prefill(599, 600)}{_decode('-', 600, 'b', load=599)}read\nsent",
    ),
    _alike(
        "N11",
        "duplicate-load",
        "again after a load that failed",
        f"{_prefill(600, 600)}{_decode(600, 600, name='b: ').replace('R', 'R failed')}{_decode(600, 600)}read\nsent",
    ),
    _alike(
        "N11",
        "duplicate-load",
        "two hand-offs of one prompt",
        f"{_prefill(600, 600)}{_decode(600, 600)}read\nsent\n{_decode(600, 600, name='b: ', key='h2')}",
    ),
    _alike(
        "C13",
        "ambiguous-handoff",
        "the name is used again after the blocks were given back",
        f"{_prefill(600, 600)}{_decode(600, 600)}read\nsent\n{_prefill(600, 600, name='b: ')}",
    ),
    _alike(
        "C13",
        "ambiguous-handoff",
        "asked again with one name after an abort, which keeps nothing",
        "start 600\nL 600 c0 -> 0\nA 0\nS 0+600\nend aborted handoff\n" + _prefill(600, 600, name="b: "),
    ),
    _alike(
        "N11",
        "ambiguous-handoff",
        "two requests with one prompt",
        f"{_prefill(600, 600)}{_prefill(600, 600, name='b: ').replace('h1', 'h2')}",
    ),
    _alike(
        "N11",
        "handoff-mismatch",
        "the blocks that are kept",
        f"{_prefill(600, 600, more=' [1-19]')}<d> start 600\n<d> takes h1 600/600 of a [1-19]",
    ),
    _alike(
        "N11",
        "handoff-mismatch",
        "block ids on one side only",
        f"{_prefill(600, 600, more=' [1-19]')}<d> start 600\n<d> takes h1 600/600 of a",
    ),
    _alike("N7", "peer-always-failing", "each eighth load goes well", _failing(8, last="R") + _failing(7, first=8)),
    _alike(
        "N7", "peer-always-failing", "twenty that were under way when the network failed", _failing(20, at_once=True)
    ),
    _alike("N7", "peer-always-failing", "loads from two engines fail, fewer from each", _failing(14, peers=2)),
    _alike("N11", "handoff-mismatch", "all but the last token", f"{_prefill(600, 600)}{_decode(600, 600)}read\nsent"),
    _alike(
        "N11",
        "handoff-mismatch",
        "the tail is computed again",
        f"{_prefill(576, 600)}{_decode(576, 600, load=576)}read\nsent",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "it has not been taken",
        f"{_prefill(600, 600)}wait 30\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C16",
        "stale-handoff",
        "the write ends, and then its blocks are given back",
        f"{_prefill(600, 600)}xfer write posted 19 peer d for b\nwait 2\nxfer write done peer d for b\nsent\nwait 60",
    ),
    _alike(
        "C16",
        "stale-handoff",
        "the lease ends, and then a write fails that was never posted",
        f"{_prefill(600, 600)}wait 30\nfreed expired\nsent\nxfer write failed peer d for b !no blocks were named\nwait 60",
    ),
    _alike(
        "C16",
        "stale-handoff",
        "blocks of another rank are given back while one writes",
        f"{_prefill(600, 600)}xfer write posted by 1 19 peer d for b\nxfer write done peer d for b\n"
        "xfer write done by 1 peer d for b\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "the lease ends in the step in which the last report is looked at",
        f"{_prefill(600, 600)}{_decode(600, 600)}wait 30\nread by d-0 of 1\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "one of two ranks fails to read and reports nothing",
        f"{_prefill(600, 600)}{_decode(600, 600).replace('> R', '> R failed')}read by d-0 of 2\n"
        "wait 30\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "one rank reports twice, and the request waits for the other one in the queue",
        f"{_prefill(600, 600)}{_decode(600, 600, loaded=False)}read by d-0 of 2\nread by d-0 of 2\n"
        "wait 30\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "of two ranks, one was written to, and the other one never asked",
        f"{_prefill(600, 600)}xfer write posted rank 0 peer d for cmpl-1-0-0123abcd of 2\n"
        "xfer write done rank 0 peer d for cmpl-1-0-0123abcd of 2\nwait 30\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "a write has failed, and another one is open, when the lease ends",
        f"{_prefill(600, 600)}xfer write posted peer d for a\nxfer write posted by 1 peer d for a\n"
        "xfer write failed peer d for a !ERR\nwait 30\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "its load has failed",
        f"{_prefill(600, 600)}{_decode(600, 600).replace('> R', '> R failed')}wait 30\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "its caller has ended it, and the report says so",
        f"{_prefill(600, 600)}<d> start 600\n<d> takes h1 600/600 of a\n<d> end aborted\nread\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "its load has failed, and then its caller has ended it",
        f"{_prefill(600, 600)}{_decode(600, 600).replace('> R', '> R failed')}<d> end aborted\n"
        "wait 30\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "a vLLM before 0.30 reports a read that failed as received, and its blocks as not loaded",
        _prefill(600, 600)
        + _decode(600, 600).replace("<d> R", "<d> error [1 2]\n<d> R")
        + "wait 30\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "a vLLM before 0.30 reports a read as received that failed when its caller had ended the request",
        _prefill(600, 600)
        + _decode(600, 600).replace("<d> R", "<d> end aborted\n<d> xfer read failed !ERR\n<d> R")
        + "wait 30\nfreed expired\nsent\nwait 60",
    ),
    _alike(
        "C13",
        "unacknowledged-handoff",
        "the report of one of two ranks is there",
        f"{_prefill(600, 600)}{_decode(600, 600)}read\nwait 30\nfreed expired\nsent\nwait 60",
    ),
]

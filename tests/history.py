"""A small language for histories in tests: one line, one call. A history is complete: the store is empty until something is
stored in it.

    L 749 c336 h256 -> 256 cached      a lookup: tokens, computed, matched (h? hides it), the answer
    L 749 c336 h256 -> 0 healed 256    the guard replaced 256 by 0
    L 749 c336 h256 -> 0 fresh         the connector says that it computed the answer again
    L 749 c0 -> later                  'ask me later'; `async` after an answer makes it asynchronous
    L 749 c0 h64 -> 64 keys a,b        the keys of the chunks that it claims
    L 749 c0 -> !KeyError: 'x'         a lookup that raised
    rank 1 h256                        what rank 1 answered to the lookup that comes
    group 1 h48 at 32,48               what KV cache group 1 holds: up to 48 tokens, objects that end at 32 and 48
    A 256 [1 2 5-8]                    an allocation for 256 external tokens, and the block table
    A 256 [1-8 | 20-27]                the tables of two KV cache groups; 0 is the null block
    A 256 !Mismatch ...                an allocation that raised
    S 336+48 [4] drafts 3              a step: from 336, 48 tokens; blocks that it adds; speculative tokens among them
    P free 7                           a preemption: the next epoch begins; free blocks after it
    plan load 0+64 [1 2] keys a #7     the connector's plan: tokens, blocks, keys, number of the transfer
    plan store 64+64 [3 4] present     `present`: the store held it already
    plan load 0+64 [1 2 | 8] at 0,32   of two KV cache groups, from these tokens on
    done #7                            the transfer has ended; `failed` after it
    flush #7                           the workers must wait for it
    load 0/130                         a worker's load: tokens, of how many; `rank 1` after it; `!text` an error
    load 256+100/130 in 5              from token 256 on, into 5 different blocks
    store 256+256                      a store, from a log; `!text` an error
    store 256+256 in 7                 a worker's store from 7 different blocks
    failure build_connector_meta !text the call raised; `rank 1` before the error is a worker's
    R                                  the asynchronous load was received; `failed` after it
    error [5 6]                        blocks with a failed load
    prefetch 0+512 keys a,b            into a nearer tier; the chunks may be named
    refs -1, pins -1                   of a stored chunk
    check loaded 64 unknown 3          a worker's look at blocks: computed, loaded, admitted, held; `rank 1` after it
    check held 9 wrong rot 12@256      what is wrong, the block and its first token, for each wrong block; after it
                                       `holds r-7@256`, `from r-9`
    check loaded 3 wrong drift 12@256 holds zeros more 5 healed
    check computed 2 tells a:17@0 b:4@16       for other engines: hash, fingerprint, first token; a small fingerprint stands
                                       for a random one; `group 1` before it, `as plain` after it: the request's adapter
                                       and salt
    stats 100 cached 50 external 60 queried 40
    freed expired, read                the blocks of an ended request
    read by d-0 of 2                   a reader's name, and how many reports it expects there to be
    xfer read posted 4 rank 1          a worker reads 4 blocks of another engine's rank 1; `write`; `done`, `failed` in place
                                       of `posted`; `peer d for b` names the other engine, and its request as in
                                       `b: ` (`-`: the one without a name); `of 2` reports expected, `[1 2] of [7 8]`
                                       its own blocks and the other engine's; `!text` an error
    sent registration                  a notification to another engine, with the same; `got registration` from it
    lease 20                           another engine asks to keep them for 20 seconds from here on
    gives h1 600/601 of a              what is handed over: its name, tokens (- if it is not said) of a prompt, and
                                       the digest of these tokens; `takes` on the other engine; after it `in
                                       push`, `from p` and the blocks `[1-19]`
    key k1 after k0 of digest          a chunk's key
    holds a,b                          a resync of all chunks of the store; in parts: `holds a ..`, `holds .. b`
    evict a, reset, reset refused      `reset silent` answered None
    evict a by cmpl-1-0-0123abcd       to make room for a chunk of this request
    start 749                          the request begins, with 749 tokens
    start 749 as lora-a                the adapter and salt that its KV depends on
    start 749 as lora-a version 1      and that adapter's version
    start 96 of a b c                  its full blocks with their hashes: each reported once, as recorders do
    cache + a b - c                    vLLM's own cache stored blocks, and removed one; `cache 0`: it was emptied; `cache
                                       late`: nothing was reported before; `cache` again: no more reports
    cache of cpu by a + a b            the connector's store, which reports its contents the same way
    cache reset                        vLLM has reset its own cache
    evict =a, keys =a,=b               a key that is the hash of a block
    end, end delayed, sent             the request ends; its blocks are kept; they are given back
    end [1 2]                          the blocks that it held at its end
    end aborted, end length_capped     how it ended; `stopped` if nothing is said
    end delayed lease 30               its blocks are kept for 30 seconds at most
    end handoff computed 600           it was to be handed on to another engine; 600 of its tokens were computed
    end handoff output 1 computed 0 []     after a token of output; no blocks are left
    step 7                             what follows is of the scheduler's step 7, until another is named
    cut off                            its engine ended before it did
    wait 130                           130 seconds pass, in which every recorder sends heartbeats
    wait 130 idle                      the same, and the scheduler makes no step; `busy`: it makes some
    wait 130 spare                     the same, and it reports spare capacity for one more request; `full`: it had none
    wait 130 paused                    the scheduler is paused, and makes no step
    wait 130 stuck                     the scheduler makes no step, and runs a request; `rests`: it runs none
    wait 130 silent                    nothing is heard of anybody
    b: L 749 ...                       another request of the same engine
    @nixl L 749 ...                    a child of a MultiConnector; `@multi` is that one itself, if it is traced
    <decoder> key k1 ...               another engine, with a recorder of its own
    # anything                         a remark

Requests begin by themselves, if nothing is said of it. Times count up by a millisecond a line. A block
holds 32 tokens if nothing else is said, a chunk `chunk` of them. A history that came from a log
(`from_log`) has no heartbeats.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable, Sequence
from struct import pack
from typing import Any

from msgspec import structs

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events import events as e
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.cache_groups import CHUNKED, FULL, MAMBA, SLIDING, CacheGroup, declaration
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.history import History, Moment, in_order
from kvtrail.tracer.ingest.logs.event_spans import span_of
from kvtrail.tracer.rules.rule import Rule

SECOND_NS = 10**9
MILLISECOND_NS = 10**6
HEARTBEAT_NS = 5 * SECOND_NS
"""Between two heartbeats of a recorder."""
STEPS = {"idle": 0, "paused": 0, "stuck": 0, "rests": 0, "busy": 1000, "spare": 1000, "full": 1000}
"""Steps of the scheduler between two heartbeats."""
RUNNING = {"stuck": 1, "paused": 1, "full": 1, "rests": 0}
"""Requests that it runs, where it reports that."""
START_NS = 1_764_725_076_000_000_000  # 2025-12-03 01:24:36 UTC, when LMCache #2158 was logged
BLOCK_SIZE = 32
REQUEST = "cmpl-1-0-0123abcd"
"""What the engine calls a request without a name; one with a name has it before this."""

Fields = dict[str, Any]
Line = tuple[str, type[Event], Callable[[re.Match[str]], Fields]]


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _blocks(text: str | None) -> tuple[int, ...] | None:
    """The ids of all KV cache groups."""
    return None if text is None else _ids(text.replace("|", " "))


def _in_groups(text: str | None) -> Fields:
    """A table, with how many blocks each group has."""
    by_group = None if text is None or "|" not in text else tuple(len(_ids(group)) for group in text.split("|"))
    return {"blocks_ids": _blocks(text), "blocks_by_group": by_group}


def groups_declared(text: str) -> str | None:
    """`full 32, window 32 128`, `full 32, state 32 align`: kinds of KV cache groups, each with its block size, and with its
    window or vLLM's mode of keeping states; `checkpoints` after that, where a step writes some before its end."""
    kinds = {"full": FULL, "window": SLIDING, "chunked": CHUNKED, "state": MAMBA}
    words = [group.split() for group in text.split(",")]
    return declaration(
        CacheGroup(
            kinds.get(kind, kind),
            int(size),
            next((int(word) for word in more if word.isdecimal()), None),
            cache_mode=next((word for word in more if word in ("align", "all", "none")), None),
            checkpoints=1 if "checkpoints" in more else None,
        )
        for kind, size, *more in words
    )


def _ids(text: str) -> tuple[int, ...]:
    spans = (span.partition("-") for span in text.split())
    return tuple(block for first, _, last in spans for block in range(int(first), int(last or first) + 1))


def _keys(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(map(_key, text.split(",")))


def _key(text: str) -> str:
    return hash_of(text[1:]).hex() if text.startswith("=") else text


def hash_of(block: str) -> bytes:
    """The hash of a block with this name, as it is recorded."""
    return block.encode().rjust(semconv.HASH_BYTES, b".")


def _hashes(text: str | None) -> bytes:
    return b"".join(map(hash_of, (text or "").split()))


def _cache(m: re.Match[str]) -> Fields:
    changes: list[int] = []
    names: list[str] = []
    for sign, blocks in re.findall(r"([-+0])((?: \w+)*)", m["changes"]):
        some = blocks.split()
        names += some
        changes.append(0 if sign == "0" else len(some) if sign == "+" else -len(some))
    reported = {"cache_changes": tuple(changes), "block_hashes": _hashes(" ".join(names)), "cache_whole": not m["late"]}
    return reported | {"pool_tier": m["tier"], "pushed_by": m["by"]}


def _lookup(m: re.Match[str]) -> Fields:
    return {
        "total": int(m["total"]),
        "computed": int(m["computed"]),
        "matched": None if m["matched"] in (None, "?") else int(m["matched"]),
        "returned": None if m["answer"] == "later" or m["error"] else int(m["answer"]),
        "error": m["error"],
        "is_async": bool(m["is_async"]),
        "cached": None if m["cached"] is None else m["cached"] == " cached",
        "refused": _number(m["healed"]),
        "chunk_keys": _keys(m["keys"]),
    }


def _plan(m: re.Match[str]) -> Fields:
    return {
        "start": _number(m["start"]),
        "count": int(m["count"]),
        **_in_groups(m["blocks"]),
        "group_starts": None if m["at"] is None else tuple(map(int, m["at"].split(","))),
        "chunk_keys": _keys(m["keys"]),
        "transfer_id": _number(m["job"]),
    }


def _end(m: re.Match[str]) -> Fields:
    return {
        "outcome": m["outcome"] or "stopped",
        "free_delayed": bool(m["delayed"]),
        **_in_groups(m["blocks"]),
        "computed": _number(m["computed"]),
        "output": _number(m["output"]),
        "handoff": True if m["handoff"] else None,
        "lease_s": _number(m["lease"]),
    }


def _holdings(m: re.Match[str]) -> Fields:
    return {"chunk_keys": _keys(m["keys"]), "holdings_first": not m["before"], "holdings_last": not m["after"]}


_WRONG = (
    r" wrong (?P<kind>drift|rot|early) (?P<block>\d+)@(?P<token>\d+)(?: holds (?P<holds>\S+))?"
    r"(?: from (?P<from>\S+))?"
)
_REPORTED = r" (?P<hash>\w+):(?P<fingerprint>\d+)@(?P<token>\d+)"


def _handoff(m: re.Match[str]) -> Fields:
    tokens, prompt = (None if m["tokens"] == "-" else int(m["tokens"])), int(m["prompt"])
    return {
        "handoff_side": m["side"], "handoff_keys": (f"transfer_id:{m['key']}",), "handoff_tokens": tokens,
        "prompt": prompt, "handoff_mode": m["mode"], "handoff_peer": m["peer"], "digest": m["digest"],
        "digest_tokens": min(prompt if tokens is None else tokens, prompt), **_in_groups(m["blocks"]),
    }  # fmt: skip


def _peer(m: re.Match[str]) -> Fields:
    owner = m["owner"]
    return {
        "peer": m["peer"], "peer_rank": _number(m["rank"]), "notifications_expected": _number(m["expected"]),
        "peer_request": None if owner is None else REQUEST if owner == "-" else f"{owner}-{REQUEST}",
        "reason": m["error"],
    }  # fmt: skip


def _check(m: re.Match[str]) -> Fields:
    wrong = [each.groupdict() for each in re.finditer(_WRONG, m["wrong"])]
    reported = [each.groupdict() for each in re.finditer(_REPORTED, m["reported"] or "")]
    return {
        "check_look": m["look"],
        "check_blocks": int(m["blocks"]),
        "check_unknown": int(m["unknown"] or 0),
        "check_fingerprints": b"".join(
            pack(">QQI", int(each["hash"], 16), _fingerprint(each["fingerprint"]), int(each["token"]))
            for each in reported
        ),
        "check_wrong_kinds": tuple(each["kind"] for each in wrong),
        "check_wrong_blocks": tuple(int(each["block"]) for each in wrong),
        "check_wrong_tokens": tuple(int(each["token"]) for each in wrong),
        "check_wrong_hashes": tuple(f"{int(each['block']):016x}" for each in wrong),
        "check_wrong_holds": tuple(each["holds"] or "unknown" for each in wrong),
        "check_wrong_from": tuple(each["from"] or "" for each in wrong),
        "check_wrong_more": int(m["more"] or 0),
        "check_healed": bool(m["healed"]),
        "group": _number(m["group"]),
        "identity": m["identity"],
        "role": "worker",
        "rank": int(m["rank"] or 0),
    }


def _fingerprint(text: str) -> int:
    number = int(text)
    return number if number >> 32 else number * 0x9E3779B97F4A7C15 & (1 << 64) - 1


_PEER = r"(?: rank (?P<rank>\d+))?(?: peer (?P<peer>\S+))?(?: for (?P<owner>\S+))?(?: of (?P<expected>\d+))?"
_BLOCKS = r"(?: \[(?P<blocks>[\d |-]*)\])?"
_ERROR = r"(?: !(?P<error>.*))?"
_PLAN = r"(?:(?P<start>\d+)\+)?(?P<count>\d+)" + _BLOCKS
_PLAN += r"(?: at (?P<at>[\d,]+))?(?: keys (?P<keys>\S+))?(?: #(?P<job>\d+))?"
LINES: list[Line] = [
    (
        r"L (?P<total>\d+) c(?P<computed>\d+)(?: h(?P<matched>\d+|\?))? -> (?:(?P<answer>-?\d+|later)|!(?P<error>.*))"
        r"(?P<is_async> async)?(?P<cached> cached| fresh)?(?: healed (?P<healed>-?\d+))?(?: keys (?P<keys>\S+))?",
        e.Lookup,
        _lookup,
    ),
    (r"rank (?P<rank>\d+) h(?P<matched>\d+)", e.RankLookup, lambda m: {"rank": int(m["rank"]), "matched": int(m["matched"])}),
    (
        r"group (?P<group>\d+) h(?P<matched>\d+) at (?P<ends>[\d,]+)",
        e.RankLookup,
        lambda m: {
            "group": int(m["group"]), "matched": int(m["matched"]), "boundaries": tuple(map(int, m["ends"].split(","))),
        },
    ),
    (
        r"A (?P<allocated>\d+)" + _BLOCKS + _ERROR,
        e.Alloc,
        lambda m: {
            "allocated": int(m["allocated"]), **_in_groups(m["blocks"]), "error": m["error"],
        },
    ),
    (
        r"S (?P<computed>\d+)\+(?P<scheduled>\d+)" + _BLOCKS + r"(?: drafts (?P<drafted>\d+))?",
        e.Schedule,
        lambda m: {
            "computed": int(m["computed"]), "scheduled": int(m["scheduled"]), **_in_groups(m["blocks"]),
            "drafted": _number(m["drafted"]),
        },
    ),
    (r"P(?: free (?P<free>\d+))?", e.Preempt, lambda m: {"blocks_free": _number(m["free"])}),
    (r"plan load " + _PLAN, e.LoadPlan, _plan),
    (
        r"plan store " + _PLAN + r"(?P<present> present)?",
        e.StorePlan,
        lambda m: {**_plan(m), "chunk_present": True if m["present"] else None},
    ),
    (
        r"done #(?P<job>\d+)(?P<failed> failed)?",
        e.TransferEnd,
        lambda m: {"transfer_id": int(m["job"]), "failed": bool(m["failed"])},
    ),
    (r"flush #(?P<job>\d+)", e.Flush, lambda m: {"transfer_id": int(m["job"])}),
    (
        r"load (?:(?P<start>\d+)\+)?(?P<count>\d+)(?:/(?P<expected>\d+))?(?: in (?P<blocks>\d+))?(?: rank (?P<rank>\d+))?"
        + _ERROR,
        e.Load,
        lambda m: {
            "start": int(m["start"] or 0), "count": int(m["count"]), "expected": _number(m["expected"]), "role": "worker",
            "rank": int(m["rank"] or 0), "blocks_count": _number(m["blocks"]), "error": m["error"],
        },
    ),
    (
        r"store (?P<start>\d+)\+(?P<count>\d+)(?: in (?P<blocks>\d+))?" + _ERROR,
        e.Store,
        lambda m: {
            "start": int(m["start"]), "count": int(m["count"]), "blocks_count": _number(m["blocks"]), "error": m["error"],
        },
    ),
    (
        r"failure (?P<call>\w+)(?: rank (?P<rank>\d+))? !(?P<error>.*)",
        e.Failure,
        lambda m: {
            "call": m["call"], "error": m["error"], "rank": int(m["rank"] or 0),
            "role": "worker" if m["rank"] else "scheduler",
        },
    ),
    (r"R(?P<failed> failed)?", e.Received, lambda m: {"failed": bool(m["failed"])}),
    (r"error \[(?P<blocks>[\d |-]*)\]", e.LoadError, lambda m: _in_groups(m["blocks"])),
    (
        r"prefetch (?P<start>\d+)\+(?P<count>\d+)(?: keys (?P<keys>\S+))?",
        e.Prefetch,
        lambda m: {"start": int(m["start"]), "count": int(m["count"]), "chunk_keys": _keys(m["keys"])},
    ),
    (
        r"(?P<what>refs|pins) (?P<count>-?\d+)",
        e.Refcount,
        lambda m: {"chunk_key": "c0ffee", m["what"]: int(m["count"])},
    ),
    (
        r"check (?P<look>computed|loaded|admitted|held) (?P<blocks>\d+)(?: unknown (?P<unknown>\d+))?"
        r"(?: group (?P<group>\d+))?(?: tells(?P<reported>(?: \w+:\d+@\d+)+)(?: as (?P<identity>\w+))?)?"
        r"(?P<wrong>(?:" + re.sub(r"\?P<[a-z]+>", "?:", _WRONG) + r")*)"
        r"(?: more (?P<more>\d+))?(?P<healed> healed)?(?: rank (?P<rank>\d+))?",
        e.BlockCheck,
        _check,
    ),
    (
        r"stats (?P<total>\d+)(?: cached (?P<cached>-?\d+))?(?: external (?P<external>-?\d+))?(?: queried (?P<queried>\d+))?",
        e.Stats,
        lambda m: {
            "total": int(m["total"]), "reported": _number(m["cached"]), "from_connector": _number(m["external"]),
            "queried": _number(m["queried"]),
        },
    ),
    (r"freed(?P<expired> expired)?", e.Free, lambda m: {"lease_expired": bool(m["expired"])}),
    (
        r"read(?: by (?P<peer>\S+))?(?: of (?P<expected>\d+))?",
        e.Read,
        lambda m: {"peer": m["peer"], "notifications_expected": _number(m["expected"])},
    ),
    (
        r"xfer (?P<op>read|write) (?P<state>posted|done|failed)(?: by (?P<own>\d+))?(?: (?P<count>\d+))?" + _PEER
        + _BLOCKS + r"(?: of \[(?P<theirs>[\d -]*)\])?" + _ERROR,
        e.Xfer,
        lambda m: {
            "xfer_op": m["op"], "xfer_state": m["state"], "blocks_count": _number(m["count"]), **_peer(m),
            **_in_groups(m["blocks"]), "peer_blocks_ids": _blocks(m["theirs"]), "role": "worker", "rank": int(m["own"] or 0),
        },
    ),
    (
        r"(?P<way>sent|got) (?P<what>\w+)" + _PEER + _ERROR,
        e.Notification,
        lambda m: {
            "notification": m["what"], "direction": "sent" if m["way"] == "sent" else "received", **_peer(m),
            "role": "worker",
        },
    ),
    (r"lease (?P<lease>\d+)", e.Lease, lambda m: {"lease_s": int(m["lease"])}),
    (
        r"(?P<side>gives|takes|declines) (?P<key>\S+) (?P<tokens>\d+|-)/(?P<prompt>\d+)(?: of (?P<digest>\w+))?"
        r"(?: in (?P<mode>pull|push))?(?: from (?P<peer>\w+))?" + _BLOCKS,
        e.Handoff,
        _handoff,
    ),
    (
        r"key (?P<key>\S+)(?: after (?P<parent>\S+))? of (?P<content>\S+)",
        e.Key,
        lambda m: {"chunk_key": m["key"], "chunk_parent": m["parent"], "chunk_content": m["content"]},
    ),
    (
        r"evict (?P<key>\S+)(?: by (?P<by>\S+))?",
        e.Evict,
        lambda m: {"chunk_key": _key(m["key"]), "pushed_by": m["by"]},
    ),
    (
        r"cache(?: of (?P<tier>\w+))?(?: by (?P<by>\S+))?(?P<late> late)?(?P<changes>(?: [-+](?: \w+)+| 0)*)",
        e.PrefixCache,
        _cache,
    ),
    (
        r"reset(?: (?P<answer>refused|silent))?",
        e.Reset,
        lambda m: {"succeeded": {"refused": False, "silent": None}.get(m["answer"], True)},
    ),
    (r"cache reset", e.CacheReset, lambda m: {}),
    (r"holds (?P<before>\.\. )?(?P<keys>[^ .]+)(?P<after> \.\.)?", e.Holdings, _holdings),
    (
        r"start(?: (?P<total>\d+))?(?: as (?P<identity>\S+))?(?: version (?P<version>\S+))?(?: of (?P<hashes>[\w ]+))?",
        e.RequestStart,
        lambda m: {
            "total": _number(m["total"]), "identity": m["identity"], "adapter_version": m["version"],
            "block_hashes": _hashes(m["hashes"]) or None,
        },
    ),
    (
        r"end(?P<delayed> delayed)?(?: (?P<outcome>stopped|length_capped|aborted|ignored|error))?(?P<handoff> handoff)?"
        r"(?: output (?P<output>\d+))?(?: computed (?P<computed>\d+))?(?: lease (?P<lease>\d+))?" + _BLOCKS,
        e.RequestEnd,
        _end,
    ),
    (r"cut off", e.CutOff, lambda m: {"outcome": semconv.CUT_OFF}),
    (r"sent", e.Sent, lambda m: {}),
]  # fmt: skip
_OF_NO_REQUEST = (e.Evict, e.Reset, e.CacheReset, e.PrefixCache, e.Key, e.Holdings)
_CALLS_OF_A_REQUEST = ("on_new_request", "request_finished")


def history(
    text: str,
    *,
    request: str = REQUEST,
    engine: str = "engine",
    recorder: str = "recorder",
    connector: str = "Connector",
    chunk: int = 256,
    block: int = BLOCK_SIZE,
    from_log: bool = False,
    cache_identity: str | None = None,
    capabilities: str | None = None,
    groups: str | None = None,
) -> list[Event]:
    """The events that the text describes. `groups` are the engine's, as `groups_declared` reads them."""
    events: list[Event] = []
    epochs: dict[str, int] = {}
    numbers: Counter[tuple[str, str | None]] = Counter()
    totals: dict[str, int] = {}
    steps = spare_ns = 0
    step: int | None = None
    now_ns = START_NS
    heard: dict[str, Event] = {}
    reported: set[bytes] = set()
    caches: set[tuple[str, str | None]] = set()

    def add(cls: type[Event], about: str | None, where: str, child: str, **fields: Any) -> None:
        nonlocal now_ns
        by = where or recorder
        common: dict[str, Any] = {
            "engine": where or engine, "recorder": by, "sequence": heard[by].sequence + 1 if by in heard else 0,
            "connector": "MultiConnector" if child == "multi" else connector, "connector_id": child,
            "role": "scheduler", "rank": 0, "start_ns": now_ns,
            "end_ns": now_ns + 10_000, "span_id": f"{len(events) + 1:016x}", "trace_id": "0" * 31 + "1", "request": about,
            "external": about and about.rpartition("-")[0], "request_sequence": numbers[by, about],
            "epoch": epochs.get(about or "", 0), "block_size": block, "chunk_size": chunk,
            "cache_identity": cache_identity, "capabilities": capabilities,
            "groups": None if groups is None else groups_declared(groups),
        }  # fmt: skip
        if step is not None and "scheduler_step" in cls.__struct_fields__:
            common["scheduler_step"] = step
        now_ns += MILLISECOND_NS
        numbers[by, about] += 1
        heard[by] = cls(**{**common, **fields})
        events.append(heard[by])

    for line in _lines(text):
        if wait := re.fullmatch(r"wait (\d+)(?: (idle|busy|spare|full|paused|stuck|rests|silent))?", line):
            until_ns = now_ns + int(wait[1]) * SECOND_NS
            for at_ns in (
                () if from_log or wait[2] == "silent" else range(now_ns + HEARTBEAT_NS, until_ns, HEARTBEAT_NS)
            ):
                steps += STEPS.get(wait[2], 0)
                spare_ns += HEARTBEAT_NS * (wait[2] == "spare")
                for by, last in heard.items():
                    beat = _heartbeat(last, at_ns, steps if wait[2] else None)
                    beat.scheduler_spare_ns = (
                        spare_ns if wait[2] in ("spare", "full", "paused", "stuck", "rests") else None
                    )
                    beat.scheduler_paused = True if wait[2] == "paused" else None
                    beat.scheduler_running = RUNNING.get(wait[2])
                    heard[by] = beat
                    events.append(beat)
            now_ns = until_ns
            continue
        if number := re.fullmatch(r"step (\d+)", line):
            step = int(number[1])
            continue
        where, name, child, line = _place(line)
        about = f"{name}-{request}" if name else request
        cls, fields = _parse(line)
        of_none = cls in _OF_NO_REQUEST or (cls is e.Failure and not name and fields["call"] not in _CALLS_OF_A_REQUEST)
        if about not in epochs and not of_none:
            epochs[about] = 0
            totals[about] = fields.get("total") or _total_of(text, name)
            if cls is not e.RequestStart:
                add(e.RequestStart, about, where, child, total=totals[about])
        if cls is e.RequestStart and fields["block_hashes"]:
            fields |= _referring(fields["block_hashes"], reported)
        elif cls is e.PrefixCache:
            cache = (where, fields["pool_tier"])
            fields["cache_whole"] = fields["cache_whole"] and cache not in caches
            caches.add(cache)
        if cls is e.Preempt:
            epochs[about] += 1
        elif cls in (e.RequestEnd, e.Alloc):
            fields["total"] = totals[about]
        elif cls is e.Lookup:
            totals[about] = fields["total"]
        elif cls is e.Schedule:
            fields["resumed"] = epochs[about] > 0
        add(cls, None if of_none else about, where, child, **fields)
    if not events:
        add(e.RequestStart, request, engine, "", total=100)
    return events


def _referring(hashes: bytes, reported: set[bytes]) -> Fields:
    """A prompt's hashes as a recorder reports them: those in `reported` are only referred to, the others added to it."""
    each = [hashes[at : at + semconv.HASH_BYTES] for at in range(0, len(hashes), semconv.HASH_BYTES)]
    first = next((n for n, one in enumerate(each) if one not in reported), len(each))
    reported.update(each)
    after = each[first - 1] if first else None
    return {
        "block_hashes": b"".join(each[first:]) or None, "block_first": first or None, "block_after": after,
        "block_seen": first,
    }  # fmt: skip


def goodbyes(events: Sequence[Event]) -> list[Event]:
    """What each recorder says last."""
    last = {event.recorder: event for event in sorted(events, key=lambda event: event.sequence)}
    return [_heartbeat(event, event.end_ns + MILLISECOND_NS, closed=True) for event in last.values()]


def _heartbeat(last: Event, at_ns: int, steps: int | None = None, *, closed: bool = False) -> e.Heartbeat:
    """A recorder's heartbeat after its last event."""
    return e.Heartbeat(
        engine=last.engine,
        recorder=last.recorder,
        sequence=last.sequence + 1,
        start_ns=at_ns,
        end_ns=at_ns,
        scheduler_step=steps,
        recorder_closed=closed,
    )


def _place(line: str) -> tuple[str, str, str, str]:
    """The line's engine, request and child connector, empty if it names none; and what is left of it."""
    match = re.fullmatch(r"(?:<(\w+)> )?(?:(\w+): )?(?:@(\w+) )?(.*)", line)
    assert match is not None
    return match[1] or "", match[2] or "", match[3] or "", match[4]


def _lines(text: str) -> list[str]:
    lines = (re.sub(r"(^|\s)# .*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line and line != "#"]


def _parse(line: str) -> tuple[type[Event], Fields]:
    for pattern, cls, fields in LINES:
        if match := re.fullmatch(pattern, line):
            return cls, fields(match)
    raise ValueError(f"not a call: {line!r}")


def _total_of(text: str, name: str) -> int:
    """The tokens of a request at its first lookup."""
    for line in _lines(text):
        _, about, _, call = _place(line)
        if about == name and (first := re.match(r"L (\d+)", call)):
            return int(first[1])
    return 100


def judge(events: Sequence[Event], *, later_s: float = 0.0, rules: Sequence[Rule] | None = None) -> Detector:
    """The detector after all events, after it has given up waiting for more, and `later_s` seconds after the last one."""
    detector = Detector(rules=rules)
    detector.feed(events)
    detector.settle()
    detector.feed(heartbeats(events, later_s=later_s))
    detector.tick()
    return detector


def heartbeats(
    events: Sequence[Event], *, later_s: float, steps: int | None = None, running: int | None = None
) -> list[Event]:
    """The heartbeats of every recorder after the last event, up to `later_s` later; the scheduler makes `steps` steps
    between two of them, if they count its steps, and runs `running` requests, if they say so."""
    from_ns = max((event.end_ns for event in events), default=0)
    until_ns = from_ns + int(later_s * SECOND_NS)
    heard = {event.recorder: event for event in sorted(events, key=lambda event: event.sequence)}
    beats: list[Event] = []
    for number, at_ns in enumerate((*range(from_ns + HEARTBEAT_NS, until_ns, HEARTBEAT_NS), until_ns)):
        for recorder, last in heard.items():
            beat = _heartbeat(last, at_ns, None if steps is None else steps * number)
            beat.scheduler_running = running
            heard[recorder] = beat
            beats.append(beat)
    return beats


def rules_found(detector: Detector) -> list[str]:
    """The rules that have findings, sorted."""
    return sorted(finding.rule for held in detector.findings.values() for finding in held.values())


def loaded(events: Sequence[Event]) -> History:
    """The history that a trace file with these events would give: each event with a span that says all of it."""
    return History(moments=tuple(in_order(map(_moment, events))))


def _moment(event: Event) -> Moment:
    span = span_of(event)
    of_resource = {
        semconv.BLOCK_SIZE.key: event.block_size,
        semconv.CACHE_IDENTITY.key: event.cache_identity,
        semconv.GROUPS.key: event.groups,
    }
    resource = {**span.resource, **{key: value for key, value in of_resource.items() if value}}
    attributes = {key: as_json(value) for key, value in span.attributes.items()}
    if event.chunk_size:
        attributes[semconv.CHUNK_SIZE.key] = event.chunk_size
    span = structs.replace(span, span_id=event.span_id or span.span_id, resource=resource, attributes=attributes)
    return structs.replace(event, span_id=span.span_id, trace_id=span.trace_id), span


def as_json(value: Any) -> Any:
    """A value as a span has it."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value

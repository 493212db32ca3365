"""Events and numbers in words, for audit and dashboard alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10
from typing import Any

from kvtrail.tracer.events.cache_groups import split
from kvtrail.tracer.events.events import Direction, Side, XferOp
from kvtrail.tracer.events.semconv import CUT_OFF, NO_END_RECORD, Kind
from kvtrail.tracer.model.findings import Unknown

MAX_NAMED = 3
"""Maximum number of names in a list; the rest are counted."""
MAX_RUNS = 4
"""Maximum number of runs of block ids, or of keys, that are named; the rest are counted."""
NOTHING = "–"  # noqa: RUF001 - an en dash, as tables have it for "no value"


def count(number: float | None) -> str:
    """A count with thousands separators: 1,234."""
    return NOTHING if number is None else f"{number:,.0f}"


def some(number: int, what: str) -> str:
    """A count with its noun: 1 token, 2 tokens, 2 lookups."""
    return f"{count(number)} {what}{'' if number == 1 else 's'}"


_ONE = re.compile(
    r"(?<![\w.,-])(?<![-+] )(?<!block )(?<!group )(?<!step )(?<!rank )(?<!load )(?<!store )(?<!transfer )"
    r"1 (token|block|request|second|chunk|finding|lookup|load|step|object|message|time)s\b( were| are| have)?"
)
_OF_ONE = {"": "", " were": " was", " are": " is", " have": " has"}


def singular(text: str) -> str:
    """A sentence from a plural template with its counts of 1 made singular: "1 tokens were" becomes "1 token was"."""
    return _ONE.sub(lambda found: f"1 {found[1]}{_OF_ONE[found[2] or '']}", text)


def significant(number: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, never in exponent notation: 2.31, 1,240, 0.00012."""
    if not number:
        return "0"
    after = max(0, digits - 1 - floor(log10(abs(number))))
    text = f"{number:,.{after}f}"
    return text.rstrip("0").rstrip(".") if after else text


def percent(share: float) -> str:
    """A share as a whole number of percent: 38 %."""
    return f"{share * 100:.0f} %"


def size(number: float) -> str:
    """Bytes with a binary unit: 256 KiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{significant(number, 4)} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def duration(ns: int) -> str:
    """A length of time with its unit: 9 µs, 2.31 ms, 1.24 s, 2 min 03 s, 2 h 05 min."""
    if ns < 999.5e3:
        return f"{ns / 1e3:,.0f} µs"
    if ns < 999.5e6:  # a millisecond less would be read as 1,000 ms
        return f"{significant(ns / 1e6)} ms"
    seconds = ns / 1e9
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def ending(number: int) -> str:
    """A number of times: once, twice, 13 times."""
    return {1: "once", 2: "twice"}.get(number, f"{count(number)} times")


def waiting(waited_ns: int, loads: int) -> str:
    """The time for which a request waited for KV: 12 ms in 2 loads."""
    return f"{duration(waited_ns) if waited_ns else '0 s'} in {some(loads, 'load')}"


def first_of(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """The first few names: a, b, c and 12 more."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {count(rest)} more" if rest > 0 else "")


def value(of: object) -> str:
    """Any value of an event or an account: a count, yes or no, a list's first members, numbers by rank, or unchanged text."""
    match of:
        case None:
            return NOTHING
        case bool():
            return "yes" if of else "no"
        case int():
            return count(of)
        case Mapping():
            return ", ".join(f"rank {rank}: {count(number)}" for rank, number in sorted(of.items())) or NOTHING
        case list() | tuple():
            shown = ", ".join(f"{x[0]} to {x[1]}" if isinstance(x, tuple) else str(x) for x in of[:MAX_RUNS])
            rest = len(of) - MAX_RUNS
            return (shown + (f" and {count(rest)} more" if rest > 0 else "")) or NOTHING
        case _:
            return str(of)


def healed(healed: int, *, count: int) -> str:
    """The words for the number of occurrences, out of `count`, that the guard repaired before they did harm."""
    if healed == 0:
        return "not healed"
    if healed >= count:
        return "healed by the guard"
    return f"healed by the guard {ending(healed)}"


def run(epoch: int) -> str:
    """The label of an epoch, the number of a request's preemptions so far: first run, after preemption 2."""
    return "first run" if not epoch else f"after preemption {count(epoch)}"


def without_epochs(sentence: str) -> str:
    """A finding's sentence with each epoch replaced by its time in words, so that readers need no glossary."""
    return _EPOCH.sub(lambda found: _when(int(found[1])), sentence)


_EPOCH = re.compile(r"\bepoch (\d+)\b")


def _when(epoch: int) -> str:
    return "before any preemption" if not epoch else f"after it was preempted {ending(epoch)}"


def indefinite(rule: str) -> str:
    """A rule's name in a sentence: a stale lookup, an over report."""
    name = rule.replace("-", " ")
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def exception(error: str) -> str:
    """The class of a recorded exception, `Class: text`."""
    return error.partition(":")[0]


def ended(ended_by: str | None, at: str = "", *, whole: bool = False) -> str:
    """The words for an engine's death on every page and in every report: was killed at 12:00:01; died at 12:00:01 of
    KeyError. With `whole`, the exception's full text is named, else only its class."""
    when = f" at {at}" if at else ""
    if ended_by == NO_END_RECORD:
        return f"was killed{when}"
    of = "" if ended_by is None else f" of {ended_by if whole else exception(ended_by)}"
    return f"died{when}{of}"


def with_open(requests: int) -> str:
    """The words for the number of requests that were open when an engine ended, the request that raised included."""
    return f"with {some(requests, 'open request')}" if requests else "with no open request"


ADVICE = {
    Unknown.LOST: "The runbooks KvtrailEventsDropped and KvtrailSequenceGaps say where events are lost. What is recorded"
    " afterwards is known again.",
    Unknown.NEWER: "Run the sidecar in the newer of the two versions; the overview says what it does not know.",
    Unknown.LATE: "It resolves itself: requests that start from now on are known from their start.",
    Unknown.LEVEL: "Record at the level that the rule needs (docs/rules.md); a `level_file` changes it at any time.",
    Unknown.UNSEEN: "Nothing to do, unless it is frequent: then the calls come in an order that kvtrail does not know.",
    Unknown.ONE_SIDE: "Record the other engine, too, and have it report here, or to a sidecar with the same ClickHouse.",
    Unknown.PROBE: "A probe for the connector would show it (docs/connectors.md). Where the overview says that it is off,"
    " the engine's log says why.",
    Unknown.SAMPLED: "Record all requests: `unsampled: record`. The sampler's decision travels along as an attribute.",
    Unknown.VERSION: "A newer vLLM shows it (docs/limits.md, *What a vLLM does not show*).",
    Unknown.MANY: "Nothing to do: the store holds more chunks than kvtrail remembers (docs/limits.md).",
    Unknown.UNNAMED: "A probe that names the keys of chunks would show it (docs/connectors.md).",
    Unknown.OPEN: "It resolves when the request ends.",
    Unknown.UNCHECKED: "Nothing to do: nothing happened to the request that could be wrong.",
    Unknown.ORDER: "Nothing to do: clocks of two processes are not compared.",
    Unknown.REUSED: "Give every request an id of its own.",
    Unknown.CONTENT: "Nothing to do: another engine computed it, or this one before its bytes were judged. Engines of equal"
    " caches that send to one sidecar judge it together.",
    Unknown.RULE: "The runbook KvtrailInternalErrors says where the traceback is.",
}
"""The remedy for each reason of an undecided judgement."""


def blocks(ids: Iterable[int]) -> str:
    """Block ids in order, consecutive ones as ranges: 3-18, 40, 7 and 12 more."""
    runs: list[list[int]] = []
    for block in ids:
        if runs and block == runs[-1][1] + 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:MAX_RUNS]]
    more = sum(last - first + 1 for first, last in runs[MAX_RUNS:])
    return ", ".join(texts) + (f" and {count(more)} more" if more else "")


def blocks_named(numbers: Mapping[str, Any]) -> str:
    """The block ids that a span names, group by group if there are several KV cache groups: 3-18 | 40."""
    by_group = split(numbers["blocks_ids"], numbers.get("blocks_by_group"))
    return " | ".join(blocks(ids) or "none" for ids in by_group)


def kind(name: str) -> str:
    """A span's name in words: kv.request.start is an arrival; a foreign name stays as it is."""
    return _KINDS.get(name, name)


_KINDS: dict[str, str] = {
    Kind.REQUEST_START: "arrival",
    Kind.REQUEST: "request",
    Kind.CUT_OFF: "request interrupted",
    Kind.LOOKUP: "lookup",
    Kind.ALLOC: "allocation",
    Kind.SCHEDULE: "schedule",
    Kind.PREEMPT: "preemption",
    Kind.LOAD: "load",
    Kind.STORE: "store",
    Kind.RECEIVED: "load done",
    Kind.SENT: "store done",
    Kind.LOAD_PLAN: "plan to load",
    Kind.STORE_PLAN: "plan to store",
    Kind.TRANSFER_END: "transfer done",
    Kind.FLUSH: "transfer waited for",
    Kind.LOAD_ERROR: "load error",
    Kind.RANK_LOOKUP: "lookup of a rank",
    Kind.PREFETCH: "prefetch",
    Kind.REFCOUNT: "references",
    Kind.FREE: "blocks given back",
    Kind.READ: "blocks read",
    Kind.LEASE: "lease extended",
    Kind.XFER: "blocks between engines",
    Kind.NOTIFICATION: "notification",
    Kind.HANDOFF: "hand-off",
    Kind.STATS: "statistics",
    Kind.KEY: "key",
    Kind.EVICT: "eviction",
    Kind.RESET: "reset",
    Kind.CACHE_RESET: "prefix cache reset",
    Kind.PREFIX_CACHE: "prefix cache",
    Kind.HOLDINGS: "chunks held",
    Kind.BLOCK_CHECK: "block check",
    Kind.FAILURE: "failed call",
    Kind.HEARTBEAT: "heartbeat",
}


def described(name: str, numbers: Mapping[str, Any]) -> str:
    """An event's numbers in words."""
    match name:
        case Kind.REQUEST_START:
            return f"arrived with {some(numbers.get('total') or 0, 'token')}"
        case Kind.REQUEST:
            if numbers.get("outcome") == CUT_OFF:
                return described(Kind.CUT_OFF, numbers)
            outcome = str(numbers.get("outcome") or "ended").replace("_", " ")
            return f"{outcome}; {some(numbers.get('output') or 0, 'token')} of output"
        case Kind.CUT_OFF:
            return "its engine ended before it did"
        case Kind.LOOKUP:
            return _lookup(numbers)
        case Kind.ALLOC:
            return f"{_blocks(numbers)} for {count(numbers.get('allocated'))} external tokens"
        case Kind.SCHEDULE:
            again = "resumed; " if numbers.get("resumed") else ""
            return f"{again}runs {some(numbers['scheduled'], 'token')} after {count(numbers['computed'])} computed"
        case Kind.LOAD | Kind.STORE:
            way = "into KV blocks" if name == Kind.LOAD else "into the store"
            amount = "" if numbers.get("bytes") is None else f", {size(numbers['bytes'])}"
            expected = numbers.get("expected")
            short = "" if expected in (None, numbers["count"]) else f", where {count(expected)} were expected"
            return f"{_extent(numbers)} copied {way}{amount}{short}"
        case Kind.LOAD_PLAN | Kind.STORE_PLAN | Kind.PREFETCH:
            way = {Kind.LOAD_PLAN: "to be loaded", Kind.STORE_PLAN: "to be stored"}.get(Kind(name), "fetched nearer")
            blocks_ids = numbers.get("blocks_ids") if numbers.get("blocks_by_group") else None
            where = f", {_blocks({**numbers, 'blocks_count': len(blocks_ids)})}" if blocks_ids else ""
            return f"{_extent(numbers)} {way}{where}{_transfer(numbers)}"
        case Kind.TRANSFER_END:
            return ("failed" if numbers.get("failed") else "finished") + _transfer(numbers)
        case Kind.LOAD_ERROR:
            return f"{some(len(numbers.get('blocks_ids', ())), 'block')} could not be loaded"
        case Kind.RANK_LOOKUP:
            return _part_of_a_lookup(numbers)
        case Kind.FREE | Kind.READ:
            amount = "" if numbers.get("blocks_count") is None else f"{_blocks(numbers)}, "
            why = "because a lease ran out" if numbers.get("lease_expired") else ""
            by = f"reported by another engine{_expected(numbers)}" if name == Kind.READ else why
            return f"{amount}{by}".removesuffix(", ")
        case Kind.LEASE:
            return (
                "" if numbers.get("lease_s") is None else f"kept for {some(numbers['lease_s'], 'second')} from here on"
            )
        case Kind.XFER:
            return _xfer(numbers)
        case Kind.NOTIFICATION:
            return _notification(numbers)
        case Kind.HANDOFF:
            return _handoff(numbers)
        case Kind.PREFIX_CACHE:
            return _changes(numbers)
        case Kind.BLOCK_CHECK:
            return _block_check(numbers)
        case Kind.HEARTBEAT if numbers.get("recorder_closed"):
            ended_by = numbers.get("recorder_ended_by")
            if ended_by == NO_END_RECORD:
                return "end record, sent in the place of its engine"
            return f"end record; its engine ended by {ended_by}" if ended_by else "end record"
        case Kind.PREEMPT:
            return "its computed tokens were discarded"
        case Kind.RECEIVED:
            return "asynchronous load failed" if numbers.get("failed") else "asynchronous load finished"
        case Kind.SENT:
            return "asynchronous store finished"
        case _:
            return ", ".join(f"{key.replace('_', ' ')} {value(number)}" for key, number in numbers.items())


def _lookup(numbers: Mapping[str, Any]) -> str:
    computed = f"{count(numbers.get('computed'))} of {count(numbers.get('total'))} computed"
    matched = numbers.get("matched")
    held = "the store's match is hidden" if matched is None else f"{count(matched)} matched"
    returned = numbers.get("returned")
    answer = "answered 'ask me later'" if returned is None else f"answered {count(returned)}"
    cached = ", cached" if numbers.get("cached") else ""
    refused = numbers.get("refused")
    healed = "" if refused is None else f" in place of {count(refused)}, which the guard refused"
    return f"{computed}, {held}; {answer}{healed}{cached}"


def _changes(numbers: Mapping[str, Any]) -> str:
    """3 blocks stored, 2 removed; of a connector's store: cpu: 3 chunks stored, 2 removed."""
    changes = numbers["cache_changes"]
    stored, removed = sum(n for n in changes if n > 0), -sum(n for n in changes if n < 0)
    cleared = ", all removed" if 0 in changes else ""
    tier = numbers.get("pool_tier")
    added = some(stored, "block") if tier is None else f"{tier}: {some(stored, 'chunk')}"
    return f"{_group(numbers)}{added} stored, {count(removed)} removed{cleared}"


def _part_of_a_lookup(numbers: Mapping[str, Any]) -> str:
    """group 1: 48 of 100 matched, held up to 32 or 48."""
    lengths = numbers.get("boundaries")
    held = "" if lengths is None else f", held up to {' or '.join(map(count, lengths)) or 'none'}"
    total = "" if numbers.get("total") is None else f" of {count(numbers['total'])}"
    return f"{_group(numbers)}{count(numbers.get('matched'))}{total} matched{held}"


def _group(numbers: Mapping[str, Any]) -> str:
    group = numbers.get("group")
    return "" if group is None else f"group {group}: "


def _block_check(numbers: Mapping[str, Any]) -> str:
    """64 loaded blocks checked: all hold what was computed."""
    wrong = Counter(numbers.get("check_wrong_kinds", ()))
    unknown, more = numbers.get("check_unknown") or 0, numbers.get("check_wrong_more") or 0
    blocks = max(numbers["check_blocks"], wrong.total() + more + unknown)
    parts = [f"{count(number)} {_WRONG.get(kind, kind)}" for kind, number in wrong.items()]
    if more:
        parts.append(f"{count(more)} more wrong")
    if unknown:
        parts.append(f"{count(unknown)} unknown, as their reference is not known")
    healed = "; vLLM recomputes the wrong ones" if numbers.get("check_healed") else ""
    checked = some(blocks, f"{numbers['check_look']} block")
    return f"{checked} checked: {', '.join(parts) or 'all hold what was computed'}{healed}"


_WRONG = {
    "drift": "with content that was not computed under the hash",
    "rot": "changed though nothing wrote to it",
    "early": "read before the load had ended",
}
"""The words that follow the number of wrong blocks, by what is wrong with them."""


def _extent(numbers: Mapping[str, Any]) -> str:
    start, length = numbers.get("start"), numbers["count"]
    if start is None:  # a plan that names blocks, but not their tokens
        return some(length, "token")
    return f"{some(length, 'token')} ({count(start)} to {count(start + length)})"


def _transfer(numbers: Mapping[str, Any]) -> str:
    number = numbers.get("transfer_id")
    return "" if number is None else f", transfer {number}"


def _xfer(numbers: Mapping[str, Any]) -> str:
    """Read of 4 blocks of rank 1 of p-0 failed: transfer_failed."""
    way = "of" if numbers["xfer_op"] == XferOp.READ else "to"
    amount = "" if numbers.get("blocks_count") is None else f" of {_blocks(numbers)}"
    return f"{numbers['xfer_op']}{amount}{_peer(way, numbers)} {numbers['xfer_state']}{_reason(numbers)}"


def _notification(numbers: Mapping[str, Any]) -> str:
    """`registration` sent to p-0, one of 2 expected."""
    sent = numbers["direction"] == Direction.SENT
    done = "not sent" if sent and numbers.get("reason") else numbers["direction"]
    where = _peer("to" if sent else "from", numbers)
    return f"`{numbers['notification']}` {done}{where}{_expected(numbers)}{_reason(numbers)}"


def _peer(way: str, numbers: Mapping[str, Any]) -> str:
    peer, rank = numbers.get("peer"), numbers.get("peer_rank")
    if peer is None and rank is None:
        return ""
    return f" {way} {' of '.join(filter(None, ('' if rank is None else f'rank {rank}', peer)))}"


def _expected(numbers: Mapping[str, Any]) -> str:
    expected = numbers.get("notifications_expected")
    return "" if expected in (None, 1) else f", one of {count(expected)} expected"


def _reason(numbers: Mapping[str, Any]) -> str:
    return "" if numbers.get("reason") is None else f": {numbers['reason']}"


def _handoff(numbers: Mapping[str, Any]) -> str:
    side, tokens = numbers.get("handoff_side"), numbers.get("handoff_tokens")
    amount = "KV" if tokens is None else f"the KV of {some(tokens, 'token')}"
    keys = numbers.get("handoff_keys")
    name = f" as {keys[0]}" if keys else ""
    if side == Side.DECLINES:
        return f"{amount} declined{name}: the request was refused, or its client left, before it was scheduled"
    return f"{amount} {'kept for another engine' if side == Side.GIVES else 'to be read from another engine'}{name}"


def _blocks(numbers: Mapping[str, Any]) -> str:
    number, by_group = numbers.get("blocks_count"), numbers.get("blocks_by_group")
    text = "blocks" if number is None else some(number, "block")
    return text if by_group is None else f"{text} ({' | '.join(map(count, by_group))} by KV cache group)"

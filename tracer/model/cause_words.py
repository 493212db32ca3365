"""Sentences that explain why tokens of a prompt were reused or computed, for pages and terminal alike.

A part has the form of the API: `cause`, `tier`, `start`, `tokens`, and its details, if known. A run joins adjacent parts that
one sentence explains. If its parts were lost at several moments, `at_ns` is the first and `to_ns` the last. If several
requests caused it, `request` is the one with most tokens, and `others` is the number of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from kvtrail.tracer.model.causes import PEER, REUSED, Cause
from kvtrail.tracer.model.words import count, duration, percent, some

Part = Mapping[str, Any]
Run = dict[str, Any]
FEW = 24
"""Number of runs that can be read one by one. If there are more, runs with different causing requests are joined."""
_SAME_CAUSE = ("cause", "tier", "why", "engine", "unstored", "refusal", "group", "reason")
_SAME_REQUEST = (*_SAME_CAUSE, "request")
VLLM = "gpu"
"""The tier of vLLM's own cache."""
_TIERS = {VLLM: "vLLM's cache", "": "the connector's store", "store": "the connector's store", PEER: "another engine"}
_UNKNOWN_REASONS = {
    "block_hashes": "the hashes of its blocks were not recorded: `block_hashes` is off, or the level is `basic`",
    "chain": "its prompt begins like an earlier one, and the hashes of that one were lost or forgotten",
    "cache_events": (
        "what vLLM's own cache gains and loses was not recorded: `block_hashes` is off, the level is `basic`, or this vLLM"
        " cannot"
    ),
    "groups": (
        "the model has several KV cache groups, and what a hit needs of one of them, or what the connector's store holds of"
        " each, is not known"
    ),
    "probe": "no probe shows what the connector's store gains and loses",
    "fleet": (
        "this engine never computed it; whether other engines of the model did cannot be decided: their hashes have another"
        " algorithm or seed, or their caches another layout"
    ),
    "lost": "events are missing that may show it",
    "late": "it may have happened before kvtrail listened",
    "contradiction": "what a cache reported and what it answered contradict each other",
    "order": "several caches have lost it, and which was the last is not known",
}
_UNSTORED = {
    "full": "there was no room for it",
    "failed": "its transfer failed",
    "partial": "it was no full chunk",
    "unasked": "the connector did not ask for it",
}
_REFUSALS = {
    "declined": "the connector offered none of it",
    "capped": "the connector offered less",
    "given-up": "the connector answered 'ask me later', and in the end offered none of it",
    "untaken": "the connector offered it, and vLLM did not take it",
    "guarded": "the guard took the connector's offer back",
}
_ENDS = {
    "cut_off": "its engine ended",
    "failed": "a call about it raised",
    "aborted": "it was aborted",
    "error": "it failed",
    "preempted": "it was preempted",
}
_ENDED = "it ended"
_NOT_KNOWN = "not known"
_IN_SUMS = {
    "evicted": "had been held and evicted",
    "reset": "had been held until a cache was emptied",
    "new": "was never computed before",
    "unaligned": "was in the partial last block",
    "last-token": "was held, and computed again by rule",
    "stranded": "was held behind a hole",
    "pending": "was still being computed or stored",
    "refused": "was held or handed over, and not given or not taken",
    "failed-load": "was promised, and its load failed",
    "elsewhere": "had been computed by another engine only",
    "uncached": "had been computed, but a KV cache group never kept its part",
    "not-computed": "was not computed, since the request had ended",
}


def runs(parts: Sequence[Part], *, few: int = FEW) -> list[Run]:
    """The runs of a prompt, in order."""
    found = _joined(parts, _SAME_REQUEST)
    return found if len(found) <= few else _joined(parts, _SAME_CAUSE)


def _joined(parts: Iterable[Part], names: Sequence[str]) -> list[Run]:
    """The parts, with adjacent ones joined if they agree in these fields."""
    return [_run(list(group)) for _, group in groupby(parts, key=lambda part: [part.get(name) for name in names])]


def _run(parts: Sequence[Part]) -> Run:
    run = {**parts[0], "tokens": sum(part["tokens"] for part in parts)}
    moments = [part["at_ns"] for part in parts if part.get("at_ns")]
    if moments and min(moments) < max(moments):
        run |= {"at_ns": min(moments), "to_ns": max(moments)}
    by_request: Counter[str] = Counter()
    for part in parts:
        if part.get("request"):
            by_request[part["request"]] += part["tokens"]
    if len(by_request) > 1:
        run |= {"request": by_request.most_common(1)[0][0], "others": len(by_request) - 1}
    return run


def sentence(part: Part, *, at_ns: int) -> str:
    """Why the part's tokens were reused or computed by a request that was admitted at `at_ns`."""
    why, refusal, tier = part.get("why", ""), part.get("refusal", ""), part["tier"]
    match part["cause"]:
        case Cause.HELD:
            return "held by vLLM's own cache"
        case Cause.LOADED:
            return f"{_had(part)}, and loaded" if tier == PEER else f"loaded from {cache(tier)}"
        case Cause.LAST_TOKEN:
            return f"{_had(part)}, and recomputed: the last token always is, for its logits"
        case Cause.UNALIGNED:
            return "partial last block (only full blocks are reused)"
        case Cause.STRANDED:
            return f"held by {cache(tier)}, but not all that comes before it"
        case Cause.PENDING if part.get("request"):
            return f"in the prompt of {_requests(part)}, which has not computed it yet"
        case Cause.PENDING:
            return f"on its way into {cache(tier)}"
        case Cause.REFUSED:
            return f"{_had(part)}, and {_REFUSALS.get(refusal, refusal) or 'not given or not taken'}"
        case Cause.FAILED_LOAD:
            reason = f": {part['reason']}" if part.get("reason") else ""
            return f"{_had(part, 'promised')}, and its load failed{reason}"
        case Cause.NOT_COMPUTED:
            return f"not computed before {_ENDS.get(why, _ENDED)}"
        case Cause.EVICTED:
            room = f", to make room for {_requests(part)}" if part.get("request") else ""
            of = f"{group(part)} of " if group(part) else ""
            return f"evicted from {of}{cache(tier)}{_before(part, at_ns)}{room}{_unstored(part)}"
        case Cause.RESET:
            return f"held by {cache(tier)} until it was reset{_before(part, at_ns)}{_unstored(part)}"
        case Cause.UNCACHED:
            return f"computed before, but {group(part) or 'a KV cache group'} never had its part of it in {cache(tier)}"
        case Cause.ELSEWHERE:
            rest = ", and not handed over to this request" if refusal else ""
            return f"computed by {part.get('engine') or 'another engine'}, never by this one{rest}"
        case Cause.NEW:
            return "never computed before"
        case Cause.UNKNOWN:
            return f"{_NOT_KNOWN}: {unknown_reason(why)}" if why else _NOT_KNOWN
        case other:
            return name(other)


def named_sentence(part: Mapping[str, Any], *, at_ns: int) -> str:
    """The sentence, preceded by the cause's name unless it begins with the name or says that no cause is known."""
    text, cause = sentence(part, at_ns=at_ns), name(part["cause"])
    return text if text.startswith((cause, _NOT_KNOWN)) else f"{cause}: {text}"


def headline(entry: Mapping[str, Any]) -> str:
    """A sentence about the tokens that an admission had to compute and their main causes. With several KV cache groups, a
    second sentence names the groups that lacked their part."""
    sums, lacked = Counter[str](), Counter[str]()
    reached, ended = entry.get("reached"), entry.get("ended")
    for part in entry["parts"]:
        if part["cause"] not in (*REUSED, Cause.NOT_COMPUTED):
            tokens = part["tokens"] if reached is None else min(part["tokens"], max(0, reached - part["start"]))
            sums[part["cause"]] += tokens
        if of := group(part):
            lacked[of] += part["tokens"]
    tokens = sum(sums.values())
    before = "" if ended is None else f" before {_ENDS.get(ended, _ENDED)}"
    if not tokens:
        return f"None of it was computed{before}."
    means = [f"{percent(part / tokens)} {name(cause)}" for cause, part in (+sums).most_common(2)]
    by_group = "; ".join(f"{of} lacked {count(part)} of them" for of, part in lacked.most_common())
    were = "was" if tokens == 1 else "were"
    most = "" if ended is None or reached is not None else "At most "
    computed = f"{most}{some(tokens, 'token')} of {count(entry['total'])} {were} computed{before}: {', '.join(means)}."
    return f"{computed} {by_group}." if by_group else computed


def name(cause: str) -> str:
    """A cause in words."""
    return cause.replace("-", " ")


def in_sums(cause: str) -> str:
    """The words that follow the share of tokens with this cause: 40 % had been held and evicted."""
    return _IN_SUMS.get(cause, name(cause))


def unknown_reason(why: str) -> str:
    """Why a cause is unknown, by a value of `causes.NotRecorded`."""
    return _UNKNOWN_REASONS.get(why, why)


def unstored_reason(why: str) -> str:
    """Why a connector's store never had a block, by a value of `Detail.unstored`."""
    return _UNSTORED.get(why, why)


def cache(tier: str) -> str:
    """A tier's name for people."""
    return _TIERS.get(tier, tier)


def group(part: Mapping[str, Any]) -> str:
    """The KV cache group that had lost its part; empty if there is only one group."""
    if part.get("group") is None:
        return ""
    return f"KV cache group {group_name(part['group'], str(part.get('group_kind', '')))}"


def group_name(number: object, kind: str) -> str:
    """A KV cache group's number, with its kind where that is known."""
    return f"{number} ({kind.replace('_', ' ')})" if kind else str(number)


def _requests(part: Mapping[str, Any]) -> str:
    """The request that caused it, and for a run the number of others."""
    others = part.get("others", 0)
    return f"{part['request']} and {some(others, 'other')}" if others else str(part["request"])


def _had(part: Mapping[str, Any], how: str = "held") -> str:
    """The holder of the part: a cache, or another engine that handed it over."""
    if part["tier"] == PEER:
        return f"handed over by {part.get('engine') or cache(PEER)}"
    return f"{how} by {cache(part['tier'])}"


def _before(part: Mapping[str, Any], at_ns: int) -> str:
    """The time between the event and the admission; for a run, the shortest and the longest."""
    if not part.get("at_ns"):
        return ""
    longest, shortest = (duration(max(0, at_ns - part.get(name, part["at_ns"]))) for name in ("at_ns", "to_ns"))
    return f" {longest} before" if shortest == longest else f" {shortest} to {longest} before"


def _unstored(part: Mapping[str, Any]) -> str:
    """Why the connector's store never had it."""
    why = part.get("unstored", "")
    return f"; the connector's store never had it: {unstored_reason(why)}" if why else ""

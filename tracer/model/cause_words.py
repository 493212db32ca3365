"""Why tokens of a prompt were reused or computed, as people read it: the words of a part, for pages and terminal alike.

A part is as the api has it: `cause`, `tier`, `start`, `tokens`, and what explains it, as far as that is known; or it is a run
of such parts (`cause_runs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.words import count, duration, percent, some

VLLM = "gpu"
"""The tier of vLLM's own cache."""
_TIERS = {VLLM: "vLLM's cache", "": "the connector's store", "store": "the connector's store"}
_UNTOLD = {
    "block_hashes": "the hashes of its blocks were not recorded: `block_hashes` is off, or the level is `basic`",
    "chain": "its prompt begins like an earlier one, of which the hashes were lost or forgotten",
    "cache_events": (
        "what vLLM's own cache gains and loses was not recorded: `cache_events` is off, the level is `basic`, or this vLLM"
        " cannot"
    ),
    "groups": "the first KV cache group holds it, and the model has others, of which kvtrail does not know what a hit needs",
    "probe": "no probe shows what the connector's store gains and loses",
    "fleet": (
        "this engine never computed it; whether others of the model did cannot be said: their hashes have another algorithm"
        " or seed, or their caches another form"
    ),
    "lost": "events are missing that may have told it",
    "late": "it may have happened before kvtrail listened",
    "contradiction": "what was told of a cache and what it answered cannot both be true",
    "order": "several caches have lost it, and which of them was the last is not known",
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
    "given-up": "the connector asked for time, and offered none of it then",
    "untaken": "the connector offered it, and vLLM did not take it",
}


def sentence(part: Mapping[str, Any], *, at_ns: int) -> str:
    """Why the part's tokens were reused or computed by a request that was admitted at `at_ns`."""
    words = _WORDS.get(part["cause"])
    return name(part["cause"]) if words is None else words(part, at_ns)


def named_sentence(part: Mapping[str, Any], *, at_ns: int) -> str:
    """The sentence with the cause's name before it, unless it begins with that."""
    said, cause = sentence(part, at_ns=at_ns), name(part["cause"])
    return said if said.startswith(cause) else f"{cause}: {said}"


def headline(entry: Mapping[str, Any]) -> str:
    """Of an admission: what was computed, and the largest reasons for it, in a sentence."""
    sums = Counter[str]()
    for part in entry["parts"]:
        if part["cause"] not in REUSED:
            sums[part["cause"]] += part["tokens"]
    tokens = sum(sums.values())
    if not tokens:
        return "Nothing of it was computed."
    means = [f"{percent(part / tokens)} {name(cause)}" for cause, part in sums.most_common(2)]
    return f"{some(tokens, 'token')} of {count(entry['total'])} were computed: {', '.join(means)}."


def name(cause: str) -> str:
    """A cause in words."""
    return cause.replace("-", " ")


def untold(why: str) -> str:
    """Why a cause is unknown, of those that `causes.Untold` has."""
    return _UNTOLD.get(why, why)


def cache(tier: str) -> str:
    """A tier by the name that people know."""
    return _TIERS.get(tier, tier)


def _held(part: Mapping[str, Any], at_ns: int) -> str:
    return "held by vLLM's own cache"


def _loaded(part: Mapping[str, Any], at_ns: int) -> str:
    return f"loaded from {cache(part['tier'])}"


def _last_token(part: Mapping[str, Any], at_ns: int) -> str:
    return f"held by {cache(part['tier'])}, and computed again by rule: the last token always is"


def _unaligned(part: Mapping[str, Any], at_ns: int) -> str:
    return "behind the last full block: only full blocks are reused"


def _stranded(part: Mapping[str, Any], at_ns: int) -> str:
    return f"held by {cache(part['tier'])}, but not all that comes before it"


def _pending(part: Mapping[str, Any], at_ns: int) -> str:
    if part.get("request"):
        return f"in the prompt of {_whose(part)}, not done with it yet"
    return f"on its way into {cache(part['tier'])}"


def _refused(part: Mapping[str, Any], at_ns: int) -> str:
    how = part.get("refusal", "")
    return f"held by {cache(part['tier'])}, and {_REFUSALS.get(how, how) or 'not given or not taken'}"


def _failed_load(part: Mapping[str, Any], at_ns: int) -> str:
    return f"promised by {cache(part['tier'])}, and its load failed"


def _evicted(part: Mapping[str, Any], at_ns: int) -> str:
    room = f", to make room for {_whose(part)}" if part.get("request") else ""
    return f"evicted from {cache(part['tier'])}{_before(part, at_ns)}{room}{_unstored(part)}"


def _reset(part: Mapping[str, Any], at_ns: int) -> str:
    return f"held by {cache(part['tier'])} until that was emptied{_before(part, at_ns)}{_unstored(part)}"


def _elsewhere(part: Mapping[str, Any], at_ns: int) -> str:
    return f"computed by {part.get('engine') or 'another engine'}, and never by this one"


def _new(part: Mapping[str, Any], at_ns: int) -> str:
    return "never computed before"


def _unknown(part: Mapping[str, Any], at_ns: int) -> str:
    why = part.get("why", "")
    return f"not known: {untold(why)}" if why else "not known"


def _whose(part: Mapping[str, Any]) -> str:
    """The request that did it; of a run, also how many others."""
    others = part.get("others", 0)
    return f"{part['request']} and {some(others, 'other')}" if others else str(part["request"])


def _before(part: Mapping[str, Any], at_ns: int) -> str:
    """How long before the admission it happened, or of a run, the shortest time and the longest."""
    if not part.get("at_ns"):
        return ""
    longest, shortest = (duration(max(0, at_ns - part.get(name, part["at_ns"]))) for name in ("at_ns", "to_ns"))
    return f" {longest} before" if shortest == longest else f" {shortest} to {longest} before"


def _unstored(part: Mapping[str, Any]) -> str:
    """Why the connector's store never had it."""
    why = part.get("unstored", "")
    return f"; the connector's store never had it: {_UNSTORED.get(why, why)}" if why else ""


_WORDS = {
    "held": _held,
    "loaded": _loaded,
    "last-token": _last_token,
    "unaligned": _unaligned,
    "stranded": _stranded,
    "pending": _pending,
    "refused": _refused,
    "failed-load": _failed_load,
    "evicted": _evicted,
    "reset": _reset,
    "elsewhere": _elsewhere,
    "new": _new,
    "unknown": _unknown,
}

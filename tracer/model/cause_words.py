"""Why tokens of a prompt were reused or computed, as people read it: the words of a part, for pages and terminal alike.

A part is as the api has it: `cause`, `tier`, `start`, `tokens`, and what explains it, as far as that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtrail.tracer.model.words import duration

VLLM = "gpu"
"""The tier of vLLM's own cache."""
_TIERS = {VLLM: "vLLM's cache", "": "the connector's store", "store": "the connector's store"}
_UNTOLD = {
    "block_hashes": "the hashes of its blocks were not recorded: `block_hashes` is off, or the level is `basic`",
    "chain": "its prompt begins like an earlier one, of which the hashes were lost or forgotten",
    "cache_events": "what vLLM's own cache gains and loses was not recorded: `cache_events` is off, or this vLLM cannot",
    "probe": "no probe shows what the connector's store gains and loses",
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


def sentence(part: Mapping[str, Any], *, at_ns: int) -> str:
    """Why the part's tokens were reused or computed by a request that was admitted at `at_ns`."""
    words = _WORDS.get(part["cause"])
    return str(part["cause"]) if words is None else words(part, at_ns)


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
        return f"in the prompt of {part['request']}, which was not done with it"
    return f"on its way into {cache(part['tier'])}"


def _refused(part: Mapping[str, Any], at_ns: int) -> str:
    return f"held by {cache(part['tier'])}, and not given or not taken"


def _failed_load(part: Mapping[str, Any], at_ns: int) -> str:
    return f"promised by {cache(part['tier'])}, and its load failed"


def _evicted(part: Mapping[str, Any], at_ns: int) -> str:
    room = f", to make room for {part['request']}" if part.get("request") else ""
    return f"evicted from {cache(part['tier'])}{_before(part, at_ns)}{room}{_unstored(part)}"


def _reset(part: Mapping[str, Any], at_ns: int) -> str:
    return f"held by {cache(part['tier'])} until that was emptied{_before(part, at_ns)}{_unstored(part)}"


def _elsewhere(part: Mapping[str, Any], at_ns: int) -> str:
    return f"computed by {part.get('engine') or 'another engine'}, and never by this one"


def _new(part: Mapping[str, Any], at_ns: int) -> str:
    return "never computed before"


def _unknown(part: Mapping[str, Any], at_ns: int) -> str:
    why = part.get("why", "")
    return f"not known: {_UNTOLD.get(why, why)}" if why else "not known"


def _before(part: Mapping[str, Any], at_ns: int) -> str:
    """How long before the admission it happened."""
    return f" {duration(max(0, at_ns - part['at_ns']))} before" if part.get("at_ns") else ""


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

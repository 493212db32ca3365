"""Sums of the tokens of prompts by their cause: what an admission adds to its cell, and what such sums mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from kvtrail.tracer.causes.followed import Breakdown
from kvtrail.tracer.model.causes import Cause

CAUSE = "cause:"
"""Prefix of a measure of tokens: the cause follows, and its tier or, of an unknown one, what would tell it."""
AGE, AGED = "cause-age:", "cause-aged:"
"""Prefixes of what was lost: milliseconds from its loss to the admission, summed over its tokens; and these tokens."""
_AGING = (Cause.EVICTED, Cause.RESET)


def measures_of(breakdown: Breakdown, tier_of: Callable[[str], str]) -> Counter[str]:
    """What an admission adds; `tier_of` gives the name by which a tier is counted."""
    measures: Counter[str] = Counter()
    for part in breakdown.parts:
        name = f"{part.cause}:{part.detail.why or (tier_of(part.tier) if part.tier else '')}"
        measures[CAUSE + name] += part.tokens
        if part.cause in _AGING and part.detail.at_ns:
            age_ms = max(0, breakdown.event.end_ns - part.detail.at_ns) // 10**6
            measures[AGE + name] += part.tokens * age_ms
            measures[AGED + name] += part.tokens
    return measures


def causes_of(measures: Mapping[str, int]) -> dict[str, int]:
    """Tokens by cause and tier, `evicted:host`; of those that are unknown by what would tell their cause, `unknown:lost`."""
    return {name.removeprefix(CAUSE): tokens for name, tokens in sorted(measures.items()) if name.startswith(CAUSE)}


def ages_of(measures: Mapping[str, int]) -> dict[str, float]:
    """How many seconds before its admission a token was lost, on average, by cause."""
    ages: dict[str, float] = {}
    for cause in _AGING:
        age_ms, aged = (
            sum(value for name, value in measures.items() if name.startswith(f"{prefix}{cause}:"))
            for prefix in (AGE, AGED)
        )
        if aged:
            ages[cause.value] = age_ms / aged / 1e3
    return ages

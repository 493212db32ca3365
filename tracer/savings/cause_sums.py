"""Sums of prompt tokens by cause: the measures that an admission adds, and how to read their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvtrail.tracer.ledger.facts import Breakdown
from kvtrail.tracer.model.causes import Cause
from kvtrail.tracer.model.tenants import OTHER, PLAIN

CAUSE = "cause:"
"""Prefix of a measure of tokens. The cause follows, then its tier or, if unknown, the information that would show it."""
AGE, AGED = "cause-age:", "cause-aged:"
"""Prefixes of two measures of lost tokens: milliseconds from loss to admission, summed over the tokens, and their number."""
UNSTORED = "cause-unstored:"
"""Prefix of a measure of tokens that vLLM's cache had lost and the connector's store never had. The cause follows, then the
reason why the store never had them."""
TENANT = "tenant:"
"""Prefix of a measure of tokens. A tenant follows, then the cause."""
GROUP = "cause-group:"
"""Prefix of a measure of tokens. The number and kind of the KV cache group that lacked its part follow, then the cause."""
MAX_TENANTS = 32
"""Maximum number of distinguished tenants."""
_AGING = (Cause.EVICTED, Cause.RESET)


def tenant_of(identity: str | None) -> str:
    """The tenant of requests with this cache salt and adapter."""
    return (identity or PLAIN).replace(":", "_")


@dataclass(slots=True)
class FirstNames:
    """Bounds the number of distinguished names: the first `most` of them; all others are `OTHER`."""

    most: int
    _known: set[str] = field(default_factory=set)

    def of(self, name: str) -> str:
        """The name under which this one is counted."""
        if name not in self._known and len(self._known) >= self.most:
            return OTHER
        self._known.add(name)
        return name


def measures_of(breakdown: Breakdown, tier_of: Callable[[str], str], *, tenant: str = PLAIN) -> dict[str, int]:
    """The measures that an admission adds; `tier_of` gives the name under which a tier is counted. Tokens of the plain
    tenant get no measure of their own: they are the rest."""
    measures: dict[str, int] = {}

    def add(measure: str, count: int) -> None:
        measures[measure] = measures.get(measure, 0) + count

    for part in breakdown.parts:
        tokens, detail = part.tokens, part.detail
        name = f"{part.cause}:{detail.why or (tier_of(part.tier) if part.tier else '')}"
        add(CAUSE + name, tokens)
        if tenant != PLAIN:
            add(f"{TENANT}{tenant}:{part.cause}", tokens)
        if detail.group is not None:
            kind = detail.group_kind.replace(":", "_")
            add(f"{GROUP}{detail.group}:{kind}:{part.cause}", tokens)
        if detail.unstored:
            add(f"{UNSTORED}{part.cause}:{detail.unstored}", tokens)
        if part.cause in _AGING and detail.at_ns:
            add(AGE + name, tokens * (max(0, breakdown.event.end_ns - detail.at_ns) // 10**6))
            add(AGED + name, tokens)
    return measures


def causes_of(measures: Mapping[str, int]) -> dict[str, int]:
    """Tokens by cause and tier, as in `evicted:host`; unknown ones by the missing information, as in `unknown:lost`."""
    return {name.removeprefix(CAUSE): tokens for name, tokens in sorted(measures.items()) if name.startswith(CAUSE)}


def tenants_of(measures: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Tokens by tenant and cause; empty if there is only the plain tenant."""
    tenants = with_plain(measures)
    return {} if tenants.keys() <= {PLAIN} else tenants


def with_plain(measures: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Tokens by tenant and cause, even if there is only the plain tenant."""
    tenants: dict[str, Counter[str]] = {}
    plain: Counter[str] = Counter()
    for name, tokens in measures.items():
        if name.startswith(CAUSE):
            plain[name.split(":")[1]] += tokens
        elif name.startswith(TENANT):
            _, tenant, cause = name.split(":")
            tenants.setdefault(tenant, Counter())[cause] += tokens
            plain[cause] -= tokens
    if rest := +plain:
        tenants[PLAIN] = rest
    return {tenant: dict(sorted(causes.items())) for tenant, causes in sorted(tenants.items())}


def lacking_of(measures: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Tokens by the KV cache group that lacked its part of them, as in `1:sliding_window`, and by cause. Empty if no model
    has several groups."""
    found: dict[str, dict[str, int]] = {}
    for name, tokens in sorted(measures.items()):
        if name.startswith(GROUP):
            group, _, cause = name.removeprefix(GROUP).rpartition(":")
            found.setdefault(group, {})[cause] = tokens
    return found


def unstored_of(measures: Mapping[str, int]) -> dict[str, int]:
    """Tokens that vLLM's cache had lost and the connector's store never had, by cause and why: `evicted:full`."""
    return {name.removeprefix(UNSTORED): value for name, value in sorted(measures.items()) if name.startswith(UNSTORED)}


def ages_of(measures: Mapping[str, int]) -> dict[str, float]:
    """The mean time in seconds between the loss of a token and its admission, by cause."""
    ages: dict[str, float] = {}
    for cause in _AGING:
        age_ms, aged = (
            sum(value for name, value in measures.items() if name.startswith(f"{prefix}{cause}:"))
            for prefix in (AGE, AGED)
        )
        if aged:
            ages[cause.value] = age_ms / aged / 1e3
    return ages

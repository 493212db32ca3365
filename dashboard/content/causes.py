"""Why the tokens of a range were computed: sums by cause from `/api/efficiency`: tokens by `cause:tier`, and tokens of
unknown cause by the missing data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.legend import Entry
from kvtrail.tracer.model.cause_words import (
    VLLM,
    cache,
    group_name,
    in_sums,
    name,
    unknown_reason,
    unstored_reason,
)
from kvtrail.tracer.model.causes import REUSED
from kvtrail.tracer.model.tenants import OTHER, PLAIN
from kvtrail.tracer.model.words import count, percent

TENANT = "tenant"
KV_CACHE_GROUP = "KV cache group"
BY = ("engine", "connector", "model", TENANT, KV_CACHE_GROUP)
"""The labels by which sums can be grouped. KV cache group means the group that lacked the tokens, for models with several."""
MAX_GROUPS = 12
"""Maximum number of groups with a bar, the largest first."""
LEAST_SHARE = 0.005
"""Shares that round to 0 % are omitted."""


def colour(cause: str, *, dark: bool) -> str:
    """The colour of a cause; grey for a newer tracer's."""
    return (palette.CAUSE[cause].colour if cause in palette.CAUSE else palette.GREY).on(dark=dark)


def computed(sums: Row) -> dict[str, int]:
    """The computed tokens by cause, in the order of the causes; a newer tracer's come last."""
    found: Counter[str] = Counter()
    for measure, tokens in _by_tier(sums).items():
        found[measure.partition(":")[0]] += tokens
    return {cause: found[cause] for cause in sorted(found, key=lambda each: [*palette.CAUSE, each].index(each))}


def _by_tier(sums: Row) -> dict[str, int]:
    """The computed tokens by cause and tier."""
    return {
        measure: tokens
        for measure, tokens in (sums.get("causes") or {}).items()
        if tokens and measure.partition(":")[0] not in REUSED
    }


def time_rows(efficiency: Row) -> list[Row]:
    """The computed tokens of each interval by cause."""
    names = list(computed(efficiency["worth"]))
    return [
        {"cause": name(cause), "order": order, "tokens": tokens, "share": _share(tokens, sums),
         "at": interval["at_ns"] // 10**6, "to": interval["at_ns"] // 10**6 + efficiency["step_s"] * 1000,
         "time": text.clock(interval["at_ns"]).rpartition(".")[0]}
        for interval in efficiency["trend"]
        if (sums := computed(interval["worth"]))
        for order, cause in enumerate(names)
        if (tokens := sums.get(cause, 0))
    ]  # fmt: skip


def groups(savings: Row, models: Mapping[str, str]) -> dict[str, dict[str, dict[str, int]]]:
    """The computed tokens by cause, for each engine, connector, model, tenant and KV cache group: by label, then its value.
    `models` are those of the engines."""
    found: dict[str, dict[str, Counter[str]]] = {by: {} for by in BY}
    for place in savings["by_place"]:
        engine = place["engine"]
        sums = computed(place["worth"])
        named = (savings["engine_names"].get(engine, engine), place["connector"], models.get(engine) or "not known")
        for by, each in zip(BY, named, strict=False):
            found[by].setdefault(each, Counter()).update(sums)
    names = savings.get("tenant_names") or {}
    for tenant, tokens in (savings.get("by_tenant") or {}).items():
        shown = tenant_name(tenant, names)
        found[TENANT].setdefault(shown, Counter()).update(computed({"causes": tokens}))
    for number_and_kind, tokens in (savings.get("by_group") or {}).items():
        number, _, kind = number_and_kind.partition(":")
        found[KV_CACHE_GROUP][group_name(number, kind)] = Counter(computed({"causes": tokens}))
    return {
        by: {each: dict(sums) for each, sums in sorted(of.items(), key=_most_first)[:MAX_GROUPS] if sums}
        for by, of in found.items()
        if any(of.values())
    }


def _most_first(group: tuple[str, Counter[str]]) -> tuple[int, str]:
    return -group[1].total(), group[0]


def tenant_name(tenant: str, names: Mapping[str, str]) -> str:
    """A tenant's display name: that of the sidecar's file of names, or else the beginning of its digest."""
    return names.get(tenant) or {PLAIN: "without salt or adapter", OTHER: "other tenants"}.get(tenant, tenant[:8])


def group_rows(sums_of: Mapping[str, Mapping[str, int]]) -> list[Row]:
    """The computed tokens of each group by cause."""
    return [
        {"group": group, "cause": name(cause), "order": order, "tokens": tokens, "share": _share(tokens, sums)}
        for group, sums in sums_of.items()
        for order, cause in enumerate(palette.CAUSE)
        if (tokens := sums.get(cause, 0))
    ]


def _share(tokens: int, sums: Mapping[str, int]) -> str:
    return f"{count(tokens)} ({percent(tokens / sum(sums.values()))})"


def sum_names(sums: Row, *, dark: bool) -> list[Entry]:
    """The causes of the computed tokens, with their shares."""
    causes = computed(sums)
    return [
        Entry(
            name(cause),
            colour(cause, dark=dark),
            value=percent(tokens / sum(causes.values())),
            help=palette.CAUSE[cause].means if cause in palette.CAUSE else "",
        )
        for cause, tokens in causes.items()
    ]


def unknown(sums: Row) -> str:
    """The share of unknown cause, and the missing data, in sentences; empty if all causes are known."""
    found = _by_tier(sums)
    whole = sum(found.values())
    return " ".join(
        f"Of {percent(tokens / whole)} the cause is not known: {unknown_reason(measure.partition(':')[2])}."
        for measure, tokens in sorted(found.items(), key=lambda each: -each[1])
        if measure.startswith("unknown:") and tokens / whole >= LEAST_SHARE
    )


def largest(sums: Row) -> str:
    """The largest cause of computed tokens and the cache that lost them, in a sentence; empty if it is not known."""
    found = _by_tier(sums)
    measure = max(found, key=found.__getitem__, default="unknown")
    cause, _, tier = measure.partition(":")
    if cause == "unknown":
        return ""
    age_s = sums.get("causes_age_s", {}).get(cause)
    before = f" {text.seconds(age_s)} before, on average" if age_s else ""
    lost = f", from {cache(tier)}" if cause in ("evicted", "reset") else ""
    share = percent(found[measure] / sum(found.values()))
    return f"{share} of what was computed {in_sums(cause)}{before}{lost}{_unstored(sums, cause)}."


def _unstored(sums: Row, cause: str) -> str:
    """Of the tokens that vLLM's cache lost by this cause: the share that the connector's store never had, and why."""
    lost = sums["causes"].get(f"{cause}:{VLLM}", 0)
    of = (sums.get("unstored") or {}).items()
    by_reason = Counter({name.partition(":")[2]: tokens for name, tokens in of if name.startswith(f"{cause}:")})
    if not lost or by_reason.total() < LEAST_SHARE * lost:
        return ""
    reasons = (f"{percent(tokens / lost)}: {unstored_reason(why)}" for why, tokens in by_reason.most_common(2))
    return f". Of that the connector's store never had {'; '.join(reasons)}"

"""What the sums of `efficiency` mean: shares, rates, and the prefill that the offload saved. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvtrail.tracer.detect.efficiency import MINUTE_S, TIER

HOUR_S = 3600
BY_MINUTE_UP_TO_NS = 6 * HOUR_S * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The measures of one stretch of time, engine, connector and epoch.

    Attributes:
        at_s: where the stretch begins, Unix seconds.
        engine, connector, epoch: whose they are; the last epoch holds all later ones as well.
        measures: sums by name; a measure that is absent is 0.
    """

    at_s: int
    engine: str
    connector: str
    epoch: int
    measures: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the offload did, over some rows. Counts are tokens unless their name says otherwise; None: not known.

    Attributes:
        admissions: how often a request was given blocks, after a preemption again.
        asked: tokens of the requests at these moments.
        local: of those, what vLLM's own prefix cache held.
        taken: of those, what the connector was to bring.
        tiers: `taken` by where it came from; `store` where the connector does not say.
        hit_share, local_share: `taken` and `local` of `asked`.
        spared: what was taken and not computed.
        recomputed: what the connector's store held and was computed all the same.
        hidden: admissions whose connector hides what its store held, so that nothing is known of `recomputed`.
        failed: what was to be loaded and failed.
        lookups, lookups_unused, lookups_postponed: calls; those whose answer nothing took; those answered 'ask me later'.
        unused: what the unused lookups had promised.
        lookup_s: time that lookups took on the scheduler's thread.
        waits: asynchronous loads that were waited for.
        waited_s: how long their requests waited, together; `postponed_s`: how long 'ask me later' held requests up.
        load_tokens, store_tokens: copied, each token once however many ranks copy a share of it.
        load_bytes, store_bytes: where workers tell them.
        load_s, store_s: time of the workers' copies; a rank's each.
        load_bytes_per_s, store_bytes_per_s: while one rank copies.
        preemptions: how often requests were preempted.
        prefill_tokens_per_s: as the engines' own steps show it, over all engines.
        prefill_saved_s: `spared` at the rate of the engine that spared it.
        spared_unrated: what engines spared whose rate is not known; it is not in `prefill_saved_s`.
    """

    admissions: int
    asked: int
    local: int
    taken: int
    tiers: Mapping[str, int]
    hit_share: float | None
    local_share: float | None
    spared: int
    recomputed: int
    hidden: int
    failed: int
    lookups: int
    lookups_unused: int
    lookups_postponed: int
    unused: int
    lookup_s: float
    waits: int
    waited_s: float
    postponed_s: float
    load_tokens: int
    store_tokens: int
    load_bytes: int
    store_bytes: int
    load_s: float
    store_s: float
    load_bytes_per_s: float | None
    store_bytes_per_s: float | None
    preemptions: int
    prefill_tokens_per_s: float | None
    prefill_saved_s: float | None
    spared_unrated: int


def worth(rows: Iterable[Row], *, rates: Mapping[str, float] | None = None) -> Worth:
    """Sum up rows; `rates` are engines' prefill rates in tokens per second, where other rows than these show them."""
    rows = list(rows)
    rates = prefill_rates(rows) if rates is None else rates
    n: Counter[str] = Counter()
    spared: Counter[str] = Counter()
    for row in rows:
        n.update(row.measures)
        spared[row.engine] += row.measures.get("spared", 0)
    rated = {engine for engine, tokens in spared.items() if tokens and engine in rates}
    return Worth(
        admissions=n["admissions"],
        asked=n["asked"],
        local=n["local"],
        taken=n["taken"],
        tiers={name.removeprefix(TIER): tokens for name, tokens in sorted(n.items()) if name.startswith(TIER)},
        hit_share=_share(n["taken"], n["asked"]),
        local_share=_share(n["local"], n["asked"]),
        spared=n["spared"],
        recomputed=n["recomputed"],
        hidden=n["admissions_hidden"],
        failed=n["failed"],
        lookups=n["lookups"],
        lookups_unused=n["lookups_unused"],
        lookups_postponed=n["lookups_postponed"],
        unused=n["unused"],
        lookup_s=n["lookup_ns"] / 1e9,
        waits=n["waits"],
        waited_s=n["waited_ns"] / 1e9,
        postponed_s=n["postponed_ns"] / 1e9,
        load_tokens=n["load_tokens"],
        store_tokens=n["store_tokens"],
        load_bytes=n["load_bytes"],
        store_bytes=n["store_bytes"],
        load_s=n["load_ns"] / 1e9,
        store_s=n["store_ns"] / 1e9,
        load_bytes_per_s=_share(n["load_bytes"], n["load_bytes_ns"] / 1e9),
        store_bytes_per_s=_share(n["store_bytes"], n["store_bytes_ns"] / 1e9),
        preemptions=n["preemptions"],
        prefill_tokens_per_s=_share(n["prefill"], n["prefill_ns"] / 1e9),
        prefill_saved_s=sum(spared[engine] / rates[engine] for engine in rated) if rated else None,
        spared_unrated=sum(tokens for engine, tokens in spared.items() if engine not in rated),
    )


def prefill_rates(rows: Iterable[Row]) -> dict[str, float]:
    """Prefill tokens per second of each engine, as its own steps show them; without those that show none."""
    tokens: Counter[str] = Counter()
    took_ns: Counter[str] = Counter()
    for row in rows:
        tokens[row.engine] += row.measures.get("prefill", 0)
        took_ns[row.engine] += row.measures.get("prefill_ns", 0)
    return {engine: tokens[engine] / took_ns[engine] * 1e9 for engine in tokens if tokens[engine] and took_ns[engine]}


def step_of(since_ns: int, until_ns: int) -> int:
    """Seconds of the stretches by which a window is read: minutes, and hours in windows of more than six of them."""
    return MINUTE_S if until_ns - since_ns <= BY_MINUTE_UP_TO_NS else HOUR_S


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None

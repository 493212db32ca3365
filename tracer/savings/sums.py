"""Derives hit rates, and tokens and time saved, from the sums of any rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvtrail.tracer.model.causes import PEER, Cause
from kvtrail.tracer.savings.cause_sums import CAUSE, ages_of, causes_of, unstored_of
from kvtrail.tracer.savings.minute_sums import SavingsRow

HANDED = f"{CAUSE}{Cause.LOADED}:{PEER}"
"""The measure of tokens that were handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """The results of the offload over some rows. Counts are tokens unless their name says otherwise; None means unknown.

    Attributes:
        admissions: the number of times that a request was given blocks, including after a preemption.
        asked: tokens of the requests at their admissions.
        local: the part of `asked` in vLLM's own prefix cache.
        taken: the part of `asked` that the connector was to load.
        causes: tokens of admissions by the cause of their reuse or computation, and by tier: `evicted:host`, `new:`.
        causes_age_s: mean seconds between the loss of a token and its admission, by cause.
        unstored: tokens that vLLM's cache had lost and the connector's store never had, by cause and reason
            (`evicted:full`): there was no room (`full`), the transfer failed (`failed`), they were no full chunk (`partial`),
            or the connector did not ask for them (`unasked`).
        hit_share, local_share: `taken` and `local` as shares of `asked`.
        spared: tokens that were taken and not computed, excluding tokens that were handed over.
        handed: tokens that another engine computed for the request and handed over, by causes. They saved no computation.
        recomputed: tokens that the connector's store held but that were computed anyway.
        hidden: admissions of a connector that hides what its store held, so that `recomputed` does not cover them.
        failed: tokens that failed to load.
        lookups, lookups_unused: the number of calls, and of calls with an unused answer.
        waits: asynchronous loads that requests waited for.
        waited_s: their total waiting time; `postponed_s`: the total delay of requests by 'ask me later'.
        load_tokens, store_tokens: tokens copied, each once however many ranks copy a share of it.
        load_bytes, store_bytes: bytes copied, where workers report them.
        load_s, store_s: duration of the workers' copies, summed over ranks.
        load_bytes_per_s, store_bytes_per_s: the rate of one rank while it copies.
        preemptions: the number of preemptions.
        prefill_tokens_per_s: measured from the engines' own steps, over all engines.
        prefill_saved_s: the time for `spared` at the prefill rates of the engines that did not have to compute it.
        spared_unrated: `spared` of engines with an unknown prefill rate; not part of `prefill_saved_s`.
    """

    admissions: int
    asked: int
    local: int
    taken: int
    causes: Mapping[str, int]
    causes_age_s: Mapping[str, float]
    unstored: Mapping[str, int]
    hit_share: float | None
    local_share: float | None
    spared: int
    handed: int
    recomputed: int
    hidden: int
    failed: int
    lookups: int
    lookups_unused: int
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


def savings_of(rows: Iterable[SavingsRow], *, rates: Mapping[str, float] | None = None) -> Savings:
    """Sum up rows; `rates` are the engines' prefill rates in tokens per second, if they come from other rows."""
    rows = list(rows)
    rates = prefill_rates(rows) if rates is None else rates
    n: Counter[str] = Counter()
    spared: Counter[str] = Counter()
    handed: Counter[str] = Counter()
    for row in rows:
        n.update(row.measures)
        spared[row.engine] += row.measures.get("spared", 0)
        handed[row.engine] += row.measures.get(HANDED, 0)
    for engine, tokens in handed.items():
        spared[engine] = max(0, spared[engine] - tokens)
    rated = {engine for engine, tokens in spared.items() if tokens and engine in rates}
    return Savings(
        admissions=n["admissions"],
        asked=n["asked"],
        local=n["local"],
        taken=n["taken"],
        causes=causes_of(n),
        causes_age_s=ages_of(n),
        unstored=unstored_of(n),
        hit_share=_share(n["taken"], n["asked"]),
        local_share=_share(n["local"], n["asked"]),
        spared=spared.total(),
        handed=handed.total(),
        recomputed=n["recomputed"],
        hidden=n["admissions_hidden"],
        failed=n["failed"],
        lookups=n["lookups"],
        lookups_unused=n["lookups_unused"],
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


def prefill_rates(rows: Iterable[SavingsRow]) -> dict[str, float]:
    """Prefill tokens per second of each engine, measured from its own steps; engines without a measurement are left out."""
    tokens: Counter[str] = Counter()
    took_ns: Counter[str] = Counter()
    for row in rows:
        tokens[row.engine] += row.measures.get("prefill", 0)
        took_ns[row.engine] += row.measures.get("prefill_ns", 0)
    return {engine: tokens[engine] / took_ns[engine] * 1e9 for engine in tokens if tokens[engine] and took_ns[engine]}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None

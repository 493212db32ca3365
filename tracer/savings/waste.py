"""Tokens that were computed although a cache had held them, by admission and in sums. Pure.

A loss is named by the prefix at which it begins: the hash of the first lost block, which stands for the whole prompt up to
there. Requests that begin alike and lose the same beginning have the same prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvtrail.tracer.ledger.facts import Breakdown
from kvtrail.tracer.model.causes import Cause
from kvtrail.tracer.model.prefixes import name_of
from kvtrail.tracer.savings.cause_sums import tenant_of

WASTED = (Cause.EVICTED, Cause.RESET, Cause.STRANDED, Cause.REFUSED, Cause.FAILED_LOAD)
"""The causes of tokens that a cache of the engine holds or held, and that were computed anyway. Tokens that another engine
computed (`elsewhere`), or that every prompt computes by rule (`last-token`, `unaligned`), are not wasted."""


class WastedTokens(NamedTuple):
    """The tokens that one admission computed again, for one cause and tier.

    Attributes:
        at_ns: the time of the admission, Unix nanoseconds.
        engine, request, epoch: the admitted request.
        cause, tier: why its tokens were computed, and the cache concerned.
        tenant: as in the sums of causes.
        prefix: the hash of the admission's first lost block, in hexadecimal; empty if hashes are unknown.
        start: the first token of that block.
        tokens: their number.
        admissions: 1 in the first row of an admission, 0 in the others: their sum is the number of admissions.
    """

    at_ns: int
    engine: str
    request: str
    epoch: int
    cause: str
    tier: str
    tenant: str
    prefix: str
    start: int
    tokens: int
    admissions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WasteFilter:
    """Selects the wasted tokens that meet all of its conditions.

    Attributes:
        since_ns, until_ns: admitted at or after `since_ns`, and before `until_ns`.
        tenant, cause: as the rows name them; an empty text means any.
        engines, prefixes: any of these; None means any.
    """

    since_ns: int
    until_ns: int
    tenant: str = ""
    cause: str = ""
    engines: Sequence[str] | None = None
    prefixes: Sequence[str] | None = None


class WasteSum(NamedTuple):
    """The wasted tokens of a group.

    Attributes:
        of: the values of the group's labels, in the requested order.
        tokens: their number.
        admissions: the number of admissions that lost them.
        start: the first token at which a loss begins.
        last_ns: the latest of these admissions.
    """

    of: tuple[str, ...]
    tokens: int
    admissions: int
    start: int
    last_ns: int


def wasted_of(breakdown: Breakdown) -> list[WastedTokens]:
    """The tokens that an admission computed again, by cause and tier."""
    lost = [part for part in breakdown.parts if part.cause in WASTED and part.tokens]
    if not lost:
        return []
    event, size, chain = breakdown.event, breakdown.block_size, breakdown.chain or ()
    block = lost[0].start // size if size else len(chain)
    is_known = block < len(chain)
    tokens: dict[tuple[str, str], int] = {}
    for part in lost:
        key = (part.cause.value, part.tier)
        tokens[key] = tokens.get(key, 0) + part.tokens
    return [
        WastedTokens(
            at_ns=event.end_ns,
            engine=event.engine,
            request=event.request or "",
            epoch=event.epoch,
            cause=cause,
            tier=tier,
            tenant=tenant_of(breakdown.identity),
            prefix=name_of(chain[block]) if is_known else "",
            start=block * size if is_known else lost[0].start,
            tokens=count,
            admissions=int(number == 0),
        )
        for number, ((cause, tier), count) in enumerate(tokens.items())
    ]


@dataclass(slots=True)
class Waste:
    """Wasted tokens of a group, with the time that their prefill took.

    Attributes:
        tokens, admissions: as in `WasteSum`.
        seconds: the time for the tokens at the prefill rate of the engine that computed them; None if no rate is known.
        unrated: the tokens of engines without a known prefill rate, which `seconds` does not include.
        start, last_ns: as in `WasteSum`.
    """

    tokens: int = 0
    admissions: int = 0
    seconds: float | None = None
    unrated: int = 0
    start: int = 0
    last_ns: int = 0

    def add(self, part: WasteSum, rate: float | None) -> None:
        """Add the part of one engine, which prefills `rate` tokens per second."""
        self.start = part.start if not self.admissions else min(self.start, part.start)
        self.tokens += part.tokens
        self.admissions += part.admissions
        self.last_ns = max(self.last_ns, part.last_ns)
        if rate:
            self.seconds = (self.seconds or 0.0) + part.tokens / rate
        else:
            self.unrated += part.tokens


def grouped(
    sums: Iterable[WasteSum],
    key: Callable[[tuple[str, ...]], tuple[str, ...]],
    *,
    engine: int,
    rates: Mapping[str, float],
) -> dict[tuple[str, ...], Waste]:
    """Sums by the result of `key` for their groups, most tokens first. `engine` is the index of the engine in a group, and
    `rates` are the engines' prefill rates in tokens per second."""
    found: dict[tuple[str, ...], Waste] = {}
    for each in sums:
        found.setdefault(key(each.of), Waste()).add(each, rates.get(each.of[engine]))
    return dict(sorted(found.items(), key=lambda item: (-item[1].tokens, item[0])))

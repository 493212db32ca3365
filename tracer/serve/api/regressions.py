"""What changed for the worse in a range of time, in sentences: hit rates that fell, prefill that rose, and engines that hit
nothing where others do. Pure: no clock, no I/O.

Each is watched over all engines, and of each engine. A sentence has the numbers that it rests on, from before and after, and
what happened to an engine just then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import sqrt
from typing import NamedTuple

from kvtrail.tracer.liveness.markers import near
from kvtrail.tracer.model.causes import REUSED, Cause
from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.model.words import percent, some
from kvtrail.tracer.savings.cause_sums import CAUSE, causes_of
from kvtrail.tracer.savings.minute_sums import SavingsRow
from kvtrail.tracer.serve.api.status import Level, Place, Range, Statement

ENOUGH_TOKENS = 10_000
"""Tokens that must have been asked for before and after, before a share counts as changed."""
FALL, FELL_BY = 2.0, 0.1
"""A hit rate has fallen if it was more than `FALL` times what it is, and at least `FELL_BY` above it."""
RISE, ROSE_BY = 1.5, 0.2
"""The computed share of the tokens asked for has risen if it is more than `RISE` times what it was, and more than `ROSE_BY`
above it: the definition of the alert KvtrailPrefillJump, too."""
NONE_OF = 0.1
"""An engine hits next to nothing if its hit rate is less than this share of that of the others."""
MOSTLY_NEW = 0.9
"""Where this share of what an engine computed was new to it, no hit was possible."""
LEAST_MINUTES = 5
"""Models that are served later than this after the first row are left out of the sums of all engines."""
BY_CHANCE = 3.0
"""A change of at most so many standard errors can be chance, where few requests show it: the best of many moments counts."""
_BRIEFLY = {MarkerKind.DEATH: "died", MarkerKind.CONTACT_LOST: "lost contact", MarkerKind.END: "ended"}
"""What is named with a change, in a few words where the marker's own text is long."""
_MEASURES = frozenset({"admissions", "asked", "local", "taken", "store_tokens"})
_NO_HIT_POSSIBLE = (Cause.NEW, Cause.UNALIGNED)


class Sums(NamedTuple):
    """Tokens of admitted requests, by their measures."""

    measures: Mapping[str, int]

    @property
    def asked(self) -> int:
        """All of them."""
        return self.measures.get("asked", 0)

    @property
    def wanted(self) -> int:
        """Those that vLLM's own cache did not hold."""
        return self.asked - self.measures.get("local", 0)

    @property
    def computed(self) -> int:
        """Those that were to be computed."""
        return max(0, self.wanted - self.measures.get("taken", 0))

    @property
    def hit_rate(self) -> float:
        """The connector's share of `wanted`."""
        return self.measures.get("taken", 0) / self.wanted if self.wanted else 0.0

    @property
    def computed_share(self) -> float:
        """`computed` as a share of `asked`."""
        return self.computed / self.asked if self.asked else 0.0

    def causes(self) -> Counter[str]:
        """The computed tokens by cause, where that is recorded."""
        found: Counter[str] = Counter()
        for name, tokens in causes_of(self.measures).items():
            if (cause := name.partition(":")[0]) not in REUSED:
                found[cause] += tokens
        return found


class Split(NamedTuple):
    """Sums before a moment and from it on. Times are Unix seconds."""

    at_s: int
    before: Sums
    after: Sums


def of_sums(
    rows: Iterable[SavingsRow],
    range_: Range,
    markers: Sequence[Marker],
    place: Place,
    *,
    models: Mapping[str, str],
    step_s: int,
) -> list[Statement]:
    """Statements about the sums of a range: what changed over all engines and of single ones, and engines without hits.

    Args:
        markers: what happened in the range.
        models: the engines' models, by id.
        step_s: how long a row is, in seconds.
    """
    rows = [replace(row, measures=_needed(row.measures)) for row in rows]
    by_engine: dict[str, list[SavingsRow]] = {}
    for row in rows:
        by_engine.setdefault(row.engine, []).append(row)
    every = list(_splits(_since_the_beginning(rows, models)))
    statements: list[Statement] = []
    for worse in (_HITS_FELL, _PREFILL_ROSE):
        if (whole := worse.largest(every)) is not None:
            changed = {"": whole}
        else:
            largest = ((engine, worse.largest(_splits(of))) for engine, of in by_engine.items())
            changed = {engine: split for engine, split in largest if split is not None}
        for engine, split in changed.items():
            of_engine = f" of engine {place(engine)}" if engine else ""
            words = worse.words.format(of_engine, *map(percent, worse.of(split)))
            at_ns = split.at_s * 10**9
            found = near(markers, since_ns=at_ns, at_ns=at_ns, after_ns=step_s * 10**9)
            text = f"{words} at {range_.at(at_ns)[: -len(':00')]}{_event(found, range_, place)}"
            query = {"at": datetime.fromtimestamp(split.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
            statements.append(
                Statement(kind=worse.kind, level=Level.WARNING, text=text, at_ns=at_ns, page="overview", query=query)
            )
        if changed:  # a token that is no hit is computed: one change needs one sentence
            break
    return [*statements, *_without_hits(rows, place, models)]


def _event(found: Sequence[Marker], range_: Range, place: Place) -> str:
    """What happened at a change, in words; empty if nothing is known to have."""
    if not found:
        return ""
    best = found[0]
    return f", as engine {place(best.engine)} {_BRIEFLY.get(best.kind, best.text)} ({range_.at(best.at_ns)})"


def _needed(measures: Mapping[str, int]) -> dict[str, int]:
    """The few measures of a row that are looked at: it is summed up for each moment of the range."""
    return {name: value for name, value in measures.items() if name in _MEASURES or name.startswith(CAUSE)}


def _since_the_beginning(rows: Sequence[SavingsRow], models: Mapping[str, str]) -> list[SavingsRow]:
    """The rows of the models that were served as the first row began. The first engine of a service begins with an empty
    cache: it changes the sums, though nothing has changed."""
    first: dict[str | None, int] = {}
    for row in rows:
        model = models.get(row.engine)
        first[model] = min(row.at_s, first.get(model, row.at_s))
    until_s = min(first.values(), default=0) + LEAST_MINUTES * 60
    return [row for row in rows if first[models.get(row.engine)] <= until_s]


def _splits(rows: Iterable[SavingsRow]) -> Iterator[Split]:
    """The sums before and after each moment at which a row begins, where enough was asked for on both sides."""
    stretches: dict[int, Counter[str]] = {}
    whole: Counter[str] = Counter()
    for row in rows:
        stretches.setdefault(row.at_s, Counter()).update(row.measures)
        whole.update(row.measures)
    before: Counter[str] = Counter()
    for at_s in sorted(stretches):
        after = Counter({name: value - before[name] for name, value in whole.items()})
        split = Split(at_s, Sums(dict(before)), Sums(after))
        if min(split.before.wanted, split.after.wanted) >= ENOUGH_TOKENS:
            yield split
        before.update(stretches[at_s])


def _is_chance(split: Split, before: float, after: float) -> bool:
    """Whether a share can have changed by chance: as if each admission had all of it or nothing."""
    numbers = [sums.measures.get("admissions", 0) for sums in (split.before, split.after)]
    if not all(numbers):
        return False
    error = sqrt(sum(share * (1 - share) / number for share, number in zip((before, after), numbers, strict=True)))
    return abs(before - after) <= BY_CHANCE * error


class _Worse(NamedTuple):
    """A change for the worse of a share of tokens.

    Attributes:
        kind: that of its statement.
        share: the share, of some sums.
        is_one: whether it is such a change from the one share to the other.
        words: the beginning of its sentence, with places for an engine and both shares.
    """

    kind: str
    share: Callable[[Sums], float]
    is_one: Callable[[float, float], bool]
    words: str

    def of(self, split: Split) -> tuple[float, float]:
        """The share before and after."""
        return self.share(split.before), self.share(split.after)

    def largest(self, splits: Iterable[Split]) -> Split | None:
        """The moment at which the share changed most."""
        found = [each for each in splits if self.is_one(*self.of(each)) and not _is_chance(each, *self.of(each))]
        return max(found, key=lambda each: abs(self.share(each.before) - self.share(each.after)), default=None)


_HITS_FELL = _Worse(
    "hit-rate",
    lambda sums: sums.hit_rate,
    lambda before, after: after * FALL < before and before - after >= FELL_BY,
    "Hit rate{} beyond vLLM's cache fell from {} to {}",
)
_PREFILL_ROSE = _Worse(
    "prefill",
    lambda sums: sums.computed_share,
    lambda before, after: after > RISE * before and after - before > ROSE_BY,
    "Prefill{} rose from {} to {} of the tokens asked for",
)


def _without_hits(rows: Iterable[SavingsRow], place: Place, models: Mapping[str, str]) -> list[Statement]:
    """Engines that hit next to nothing, where others with the same model and connector do. Where nobody stores, as between
    engines that hand over, one of them has no hits by design."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        sums.setdefault((row.engine, row.connector), Counter()).update(row.measures)
    storing: dict[tuple[str, str | None], dict[str, Counter[str]]] = {}
    """By connector and model: the engines that an engine is compared with, if it is another one."""
    for (engine, connector), measures in sums.items():
        if measures["store_tokens"] and Sums(measures).wanted >= ENOUGH_TOKENS:
            storing.setdefault((connector, models.get(engine)), {})[engine] = measures
    wholes: dict[tuple[str, str | None], Counter[str]] = {}
    for kind, engines in storing.items():
        whole = wholes.setdefault(kind, Counter())
        for measures in engines.values():
            whole.update(measures)
    statements = []
    for (engine, connector), measures in sums.items():
        own, kind = Sums(measures), (connector, models.get(engine))
        if own.wanted < ENOUGH_TOKENS or kind not in wholes:
            continue
        others = Counter(wholes[kind])
        if is_one := engine in storing[kind]:
            others.subtract(measures)
        theirs = Sums(others).hit_rate
        if theirs < FELL_BY or own.hit_rate >= NONE_OF * theirs:
            continue
        causes = own.causes()
        if causes and sum(causes[cause] for cause in _NO_HIT_POSSIBLE) >= MOSTLY_NEW * causes.total():
            continue
        text = (
            f"Engine {place(engine)} has a hit rate of {percent(own.hit_rate)} in {some(own.wanted, 'token')} beyond vLLM's"
            f" cache, and"
            f" {some(len(storing[kind]) - is_one, 'other engine')} with {connector} {percent(theirs)}"
        )
        query = {"on": engine}
        statements.append(
            Statement(kind="no-hits", level=Level.WARNING, text=text, engine=engine, page="savings", query=query)
        )
    return statements

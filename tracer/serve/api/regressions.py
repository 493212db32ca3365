"""Statements about regressions: hit rates that fell, prefill that rose, and engines without hits while their peers have hits.
Pure.

Changes are detected over all engines, and in each engine. A statement has the numbers before and after the change, and an
event of an engine at that time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import sqrt
from typing import NamedTuple

from kvtrail.tracer.liveness.markers import near
from kvtrail.tracer.model.causes import REUSED, Cause
from kvtrail.tracer.model.grouping import by_key
from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.model.words import percent, some
from kvtrail.tracer.savings.cause_sums import causes_of
from kvtrail.tracer.savings.minute_sums import SavingsRow
from kvtrail.tracer.serve.api.status import Level, Place, Range, Statement

ENOUGH_TOKENS = 10_000
"""Minimum number of requested tokens, both before and after, for a share to count as changed."""
FALL, FELL_BY = 2.0, 0.1
"""A hit rate has fallen if its old value is more than `FALL` times the new one, and at least `FELL_BY` above it."""
RISE, ROSE_BY = 1.5, 0.2
"""The computed share of the requested tokens has risen if it is more than `RISE` times the old value, and more than `ROSE_BY`
above it. The alert KvtrailPrefillJump has the same definition."""
NONE_OF = 0.1
"""An engine has almost no hits if its hit rate is less than this share of its peers' hit rate."""
MOSTLY_NEW = 0.9
"""If this share of an engine's computed tokens was new to it, no hit was possible."""
LEAST_MINUTES = 5
"""Models that appear later than this after the first row are left out of the sums of all engines."""
BY_CHANCE = 3.0
"""With few requests, a change of at most this many standard errors can be chance, since the best of many moments is
chosen."""
_BRIEFLY = {MarkerKind.DEATH: "died", MarkerKind.CONTACT_LOST: "lost contact", MarkerKind.END: "ended"}
"""Short texts for markers that are named with a change, if the marker's own text is long."""


class Sums(NamedTuple):
    """Sums of admitted requests: their number, and their tokens: all requested tokens, tokens from vLLM's own cache, and
    tokens from the connector."""

    admissions: int
    asked: int
    local: int
    taken: int

    @property
    def wanted(self) -> int:
        """The tokens that vLLM's own cache did not hold."""
        return self.asked - self.local

    @property
    def hit_rate(self) -> float:
        """The connector's share of `wanted`."""
        return self.taken / self.wanted if self.wanted else 0.0

    @property
    def computed_share(self) -> float:
        """The tokens to be computed, as a share of the requested tokens."""
        return max(0, self.wanted - self.taken) / self.asked if self.asked else 0.0


class Split(NamedTuple):
    """Sums before a moment and from it on. Times are Unix seconds."""

    at_s: int
    before: Sums
    after: Sums


def of_sums(
    rows: Sequence[SavingsRow],
    range_: Range,
    markers: Sequence[Marker],
    place: Place,
    *,
    models: Mapping[str, str],
    step_s: int,
) -> list[Statement]:
    """Statements about the sums of a range: changes over all engines, or else changes of single engines.

    Args:
        markers: the markers of the range.
        models: the engines' models, by id.
        step_s: the length of a row, in seconds.
    """
    by_engine = by_key(rows, lambda row: row.engine)
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
        if changed:  # a token that is not a hit is computed: one change needs only one sentence
            break
    return statements


def _event(found: Sequence[Marker], range_: Range, place: Place) -> str:
    """The event at the time of a change, in words; empty if none is known."""
    if not found:
        return ""
    best = found[0]
    return f", as engine {place(best.engine)} {_BRIEFLY.get(best.kind, best.text)} ({range_.at(best.at_ns)})"


def _since_the_beginning(rows: Sequence[SavingsRow], models: Mapping[str, str]) -> list[SavingsRow]:
    """The rows of the models that were served when the first row began. The first engine of a new service begins with an
    empty cache and would change the sums."""
    first: dict[str | None, int] = {}
    for row in rows:
        model = models.get(row.engine)
        first[model] = min(row.at_s, first.get(model, row.at_s))
    until_s = min(first.values(), default=0) + LEAST_MINUTES * 60
    return [row for row in rows if first[models.get(row.engine)] <= until_s]


def _splits(rows: Iterable[SavingsRow]) -> Iterator[Split]:
    """The sums before and after the begin of each row, if enough tokens were requested on both sides."""
    stretches: dict[int, Counter[str]] = {}
    whole: Counter[str] = Counter()
    for row in rows:
        measures = {name: row.measures.get(name, 0) for name in Sums._fields}
        stretches.setdefault(row.at_s, Counter()).update(measures)
        whole.update(measures)
    before: Counter[str] = Counter()
    for at_s in sorted(stretches):
        earlier = _sums(before)
        later = Sums(*(of_all - of_these for of_all, of_these in zip(_sums(whole), earlier, strict=True)))
        if min(earlier.wanted, later.wanted) >= ENOUGH_TOKENS:
            yield Split(at_s, earlier, later)
        before.update(stretches[at_s])


def _is_chance(split: Split, before: float, after: float) -> bool:
    """Whether a share may have changed by chance. Each admission is assumed to have all of the share or nothing."""
    numbers = split.before.admissions, split.after.admissions
    if not all(numbers):
        return False
    error = sqrt(sum(share * (1 - share) / number for share, number in zip((before, after), numbers, strict=True)))
    return abs(before - after) <= BY_CHANCE * error


class _Worse(NamedTuple):
    """A change for the worse of a share of tokens.

    Attributes:
        kind: the kind of its statement.
        share: computes the share from sums.
        is_one: whether two shares, before and after, are such a change.
        words: the beginning of its sentence, with placeholders for an engine and both shares.
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


def without_hits(rows: Iterable[SavingsRow], place: Place, models: Mapping[str, str]) -> list[Statement]:
    """Engines with almost no hits, while others with the same model and connector have hits. If no engine stores, as with
    hand-offs, one side has no hits by design."""
    peers: dict[tuple[str, str | None], dict[str, Counter[str]]] = {}
    for row in rows:
        engines = peers.setdefault((row.connector, models.get(row.engine)), {})
        engines.setdefault(row.engine, Counter()).update(row.measures)
    statements = []
    for (connector, _), engines in peers.items():
        storing = {
            engine: sums
            for engine, sums in engines.items()
            if sums["store_tokens"] and _sums(sums).wanted >= ENOUGH_TOKENS
        }
        whole = Counter[str]()
        for sums in storing.values():
            whole.update(sums)
        for engine, sums in engines.items():
            own, others = _sums(sums), Counter(whole)
            others.subtract(storing.get(engine, {}))
            theirs = _sums(others).hit_rate
            if own.wanted < ENOUGH_TOKENS or theirs < FELL_BY or own.hit_rate >= NONE_OF * theirs or _had_to(sums):
                continue
            text = (
                f"Engine {place(engine)} has a hit rate of {percent(own.hit_rate)} in {some(own.wanted, 'token')} beyond"
                f" vLLM's cache, and {some(len(storing.keys() - {engine}), 'other engine')} with {connector}"
                f" {percent(theirs)}"
            )
            query = {"on": engine}
            statements.append(
                Statement(kind="no-hits", level=Level.WARNING, text=text, engine=engine, page="savings", query=query)
            )
    return statements


def _sums(measures: Counter[str]) -> Sums:
    return Sums(*(measures[name] for name in Sums._fields))


def _had_to(measures: Counter[str]) -> bool:
    """Whether almost none of an engine's computed tokens could have been a hit."""
    causes = Counter[str]()
    for name, tokens in causes_of(measures).items():
        if (cause := name.partition(":")[0]) not in REUSED:
            causes[cause] += tokens
    return 0 < MOSTLY_NEW * causes.total() <= causes[Cause.NEW] + causes[Cause.UNALIGNED]

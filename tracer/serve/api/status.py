"""Whether something is wrong in a range of time, in sentences. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from kvtrail.tracer.capacity.memory_curves import memory_curves
from kvtrail.tracer.liveness.engine import EngineState, Launch
from kvtrail.tracer.model import store_size
from kvtrail.tracer.model.findings import clock, day
from kvtrail.tracer.model.words import count, ended, indefinite, percent, size, some, with_open
from kvtrail.tracer.savings.minute_sums import SavingsRow
from kvtrail.tracer.savings.sums import savings_of
from kvtrail.tracer.serve.api.rule_summaries import FindingCounts, RuleSummary

ENOUGH_WANTED = 10_000
"""Minimum number of requested tokens beyond vLLM's cache for a statement about a store's share of them."""
MAX_OF_A_KIND = 5
"""Maximum number of statements of one kind; the rest are only counted."""


class Level(StrEnum):
    """The severity of a statement, worst first."""

    LOST = "lost"
    """Something is lost: requests, or an engine."""
    WARNING = "warning"
    CALM = "calm"


class Statement(BaseModel):
    """A sentence, and a link to the page with details."""

    kind: str
    """`death`, `stop`, `silence`, `findings`, `hit-rate`, `prefill`, `no-hits`, `store`, `lost-spans`, `damage`, `known`,
    `well` or `nothing`."""
    level: Level
    text: str
    """Times are UTC."""
    at_ns: int | None = None
    engine: str | None = None
    page: str
    """Of the dashboard."""
    query: dict[str, str] = {}
    """The query parameters of the page's URL, besides the time range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A time range in Unix nanoseconds, and the day of its end: times of that day are written without the date."""

    since_ns: int
    until_ns: int

    def at(self, at_ns: int) -> str:
        """A moment in words."""
        time = clock(at_ns)[: len("12:00:00")]
        return time if day(at_ns) == day(self.until_ns) else f"{day(at_ns)} {time}"


Place = Callable[[str], str]
"""An engine's display name, by its id."""


def of_launches(launches: Iterable[Launch], range_: Range, place: Place) -> list[Statement]:
    """Statements about engines that died or stopped reporting."""
    deaths, stops, losses = [], [], []
    for launch in sorted(launches, key=lambda each: -(each.ended_ns or 0)):
        if launch.ended_ns is None or not range_.since_ns <= launch.ended_ns <= range_.until_ns:
            continue
        if launch.state is EngineState.DRAINED and launch.lost:
            stops.append(_death(launch, launch.ended_ns, range_, place))
        elif launch.state is EngineState.DIED:
            deaths.append(_death(launch, launch.ended_ns, range_, place))
        elif launch.state is EngineState.LOST_CONTACT or (launch.state is EngineState.REPLACED and launch.lost):
            losses.append(_lost_contact(launch, launch.ended_ns, range_, place))
    return [
        *_few(deaths, "engine died", "engines died"),
        *_few(stops, "engine was stopped", "engines were stopped"),
        *_few(losses, "engine lost contact", "engines lost contact"),
    ]


def _death(launch: Launch, at_ns: int, range_: Range, place: Place) -> Statement:
    """A death, or a stop with open requests. The latter is only a warning, because a rollout also stops engines."""
    is_stop, cause, at = launch.state is EngineState.DRAINED, launch.cause, range_.at(at_ns)
    how = f"was stopped at {at}" if is_stop else ended(launch.ended_by, at)
    why = f": {indefinite(cause.rule)}" if cause is not None else ""
    statement = Statement(
        kind="stop" if is_stop else "death",
        level=Level.WARNING if is_stop else Level.LOST,
        text=f"Engine {place(launch.engine)} {how} {with_open(launch.lost)}{why}",
        at_ns=at_ns,
        engine=launch.engine,
        **_requests_of(launch, "lost"),
    )
    if cause is not None and cause.request:
        statement.page, statement.query = "request", {"id": cause.request, "engine": launch.engine}
    return statement


def _requests_of(launch: Launch, status: str) -> dict[str, Any]:
    """The link of a statement about the end of an engine: the requests that it lost, if there are any."""
    if not launch.lost:
        return {"page": "overview"}
    return {"page": "requests", "query": {"on": launch.engine, "status": status}}


def _lost_contact(launch: Launch, at_ns: int, range_: Range, place: Place) -> Statement:
    is_replaced = launch.state is EngineState.REPLACED
    how = "stopped reporting and was replaced" if is_replaced else "lost contact"
    why = "" if is_replaced else ": it was killed, or the network between is broken"
    return Statement(
        kind="silence",
        level=Level.LOST if launch.lost else Level.WARNING,
        text=f"Engine {place(launch.engine)} {how} at {range_.at(at_ns)} {with_open(launch.lost)}{why}",
        at_ns=at_ns,
        engine=launch.engine,
        **_requests_of(launch, "lost" if is_replaced else "lost_contact"),
    )


def of_rules(rules: Sequence[RuleSummary]) -> list[Statement]:
    """Statements about findings, one for each rule."""
    return _few(
        [_of_rule(rule) for rule in rules if rule.not_known.findings], "rule has findings", "rules have findings"
    )


def _of_rule(rule: RuleSummary) -> Statement:
    loud, known = rule.not_known, known_of([rule])
    where = f" in {some(loud.requests, 'request')}" if loud.looked_at == loud.findings and loud.requests else ""
    more = f"; {count(known)} more {'is' if known == 1 else 'are'} known" if known else ""
    return Statement(
        kind="findings",
        level=Level.LOST if loud.harmed else Level.WARNING,
        text=f"{some(loud.findings, 'finding')} of {rule.rule}{where}: {_did(loud)}{more}",
        page="findings",
        query={"rule": rule.rule},
    )


def _did(of: FindingCounts) -> str:
    if not of.looked_at:
        return "they are too old to say what they did"
    if of.harmed:
        did = f"{count(of.harmed)} did harm"
    else:
        did = "healed by the guard" if of.healed == of.looked_at else "no harm seen"
    return did if of.looked_at == of.findings else f"{did} (of the latest {count(of.looked_at)})"


def known_of(rules: Iterable[RuleSummary]) -> int:
    """The number of known findings."""
    return sum(rule.findings - rule.not_known.findings for rule in rules)


def of_known(rules: Sequence[RuleSummary]) -> list[Statement]:
    """A statement about known findings, since they still occur."""
    some_are = [rule for rule in rules if known_of([rule])]
    if not some_are:
        return []
    number, harmed = known_of(some_are), sum(rule.harmed - rule.not_known.harmed for rule in some_are)
    of = some_are[0].rule if len(some_are) == 1 else some(len(some_are), "rule")
    did = f"{count(harmed)} did harm" if harmed else "no harm seen"
    text = f"{some(number, 'known finding')} of {of}: {did}"
    return [Statement(kind="known", level=Level.CALM, text=text, page="findings", query={"known": "yes"})]


def of_lost_spans(missing: Mapping[str, int], place: Place) -> list[Statement]:
    """Statements about spans that did not arrive, by engine."""
    worst = sorted(missing.items(), key=lambda each: -each[1])
    statements = [
        Statement(
            kind="lost-spans",
            level=Level.WARNING,
            text=f"{some(number, 'span')} of engine {place(engine)} did not arrive: what they touch is unknown",
            engine=engine,
            page="overview",
        )
        for engine, number in worst
    ]
    return _few(statements, "engine lost spans", "engines lost spans")


def of_damage(sentence: str | None) -> list[Statement]:
    """A statement about a store with unreadable rows."""
    if sentence is None:
        return []
    text = f"{sentence[0].upper()}{sentence[1:]}"
    return [Statement(kind="damage", level=Level.WARNING, text=text, page="overview")]


def of_stores(rows: Sequence[SavingsRow], place: Place) -> list[Statement]:
    """Statements about connectors with a store that supplied far less than a store of another size would have."""
    statements = []
    for curve in memory_curves(rows):
        own = [row for row in rows if (row.engine, row.connector) == (curve.engine, curve.connector)]
        gave = store_size.given(asdict(savings_of(own)))
        point = store_size.better([asdict(each) for each in curve.points], gave)
        if curve.wanted < ENOUGH_WANTED or point is None:
            continue
        chunks = f"{count(round(point['chunks']))} chunks"
        size_of = f" ({size(point['chunks'] * curve.chunk_bytes)} a worker)" if curve.chunk_bytes else ""
        text = (
            f"The store of {curve.connector} in engine {place(curve.engine)} gave {percent(gave or 0.0)} of what vLLM's cache"
            f" did not hold, where one of {chunks}{size_of} would have given {percent(point['share'])}"
        )
        query = {"on": curve.engine}
        statements.append(
            Statement(kind="store", level=Level.WARNING, text=text, engine=curve.engine, page="savings", query=query)
        )
    return _few(statements, "store gave little", "stores gave little")


def minutes(rows: Iterable[SavingsRow], range_: Range) -> float:
    """Minutes from the first admission in the range to its end, at least one, so that the request rate of an engine that has
    just started is not too low."""
    first_s = min((row.at_s for row in rows if row.measures.get("admissions")), default=range_.until_ns // 10**9)
    return max(1.0, (range_.until_ns / 1e9 - max(first_s, range_.since_ns / 1e9)) / 60)


def well(rows: Sequence[SavingsRow], range_: Range, *, running: int, known: int = 0) -> Statement:
    """The statement where nothing is wrong, except for findings that are `known`."""
    sums = savings_of(rows)
    admitted = sum(row.measures.get("admissions", 0) for row in rows if row.epoch == 0)
    if not running and not rows and not known:
        return Statement(kind="nothing", level=Level.CALM, text="Nothing was recorded in this time", page="overview")
    parts = [some(running, "engine")] * bool(running)
    if admitted:
        rate = admitted / minutes(rows, range_)
        parts.append(f"{rate:.1f} requests a minute" if rate < 100 else f"{count(rate)} requests a minute")
    if (prefill := sums.asked - sums.local - sums.handed) > 0:
        parts.append(f"{percent(sums.spared / prefill)} of prefill saved")
    findings = f"no finding but {count(known)} known" if known else "no finding"
    what = "All well" if running else "Nothing went wrong, and no engine runs now"
    text = f"{': '.join(filter(None, (what, ', '.join(parts))))}; {findings}, no loss, no fall in hits"
    return Statement(kind="well", level=Level.CALM, text=text, page="savings")


def worst_first(statements: Iterable[Statement]) -> list[Statement]:
    """Statements in the order of their severity."""
    levels = list(Level)
    return sorted(statements, key=lambda each: levels.index(each.level))


def _few(statements: Sequence[Statement], one: str, many: str) -> list[Statement]:
    """At most `MAX_OF_A_KIND` of these, and how many more there are."""
    more = statements[MAX_OF_A_KIND:]
    if not more:
        return [*statements]
    rest = more[0].model_copy(
        update={"text": f"{count(len(more))} more {one if len(more) == 1 else many}", "engine": None, "query": {}}
    )
    return [*statements[:MAX_OF_A_KIND], rest]

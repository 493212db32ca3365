"""API routes about a time range: its findings and markers, the effect of the offload, and whether something is wrong.

An answer grows with the resolution of the range, not with the size of the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from kvtrail.tracer.capacity.memory_curves import MemoryCurve, memory_curves
from kvtrail.tracer.detect.detector import GRACE_NS
from kvtrail.tracer.liveness.engine import EngineState
from kvtrail.tracer.liveness.markers import BEFORE_NS, joined
from kvtrail.tracer.model.grouping import by_key
from kvtrail.tracer.model.markers import MarkerKind
from kvtrail.tracer.savings.cause_sums import lacking_of, tenants_of
from kvtrail.tracer.savings.minute_sums import HOUR_S, SavingsRow, interval_s
from kvtrail.tracer.savings.sums import Savings, prefill_rates, savings_of
from kvtrail.tracer.serve.api import regressions, status
from kvtrail.tracer.serve.api.filters import ChosenEngines, Findings, Moment, Resolver, moments
from kvtrail.tracer.serve.api.process_state import Live
from kvtrail.tracer.serve.api.requests import Limit
from kvtrail.tracer.serve.api.rule_summaries import RuleSummary, rule_summaries
from kvtrail.tracer.serve.api.status import Level, Range, Statement
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.store import FindingFilter, damage
from kvtrail.tracer.store.reader import Reader

MAX_STRETCHES = 60
"""Maximum number of intervals in a trend."""
STEPS = 120
"""Markers of one kind are merged if their distance is less than this share of the range: their lines would touch."""
_KINDS = "kinds of markers; by default all except resets, which are named where they explain a change"
HOUR_NS = HOUR_S * 10**9
Order = Literal["latest", "oldest"]
"""The order of findings, by the time at which they were last seen."""


class FindingsTrend(BaseModel):
    """The number of findings by rule and time."""

    since_ns: int
    until_ns: int
    step_ns: int
    counts: list[dict[str, Any]]
    """For each `rule`, `severity` and interval that begins at `at_ns`: the number of `findings` last seen in it."""


class SavingsReport(BaseModel):
    """The effect of the offload in a time range. `kvtrail.tracer.savings.sums.Savings` explains the numbers of each part."""

    since_ns: int
    until_ns: int
    step_s: int
    """Length of one interval of the trend, in seconds. Ranges consist of whole minutes, or of whole hours if they are longer
    than six hours."""
    worth: Savings
    by_place: list[dict[str, Any]]
    """By `engine` and `connector`: their `worth`."""
    by_tenant: dict[str, dict[str, int]]
    """Tokens by cause, for each tenant: a digest of the cache salt and adapter of its requests, or `plain` for requests
    without both. Empty if all are plain, or no tenant is known."""
    by_group: dict[str, dict[str, int]]
    """Tokens by cause, for each KV cache group that lost or never had their KV: its number and kind, as in
    `1:sliding_window`. Empty if no model has several groups."""
    trend: list[dict[str, Any]]
    """By interval, which begins at `at_ns`: its `worth`. Intervals without events are absent."""
    memory: list[MemoryCurve]
    """The estimated hit rate at other store sizes, by engine and connector."""
    choices: dict[str, list[str]]
    """The `engines`, `connectors` and `models` of the range, among the chosen engines."""
    engine_names: dict[str, str] = {}
    """The display names of these engines, by id."""
    tenant_names: dict[str, str] = {}
    """The names of these tenants, by digest, if they have one (`kvtrail serve --tenants`)."""


class Status(BaseModel):
    """What is wrong in a time range."""

    since_ns: int
    until_ns: int
    statements: list[Statement]
    """Worst first. If nothing is wrong, one statement that says so, with the level `calm`."""
    rules: list[RuleSummary]
    """Rules with findings: first rules with harmful findings, then by severity."""
    outcomes: dict[str, int]
    """The number of all requests that began in the range, by outcome."""
    minutes: float
    """Minutes from the first admission in the range to the range's end: rates are per these minutes."""


def add_routes(api: APIRouter, process: Live, reader: Reader, tenants: TenantNames) -> None:
    """Add the routes to the router of `/api`."""

    @api.get("/findings", summary="Findings, latest or oldest first")
    def findings(
        which: Findings, resolver: Resolver, request: str = "", order: Order = "latest", limit: Limit = 100
    ) -> list[dict[str, Any]]:
        found = reader.findings(replace(which, request=request), limit=limit, oldest_first=order == "oldest")
        return resolver.findings(found)

    @api.get("/findings/trend", summary="Number of findings by rule and time")
    def trend(which: Findings) -> FindingsTrend:
        since, until = moments(which.since_ns, which.until_ns)
        which = replace(which, since_ns=since, until_ns=until)
        step_ns = max(1, -(-(until - since) // MAX_STRETCHES))
        counts = Counter[tuple[int, str, str]]()
        for place, severity, at_ns, number in reader.finding_counts(which, step_ns=step_ns):
            counts[at_ns, place.rule, severity] += number
        return FindingsTrend(
            since_ns=since,
            until_ns=until,
            step_ns=step_ns,
            counts=[
                {"rule": rule, "severity": severity, "at_ns": at_ns, "findings": number}
                for (at_ns, rule, severity), number in sorted(counts.items())
            ],
        )

    @api.get("/efficiency", summary="Savings of the offload in a time range")
    def efficiency(
        chosen: ChosenEngines, connector: str = "", since_ns: Moment = None, until_ns: Moment = None
    ) -> SavingsReport:
        since, until = moments(since_ns, until_ns)
        fine_s = interval_s(since, until)
        stretch_s = max(fine_s, -(-(until - since) // 10**9 // MAX_STRETCHES // fine_s) * fine_s)
        rows = reader.savings(since_ns=since, until_ns=until, stretch_s=stretch_s, engines=chosen)
        report = savings_report(rows, connector=connector, since_ns=since, until_ns=until, stretch_s=stretch_s)
        known = reader.engines()
        of_range = {engine: known[engine] for engine in report.choices["engines"] if engine in known}
        report.engine_names = {engine: each["name"] for engine, each in of_range.items()}
        report.tenant_names = tenants.among(report.by_tenant)
        report.choices["models"] = sorted({each["model"] for each in of_range.values() if each["model"]})
        return report

    @api.get("/findings/rules", summary="Findings of a time range by rule, and their impact")
    def by_rule(which: Findings, resolver: Resolver) -> list[RuleSummary]:
        since, until = moments(which.since_ns, which.until_ns, length_ns=HOUR_NS)
        return rule_summaries(reader, resolver, replace(which, since_ns=since, until_ns=until))

    @api.get("/markers", summary="Deploys, restarts, deaths, resets and drops in a time range")
    def marked(
        chosen: ChosenEngines,
        resolver: Resolver,
        kind: Annotated[list[MarkerKind] | None, Query(description=_KINDS)] = None,
        since_ns: Moment = None,
        until_ns: Moment = None,
    ) -> list[dict[str, Any]]:
        """Each has the fields of `kvtrail.tracer.model.markers.Marker`, and the engine's display name (`engine_name`).
        Markers of one kind that are close to each other are merged: `at_ns` is that of the first, and `engine` is empty if
        they belong to several engines."""
        since, until = moments(since_ns, until_ns, length_ns=HOUR_NS)
        every = resolver.markers(since_ns=since, until_ns=until, chosen=chosen)
        asked = [each for each in every if (each.kind in kind if kind else each.kind is not MarkerKind.RESET)]
        together = sorted(
            joined(asked, resolver.names, step_ns=max(1, (until - since) // STEPS)), key=lambda each: each.at_ns
        )
        return [{**asdict(each), "engine_name": resolver.name(each.engine)} for each in together]

    @api.get("/status", summary="Problems of a time range in sentences, and its findings by rule")
    def answer(chosen: ChosenEngines, resolver: Resolver, since_ns: Moment = None, until_ns: Moment = None) -> Status:
        since, until = moments(since_ns, until_ns, length_ns=HOUR_NS)
        range_ = Range(since_ns=since, until_ns=until)
        rules = rule_summaries(reader, resolver, FindingFilter(engines=chosen, since_ns=since, until_ns=until))
        rows = reader.savings(since_ns=since, until_ns=until, engines=chosen)
        launches = [each for each in resolver.every_launch if chosen is None or each.engine in chosen]

        def place(engine: str) -> str:
            name, pod = resolver.name(engine), resolver.engines.get(engine, {}).get("pod", "")
            return f"{name} (pod {pod})" if pod and pod not in name else name

        statements = [
            *status.of_launches(launches, range_, place),
            *status.of_rules(rules),
            *regressions.of_sums(
                rows,
                range_,
                resolver.markers(since_ns=since - BEFORE_NS, until_ns=until, chosen=chosen),
                place,
                models=resolver.models,
                step_s=interval_s(since, until),
            ),
            *regressions.without_hits(rows, place, resolver.models),
            *status.of_stores(rows, place),
            *status.of_lost_spans(_missing(process, chosen, range_), place),
            *status.of_damage(damage.sentence()),
            *status.of_known(rules),
        ]
        if all(each.level is Level.CALM for each in statements):
            running = [name for name, each in resolver.launches.items() if each.state is EngineState.RUNNING]
            running = [name for name in running if chosen is None or name in chosen]
            known = status.known_of(rules)
            statements = [status.well(rows, range_, running=len(running), known=known), *statements]
        return Status(
            since_ns=since,
            until_ns=until,
            statements=status.worst_first(statements),
            rules=rules,
            outcomes=resolver.outcome_counts(since_ns=since, before_ns=until, engines=chosen),
            minutes=status.minutes(rows, range_),
        )


def savings_report(
    rows: Iterable[SavingsRow], *, connector: str, since_ns: int, until_ns: int, stretch_s: int
) -> SavingsReport:
    """The report on the rows of a range. An empty connector means all of them."""
    every = list(rows)
    rates = prefill_rates(every)  # an engine's own rate, whichever connector is selected
    chosen = [row for row in every if connector in ("", row.connector)]

    def parts(key: Callable[[SavingsRow], Any]) -> list[tuple[Any, Savings]]:
        return [(name, savings_of(part, rates=rates)) for name, part in sorted(by_key(chosen, key).items())]

    measures = Counter[str]()
    for row in chosen:
        measures.update(row.measures)
    return SavingsReport(
        since_ns=since_ns,
        until_ns=until_ns,
        step_s=stretch_s,
        worth=savings_of(chosen, rates=rates),
        by_place=[
            {"engine": e, "connector": c, "worth": asdict(part)}
            for (e, c), part in parts(lambda row: (row.engine, row.connector))
        ],
        by_tenant=tenants_of(measures),
        by_group=lacking_of(measures),
        trend=[
            {"at_ns": at_s * 10**9, "worth": asdict(part)}
            for at_s, part in parts(lambda row: row.at_s // stretch_s * stretch_s)
        ],
        memory=memory_curves(chosen),
        choices={
            "engines": sorted({row.engine for row in every}),
            "connectors": sorted({row.connector for row in every if row.connector}),
        },
    )


def _missing(process: Live, chosen: list[str] | None, range_: Range) -> Counter[str]:
    """Lost events by engine; events that may still arrive do not count."""
    missing: Counter[str] = Counter()
    until_ns = range_.until_ns - GRACE_NS
    for recorder in process.recorders.values():
        if chosen is None or recorder.engine in chosen:
            missing[recorder.engine] += sum(
                gap.missing for gap in recorder.gaps.within(range_.since_ns, range_.until_ns) if gap.to_ns <= until_ns
            )
    return +missing

"""The API routes that say whether something is wrong, and what findings did."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter
from pydantic import BaseModel

from kvtrail.tracer.detect.detector import GRACE_NS
from kvtrail.tracer.liveness.engine import EngineState
from kvtrail.tracer.liveness.markers import BEFORE_NS
from kvtrail.tracer.savings.minute_sums import HOUR_S, interval_s
from kvtrail.tracer.serve.api import regressions, status
from kvtrail.tracer.serve.api.filters import ChosenEngines, Findings, Moment, moments
from kvtrail.tracer.serve.api.markers import every_marker
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver
from kvtrail.tracer.serve.api.process_state import Live
from kvtrail.tracer.serve.api.rule_summaries import RuleSummary, rule_summaries
from kvtrail.tracer.serve.api.status import Level, Range, Statement
from kvtrail.tracer.store import FindingFilter, Reader, damage


class Status(BaseModel):
    """Whether something is wrong in a range of time, and what."""

    since_ns: int
    until_ns: int
    statements: list[Statement]
    """Worst first. If nothing is wrong, one that says so, with the level `calm`."""
    rules: list[RuleSummary]
    """Those with findings: first those that did harm, then by what they can do."""
    outcomes: dict[str, int]
    """The requests that began in the range, by outcome: all of them."""
    minutes: float
    """From the first admission in the range, by its minute, to the range's end: rates are by these minutes."""


def add_routes(api: APIRouter, process: Live, reader: Reader) -> None:
    """Add the routes to the router of `/api`."""

    @api.get("/findings/rules", summary="The findings of a range by rule, and what they did")
    def by_rule(asked: Findings) -> list[RuleSummary]:
        which, _, _ = asked.in_range(length_ns=HOUR_S * 10**9)
        return rule_summaries(reader, asked.resolver, which)

    @api.get("/status", summary="Whether something is wrong, in sentences, and the findings by rule")
    def answer(chosen: ChosenEngines, since_ns: Moment = None, until_ns: Moment = None) -> Status:
        since, until = moments(since_ns, until_ns, length_ns=HOUR_S * 10**9)
        range_, resolver = Range(since_ns=since, until_ns=until), OutcomeResolver(process, reader)
        rules = rule_summaries(reader, resolver, FindingFilter(engines=chosen, since_ns=since, until_ns=until))
        rows = [row for row in reader.savings(since_ns=since, until_ns=until) if chosen is None or row.engine in chosen]
        launches = [*reader.launches(since_ns=since, until_ns=until)]
        launches += (each for each in resolver.launches.values() if each.state is EngineState.LOST_CONTACT)
        unique = {(each.engine, each.launch): each for each in launches if chosen is None or each.engine in chosen}

        def place(engine: str) -> str:
            name, pod = resolver.name(engine), resolver.engines.get(engine, {}).get("pod", "")
            return f"{name} (pod {pod})" if pod and pod not in name else name

        statements = [
            *status.of_launches(unique.values(), range_, place),
            *status.of_rules(rules),
            *regressions.of_sums(
                rows,
                range_,
                every_marker(resolver, reader, since_ns=since - BEFORE_NS, until_ns=until, chosen=chosen),
                place,
                models={engine: str(about["model"]) for engine, about in resolver.engines.items()},
                step_s=interval_s(since, until),
            ),
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


def _missing(process: Live, chosen: list[str] | None, range_: Range) -> Counter[str]:
    """Events that did not arrive, by engine; those that may still come are left out."""
    missing: Counter[str] = Counter()
    until_ns = range_.until_ns - GRACE_NS
    for recorder in process.recorders.values():
        if chosen is None or recorder.engine in chosen:
            missing[recorder.engine] += sum(
                gap.missing for gap in recorder.gaps.within(range_.since_ns, range_.until_ns) if gap.to_ns <= until_ns
            )
    return +missing

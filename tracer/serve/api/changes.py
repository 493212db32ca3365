"""The API route that compares the time before a moment with that after it: what changed, which requests explain it, and what
probably caused it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from kvtrail.tracer.ledger.lanes import Window
from kvtrail.tracer.liveness.markers import AFTER_NS, BEFORE_NS
from kvtrail.tracer.model.conditions import UNKNOWN, Condition, Time
from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.model.outcomes import Outcome
from kvtrail.tracer.savings.changes import Amount, GroupChange, MeasureChange, Side, Sums, changes, ranked
from kvtrail.tracer.savings.minute_sums import MINUTE_NS, interval_s
from kvtrail.tracer.savings.request_changes import Observed, of_account, of_lane, request_changes
from kvtrail.tracer.serve.api.filters import MAX_NS, ChosenEngines, Moment
from kvtrail.tracer.serve.api.likely_causes import LikelyCause, likely_causes
from kvtrail.tracer.serve.api.markers import every_marker
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver
from kvtrail.tracer.serve.api.process_state import Live
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.store import Group, Reader, Selection

SLICES, OF_A_SLICE = 8, 100
"""Single requests of a range are looked at in this many equal parts of it, and this many of each: those that began last."""
MOST_LANES = 1_000
MOST_PREFIXES = 50
_FAILURES = frozenset({Outcome.FAILED, Outcome.LOST, Outcome.LOST_CONTACT})
Ends = tuple[int, int]


class Stretch(BaseModel):
    """A range of time, as it was compared."""

    since_ns: int
    until_ns: int
    requests_seen: int
    """How many single requests of it `requests` is about."""


class ChangesReport(BaseModel):
    """What changed from one range to a later one."""

    before: Stretch
    after: Stretch
    """Whole minutes, or whole hours if one of the ranges is longer than six hours."""
    changes: list[MeasureChange]
    """Amounts a minute, over all requests."""
    requests: list[MeasureChange]
    """Seconds for each request: the mean over those that were looked at, which are some of each part of the range."""
    likely: list[LikelyCause]
    """What probably explains that more or less is computed, the likeliest first."""
    engine_names: dict[str, str]
    """The engines' names for people, by id."""
    tenant_names: dict[str, str]
    """The names of the tenants among the groups that have one (`kvtrail serve --tenants`), by digest."""


def add_routes(api: APIRouter, process: Live, reader: Reader, tenants: TenantNames) -> None:
    """Add the route to the router of `/api`."""

    @api.get("/changes", summary="What changed at a moment, and which requests explain it")
    def changed(
        chosen: ChosenEngines,
        at_ns: Annotated[int, Query(ge=1, le=MAX_NS, description="the moment that parts the range in two")],
        connector: str = "", since_ns: Moment = None, until_ns: Moment = None,
    ) -> ChangesReport:  # fmt: skip
        until = time.time_ns() if until_ns is None else until_ns
        first, second = _ranges(at_ns, since_ns, until)
        resolver = OutcomeResolver(process, reader)
        models = {name: str(about["model"]) for name, about in resolver.engines.items()}
        wanted = [name for name in models if chosen is None or name in chosen]

        prefixes = _prefixes(reader, (first, second), wanted, connector)

        def side(ends: Ends, prefixes: Mapping[str, Sums]) -> Side:
            rows = reader.savings(since_ns=ends[0], until_ns=ends[1]) if ends[0] < ends[1] else []
            rows = [row for row in rows if row.engine in wanted and connector in ("", row.connector)]
            return Side(rows, _minutes(ends), prefixes)

        found = [
            *changes(side(first, prefixes[0]), side(second, prefixes[1]), models),
            *_failures(resolver, reader, first, second, wanted),
        ]
        earlier, later = (_accounts(reader, ends, wanted, models) for ends in (first, second))
        lanes = [_lanes(reader, ends, wanted, models) for ends in (first, second)]
        moment = second[0]
        near = every_marker(resolver, reader, since_ns=first[1] - BEFORE_NS, until_ns=moment + AFTER_NS, chosen=wanted)
        tenant_names = tenants.among(
            {part.group: part for each in found for part in each.groups if part.dimension == "tenant"}
        )
        return ChangesReport(
            before=Stretch(since_ns=first[0], until_ns=first[1], requests_seen=len(earlier)),
            after=Stretch(since_ns=second[0], until_ns=second[1], requests_seen=len(later)),
            changes=found,
            requests=[*request_changes(earlier, later), *request_changes(*lanes)],
            likely=likely_causes(
                found, near, at_ns=moment, since_ns=first[1], name=resolver.name, tenant_names=tenant_names
            ),
            engine_names={name: str(about["name"]) for name, about in resolver.engines.items()},
            tenant_names=tenant_names,
        )


def _ranges(at_ns: int, since_ns: int | None, until_ns: int) -> tuple[Ends, Ends]:
    """The range before the moment and the one after it, in whole steps: by default, the first is as long as the second.

    Raises:
        HTTPException: the moment is not within the range.
    """
    since = max(0, at_ns - (until_ns - at_ns)) if since_ns is None else since_ns
    if not since < at_ns < until_ns:
        raise HTTPException(422, f"at_ns {at_ns} is not between since_ns {since} and until_ns {until_ns}")
    step_ns = max(interval_s(since, at_ns), interval_s(at_ns, until_ns)) * 10**9
    at = at_ns // step_ns * step_ns
    return (since // step_ns * step_ns, at), (at, -(-until_ns // step_ns) * step_ns)


def _minutes(ends: Ends) -> float:
    return max(ends[1] - ends[0], MINUTE_NS) / MINUTE_NS


def _accounts(reader: Reader, ends: Ends, engines: list[str], models: dict[str, str]) -> list[Observed]:
    """Some requests that began in a range, from all parts of it, however many there are."""
    begin, end = ends
    length = max(1, -(-(end - begin) // SLICES))
    return [
        of_account(request.account(), models.get(request.engine, ""))
        for since in range(begin, end, length)
        for request in reader.requests(
            since_ns=since, before_ns=min(end, since + length), engines=engines, limit=OF_A_SLICE
        )
    ]


def _prefixes(reader: Reader, ranges: Sequence[Ends], engines: list[str], connector: str) -> list[dict[str, Sums]]:
    """The tokens of the requests that began in each range, by prefix: of those that most requests of either have, and more
    than one."""
    where = (Condition("connector", "=", connector),) if connector else ()
    selections = [Selection(since_ns=begin, before_ns=end, engines=engines, where=where) for begin, end in ranges]

    def groups(which: Selection, names: Collection[str] | None = None) -> list[Group]:
        return reader.groups(which, by=By.PREFIX, of=Time.DURATION, limit=2 * MOST_PREFIXES, names=names)

    names = {each.name for which in selections for each in groups(which)[:MOST_PREFIXES] if each.requests > 1}
    if names <= {UNKNOWN}:
        return [{} for _ in selections]
    return [
        {each.name: {"asked": each.asked, "local": each.held, "taken": each.loaded} for each in groups(which, names)}
        for which in selections
    ]


def _lanes(reader: Reader, ends: Ends, engines: list[str], models: dict[str, str]) -> list[Observed]:
    """Some requests that began in a range, by their phases."""
    if ends[0] >= ends[1]:
        return []
    found = reader.lanes(Window(from_ns=ends[0], to_ns=ends[1], limit=MOST_LANES, engines=engines), live=())
    return [
        of_lane(lane, models.get(lane.engine, ""))
        for lane in found.lanes
        # Of a sample, those with findings are more than their part.
        if ends[0] <= lane.started_ns < ends[1] and not (found.is_sample and lane.findings)
    ]


def _failures(
    resolver: OutcomeResolver, reader: Reader, first: Ends, second: Ends, engines: list[str]
) -> list[MeasureChange]:
    """Requests a minute that failed or were lost, by the range in which they began."""
    sides: list[Counter[tuple[str, str]]] = []
    for begin, end in (first, second):
        counts: Counter[tuple[str, str]] = Counter()
        for engine, status, reason, number in reader.outcome_counts(since_ns=begin, before_ns=end, engines=engines):
            if (outcome := resolver.outcome_of(engine, status, reason)) in _FAILURES:
                counts[engine, str(outcome)] += number
        sides.append(counts)

    def amount(at: int, group: str) -> Amount:
        """Of the engine (0) or outcome (1), a minute."""
        sums = (sum(value for key, value in side.items() if key[at] == group) for side in sides)
        return Amount(*(each / _minutes(ends) for each, ends in zip(sums, (first, second), strict=True)))

    whole = Amount(*(side.total() / _minutes(ends) for side, ends in zip(sides, (first, second), strict=True)))
    if whole.change == 0:
        return []
    groups = [
        GroupChange(dimension, group, each, each.change / whole.change)
        for at, dimension in enumerate(("engine", "outcome"))
        for group in {key[at] for side in sides for key in side}
        for each in [amount(at, group)]
    ]
    return [MeasureChange("failures", whole, None, ranked(groups))]

"""API routes about request durations: over time, by phase, and by group.

The stores count durations by bin; percentiles are read from these bins, to within 4.5 %. An answer grows with the resolution
of the range, not with the number of requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from kvtrail.tracer.model.conditions import TIMES, Time
from kvtrail.tracer.model.grouping import By, OfRequests
from kvtrail.tracer.serve.api.filters import MAX_NS, Moment, Where, moments
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.store import Group, Selection
from kvtrail.tracer.store.duration_bins import BINS, BOUNDS_NS, SCALE, percentile
from kvtrail.tracer.store.reader import Reader

MAX_STRETCHES = 60
"""Maximum number of intervals in a trend."""
MAX_GROUPS = 50
"""Maximum number of groups in an answer, the largest first."""
PERCENTILES = (50, 90, 99)
_SUMS = ("requests", "asked", "held", "loaded")
_MERGED = 2 ** (SCALE - 1)
"""Number of store bins in one bin of the heat map: two heat map bins per octave."""


Of = Annotated[Time, Query(description="the measure of time")]


class Distribution(BaseModel):
    """The number of requests with a time measure, and its percentiles in nanoseconds. None if no request has it."""

    requests: int
    p50_ns: int | None = None
    p90_ns: int | None = None
    p99_ns: int | None = None


class Stretch(Distribution):
    """The distribution of the requests that started in an interval, which begins at `at_ns`: a whole multiple of its length,
    so that a range that moves with the clock has the same intervals. The range may cut the first and the last."""

    at_ns: int


class Latency(BaseModel):
    """A time measure over a range, by the start time of requests."""

    since_ns: int
    until_ns: int
    step_ns: int
    of: str
    requests: int
    """Number of requests in the range that meet the filters, with or without the measure."""
    whole: Distribution
    trend: list[Stretch]
    """Intervals in which no request with the measure started are absent."""
    cells: dict[str, list[int]]
    """The heat map, as columns: `requests` is the number of requests that started in the interval at `at_ns` and took at
    least `low_ns` and less than `high_ns`. The lowest and the highest bin also count all values beyond them."""


class Measured(Distribution):
    """The distribution of one time measure."""

    of: str


class Measures(BaseModel):
    """The time that requests spent in each phase, and why their tokens were reused or computed."""

    requests: int
    times: list[Measured]
    tokens: dict[str, int]
    """The tokens of their prompts by cause, over all admissions."""


class RequestGroup(Distribution):
    """The requests of one group: its `name` and display name; the number of requests with the measure (`requests`) and of all
    requests (`all_requests`); the tokens of their prompts (`asked`), from vLLM's own cache (`held`) and from the connector
    (`loaded`)."""

    name: str
    text: str
    all_requests: int
    asked: int
    held: int
    loaded: int


class Groups(BaseModel):
    """The largest groups of the requests of a range."""

    by: str
    of: str
    requests: int
    """Number of all requests in the range that meet the filters, in any group."""
    groups: list[RequestGroup]


def _selected(which: Where, since_ns: Moment = None, until_ns: Moment = None) -> Selection:
    since, until = moments(since_ns, until_ns)
    return Selection(since_ns=since, before_ns=until, engines=which.engines, where=which.where)


Selected = Annotated[Selection, Depends(_selected)]
"""The requests of a range that meet the filters."""


def add_routes(api: APIRouter, reader: Reader, tenants: TenantNames) -> None:
    """Add the routes to the router of `/api`."""

    @api.get("/latency", summary="Request durations over time: percentiles and a heat map")
    def latency(which: Selected, of: Of = Time.DURATION) -> Latency:
        step_ns = max(1, -(-(which.before_ns - which.since_ns) // MAX_STRETCHES))
        counted = reader.durations(which, of=of, step_ns=step_ns)
        return latency_of(counted, which, of=of, step_ns=step_ns, requests=reader.count(which))

    @api.get("/latency/measures", summary="Time that requests spent in each phase, and their tokens by cause")
    def measures(which: Selected) -> Measures:
        counts = {
            of: {number: count for _, number, count in reader.durations(which, of=of, step_ns=MAX_NS)} for of in TIMES
        }
        return Measures(
            requests=reader.count(which),
            times=[Measured(of=name, **_distribution(bins)) for name, bins in counts.items()],
            tokens=dict(sorted(reader.tokens(which).items())),
        )

    @api.get(
        "/latency/groups",
        summary="Requests by engine, model, connector, tenant or prefix of the prompt: percentiles and hit rates",
    )
    def groups(which: Selected, by: OfRequests, of: Of = Time.DURATION) -> Groups:
        known = reader.engines()
        models = {name: str(about["model"]) for name, about in known.items()}
        in_store = By.ENGINE if by is By.MODEL else by
        # A model may have many small engines: all of them are read, and added up.
        limit = max(MAX_GROUPS, len(known)) if by is By.MODEL else MAX_GROUPS
        found = reader.groups(which, by=in_store, of=of, limit=limit)
        if by is By.MODEL:
            found = merged(found, models)
        found, requests = found[:MAX_GROUPS], reader.count(which)
        names = {name: str(about["name"]) for name, about in known.items()} if by is By.ENGINE else {}
        if by is By.TENANT:
            names = tenants.among({group.name: group for group in found})
        return Groups(
            by=by,
            of=of,
            requests=requests,
            groups=[_group(group, names) for group in found],
        )


def latency_of(
    counted: Iterable[tuple[int, int, int]], which: Selection, *, of: str, step_ns: int, requests: int
) -> Latency:
    """Make the answer from the counts of a store."""
    stretches: defaultdict[int, Counter[int]] = defaultdict(Counter)
    whole: Counter[int] = Counter()
    cells: Counter[tuple[int, int]] = Counter()
    for stretch, number, count in counted:
        stretches[stretch][number] += count
        whole[number] += count
        cells[stretch, number // _MERGED] += count
    ordered = sorted(cells.items())
    return Latency(
        since_ns=which.since_ns,
        until_ns=which.before_ns,
        step_ns=step_ns,
        of=of,
        requests=requests,
        whole=Distribution(**_distribution(whole)),
        trend=[Stretch(at_ns=stretch * step_ns, **_distribution(stretches[stretch])) for stretch in sorted(stretches)],
        cells={
            "at_ns": [stretch * step_ns for (stretch, _), _ in ordered],
            "low_ns": [BOUNDS_NS[part * _MERGED] for (_, part), _ in ordered],
            "high_ns": [BOUNDS_NS[min(BINS, (part + 1) * _MERGED)] for (_, part), _ in ordered],
            "requests": [count for _, count in ordered],
        },
    )


def merged(groups: Iterable[Group], names: Mapping[str, str]) -> list[Group]:
    """Merge groups under other names, the largest first."""
    found: dict[str, Group] = {}
    for group in groups:
        name = names.get(group.name, "")
        into = found.setdefault(name, Group(name, 0, 0, 0, 0))
        for what in _SUMS:
            setattr(into, what, getattr(into, what) + getattr(group, what))
        into.bins = dict(Counter(into.bins) + Counter(group.bins))
    return sorted(found.values(), key=lambda group: (-group.requests, group.name))


def _group(group: Group, names: Mapping[str, str]) -> RequestGroup:
    return RequestGroup(
        name=group.name,
        text=names.get(group.name, group.name),
        all_requests=group.requests,
        asked=group.asked,
        held=group.held,
        loaded=group.loaded,
        **_distribution(group.bins),
    )


def _distribution(bins: Mapping[int, int]) -> dict[str, Any]:
    """The fields of `Distribution`."""
    shares = {f"p{each}_ns": percentile(bins, each / 100) for each in PERCENTILES}
    return {"requests": sum(bins.values()), **shares}

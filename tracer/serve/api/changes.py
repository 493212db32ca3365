"""The API route that compares the time before and after a moment: the changes, the requests that explain them, and probable
causes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from kvtrail.tracer.liveness.markers import AFTER_NS, BEFORE_NS, BEST_FIRST, near
from kvtrail.tracer.model.cause_words import in_sums
from kvtrail.tracer.model.causes import Cause
from kvtrail.tracer.model.conditions import UNKNOWN, Time
from kvtrail.tracer.model.findings import clock
from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.model.tenants import OTHER, PLAIN
from kvtrail.tracer.model.words import count, duration, percent
from kvtrail.tracer.savings.changes import GroupChange, MeasureChange, Side, Sums, changes
from kvtrail.tracer.savings.minute_sums import MINUTE_NS, interval_s
from kvtrail.tracer.serve.api.filters import MAX_NS, ChosenEngines, Moment, Resolver
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.store import Group, Selection
from kvtrail.tracer.store.reader import Reader

MOST_PREFIXES = 50
EXPLAINS = 0.3
"""A group with this share of the change is named as a cause."""
MOSTLY = 0.7
"""With this share of the change, traffic explains it."""
MOST = 5
_NEW = {"tenant": ("Tenant {} is new", "it"), "prefix": ("Prompts that begin with {} are new", "them")}
_NO_TENANT = {
    PLAIN: ("Requests without a cache salt or adapter are new", "them"),
    OTHER: ("Other tenants are new", "them"),
}
"""Groups of the dimension `tenant` that are not tenants."""
Ends = tuple[int, int]


class LikelyCause(BaseModel):
    """A possible cause of a change."""

    kind: str
    """The kind of a marker, or `evictions`, `new tenant`, `new prefix` or `traffic`."""
    text: str
    """The event and its evidence."""
    at_ns: int | None = None
    """Its time; null if it has no single moment."""
    engine: str = ""
    """The engine's id, if the cause concerns a single engine."""


class Stretch(BaseModel):
    """One of the compared time ranges."""

    since_ns: int
    until_ns: int


class ChangesReport(BaseModel):
    """Changes from one time range to a later one."""

    before: Stretch
    after: Stretch
    """Whole minutes, or whole hours if one of the ranges is longer than six hours."""
    changes: list[MeasureChange]
    """Amounts per minute, over all requests."""
    likely: list[LikelyCause]
    """Probable causes of the change in computed tokens, the most likely first."""
    engine_names: dict[str, str]
    """The engines' display names, by id."""
    tenant_names: dict[str, str]
    """The names of tenants among the groups, by digest, for tenants that have a name (`kvtrail serve --tenants`)."""


def add_routes(api: APIRouter, reader: Reader, tenants: TenantNames) -> None:
    """Add the route to the router of `/api`."""

    @api.get("/changes", summary="Changes at a moment, and the requests that explain them")
    def changed(
        chosen: ChosenEngines,
        resolver: Resolver,
        at_ns: Annotated[int, Query(ge=1, le=MAX_NS, description="the moment that divides the range")],
        since_ns: Moment = None,
        until_ns: Moment = None,
    ) -> ChangesReport:
        until = time.time_ns() if until_ns is None else until_ns
        first, second = _ranges(at_ns, since_ns, until)
        wanted = [engine for engine in resolver.engines if chosen is None or engine in chosen]
        prefixes = _prefixes(reader, (first, second), wanted)

        def side(ends: Ends, prefixes: Mapping[str, Sums]) -> Side:
            rows = reader.savings(since_ns=ends[0], until_ns=ends[1], engines=wanted) if ends[0] < ends[1] else []
            return Side(rows, _minutes(ends), prefixes)

        found = changes(side(first, prefixes[0]), side(second, prefixes[1]), resolver.models)
        moment = second[0]
        marked = resolver.markers(since_ns=first[1] - BEFORE_NS, until_ns=moment + AFTER_NS, chosen=wanted)
        tenant_names = tenants.among(
            {part.group: part for each in found for part in each.groups if part.dimension == "tenant"}
        )
        return ChangesReport(
            before=Stretch(since_ns=first[0], until_ns=first[1]),
            after=Stretch(since_ns=second[0], until_ns=second[1]),
            changes=found,
            likely=likely_causes(
                found, marked, at_ns=moment, since_ns=first[1], name=resolver.name, tenant_names=tenant_names
            ),
            engine_names=resolver.names,
            tenant_names=tenant_names,
        )


def _ranges(at_ns: int, since_ns: int | None, until_ns: int) -> tuple[Ends, Ends]:
    """The range before the moment and the range after it, in whole steps: by default they have the same length.

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


def _prefixes(reader: Reader, ranges: Sequence[Ends], engines: list[str]) -> list[dict[str, Sums]]:
    """The tokens of the requests that began in each range, by prefix: for the most frequent prefixes of either range that at
    least two requests share."""
    selections = [Selection(since_ns=begin, before_ns=end, engines=engines) for begin, end in ranges]

    def groups(which: Selection, names: Collection[str] | None = None) -> list[Group]:
        return reader.groups(which, by=By.PREFIX, of=Time.DURATION, limit=2 * MOST_PREFIXES, names=names)

    names = {each.name for which in selections for each in groups(which)[:MOST_PREFIXES] if each.requests > 1}
    if names <= {UNKNOWN}:
        return [{} for _ in selections]
    return [
        {each.name: {"asked": each.asked, "local": each.held, "taken": each.loaded} for each in groups(which, names)}
        for which in selections
    ]


def likely_causes(
    changes: Iterable[MeasureChange],
    markers: Iterable[Marker],
    *,
    at_ns: int,
    since_ns: int | None = None,
    name: Callable[[str], str],
    tenant_names: Mapping[str, str],
) -> list[LikelyCause]:
    """Probable causes of the difference in computed tokens between the time until `since_ns` (by default `at_ns`) and the
    time from `at_ns` on, the most likely first. `name` returns an engine's display name, and `tenant_names` has the names of
    tenants. A marker ranks higher if its engine's requests, or its effects, make up the change."""
    by_measure = {each.measure: each for each in changes}
    computed, asked = by_measure.get("computed"), by_measure.get("asked")
    found = [
        (_score(each, computed), _of_marker(each, computed, asked, at_ns, name))
        for each in near(markers, since_ns=at_ns if since_ns is None else since_ns, at_ns=at_ns)
    ]
    if computed is not None:
        found += [*_evictions(computed), *_new_groups(computed, tenant_names), *_traffic(computed, asked)]
    return [cause for _, cause in sorted(found, key=lambda each: -each[0])][:MOST]


def _score(marker: Marker, computed: MeasureChange | None) -> float:
    """A marker without evidence ranks below any cause that explains half of the change."""
    return 0.5 - BEST_FIRST.index(marker.kind) / 100 + max(0.0, _share_of(marker, computed))


def _share_of(marker: Marker, computed: MeasureChange | None) -> float:
    """The share of the change that belongs to the marked engine or, after a reset, to tokens that were held until then."""
    if computed is None:
        return 0.0
    if marker.kind is MarkerKind.RESET:
        return sum(each.share for each in _of_cause(computed, Cause.RESET))
    engines = [each for each in computed.groups if each.dimension == "engine"]
    return next((each.share for each in engines if each.group == marker.engine), 0.0) if len(engines) > 1 else 0.0


def _of_marker(
    marker: Marker,
    computed: MeasureChange | None,
    asked: MeasureChange | None,
    at_ns: int,
    name: Callable[[str], str],
) -> LikelyCause:
    apart_ns = marker.at_ns - at_ns
    apart = f"{duration(abs(apart_ns))} {'after' if apart_ns > 0 else 'before'} the change" if apart_ns else "then"
    what = f"Engine {name(marker.engine)} {marker.text}"
    evidence = []
    if (share := _share_of(marker, computed)) >= EXPLAINS:
        kind = "tokens held until a reset" if marker.kind is MarkerKind.RESET else "of its own requests"
        evidence.append(f"{percent(share)} of the change is {kind}")
    groups = asked.groups if asked and marker.kind is not MarkerKind.RESET else ()
    for each in groups:
        if (each.dimension, each.group) == ("engine", marker.engine) and _has_moved(each):
            asked_for = f"{count(each.amount.before)} tokens a minute before, {count(each.amount.after)} after"
            evidence.append(f"it was asked for {asked_for}")
    at = clock(marker.at_ns)[: len("12:00:00")]
    text = f"{what} ({at}, {apart}){': ' if evidence else ''}{'; '.join(evidence)}"
    return LikelyCause(kind=marker.kind, text=text, at_ns=marker.at_ns, engine=marker.engine)


def _has_moved(group: GroupChange) -> bool:
    return abs(group.amount.change) > EXPLAINS * max(group.amount.before, group.amount.after)


def _evictions(computed: MeasureChange) -> list[tuple[float, LikelyCause]]:
    """More tokens are computed because more were evicted earlier: a cache is too small for the traffic."""
    groups = _of_cause(computed, Cause.EVICTED)
    share = sum(each.share for each in groups)
    if share < EXPLAINS or computed.whole.change < 0:
        return []
    before, after = sum(each.amount.before for each in groups), sum(each.amount.after for each in groups)
    text = (
        f"Evictions: {percent(min(1.0, share))} of what is computed more {in_sums(Cause.EVICTED)}:"
        f" {count(before)} tokens a minute before, {count(after)} after"
    )
    return [(share, LikelyCause(kind="evictions", text=text))]


def _new_groups(computed: MeasureChange, names: Mapping[str, str]) -> list[tuple[float, LikelyCause]]:
    """A new tenant, or prompts with a new prefix."""
    found = []
    for each in computed.groups:
        if each.dimension in _NEW and each.share >= EXPLAINS and not each.amount.before:
            amount = f"{count(each.amount.after)} tokens a minute"
            what, them = _NEW[each.dimension]
            if each.dimension == "tenant" and each.group not in names:
                what, them = _NO_TENANT.get(each.group, (what, them))
            who = what.format(names.get(each.group, each.group[:8]))
            text = f"{who}: {percent(each.share)} of the change is computed for {them}, {amount}"
            found.append((each.share, LikelyCause(kind=f"new {each.dimension}", text=text)))
    return found


def _traffic(computed: MeasureChange, asked: MeasureChange | None) -> list[tuple[float, LikelyCause]]:
    if asked is None or computed.of_traffic is None:
        return []
    share = computed.of_traffic / computed.whole.change
    if share < MOSTLY:
        return []
    if not (asked.whole.before and asked.whole.after):
        side = "before" if asked.whole.after else "after"
        other, amount = ("after", asked.whole.after) if asked.whole.after else ("before", asked.whole.before)
        text = f"Nothing was asked for {side}, and {count(amount)} tokens a minute {other}"
        return [(share, LikelyCause(kind="traffic", text=text))]
    more = "More" if computed.whole.change > 0 else "Less"
    amounts = f"{count(asked.whole.before)} tokens a minute before, {count(asked.whole.after)} after"
    return [(share, LikelyCause(kind="traffic", text=f"{more} was asked for: {amounts}, at the same reuse"))]


def _of_cause(computed: MeasureChange, cause: Cause) -> Sequence[GroupChange]:
    return [each for each in computed.groups if each.dimension == "cause" and each.group.partition(":")[0] == cause]

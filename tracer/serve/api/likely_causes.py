"""What probably made the numbers change at a moment, with the evidence: what happened just then, and which requests the
change is made of. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import BaseModel

from kvtrail.tracer.liveness.markers import BEST_FIRST, near
from kvtrail.tracer.model.cause_words import in_sums
from kvtrail.tracer.model.causes import Cause
from kvtrail.tracer.model.findings import clock
from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.model.tenants import OTHER, PLAIN
from kvtrail.tracer.model.words import count, duration, percent
from kvtrail.tracer.savings.changes import GroupChange, MeasureChange

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
"""Groups of the dimension `tenant` that are no tenant."""


class LikelyCause(BaseModel):
    """What may have made numbers change."""

    kind: str
    """That of a marker, or `evictions`, `new tenant`, `new prefix` or `traffic`."""
    text: str
    """What happened, and what speaks for it."""
    at_ns: int | None = None
    """When; null for what has no single moment."""
    engine: str = ""
    """The engine's id, if it is about one."""


def likely_causes(
    changes: Iterable[MeasureChange],
    markers: Iterable[Marker],
    *,
    at_ns: int,
    since_ns: int | None = None,
    name: Callable[[str], str],
    tenant_names: Mapping[str, str],
) -> list[LikelyCause]:
    """What explains that more or less was computed from `at_ns` on than until `since_ns`, by default the same moment, the
    likeliest first; `name` has an engine's name for people, and `tenant_names` those of tenants. A marker counts for more
    if its engine's requests, or what it did, make up the change."""
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
    """A marker with nothing that speaks for it comes after what explains half of the change."""
    return 0.5 - BEST_FIRST.index(marker.kind) / 100 + max(0.0, _share_of(marker, computed))


def _share_of(marker: Marker, computed: MeasureChange | None) -> float:
    """The share of the change that is the marked engine's or, after a reset, of what was held until then."""
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
    """More is computed since more had been evicted: a cache is too small for what is asked for."""
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
    """A tenant, or prompts that begin as none did before."""
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

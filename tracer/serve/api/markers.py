"""The API route of markers: what happened at which moment."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from kvtrail.tracer.liveness.markers import joined, of_launches
from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.serve.api.filters import ChosenEngines, Moment, moments
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver
from kvtrail.tracer.serve.api.process_state import Live
from kvtrail.tracer.store import Reader

MOST_OF_A_KIND = 2_000
"""How many stored markers of a kind are read, the latest ones."""
STEPS = 120
"""Markers of one kind are joined where they lie closer than this part of the range: their lines would touch."""
_KINDS = "any of these kinds; by default all but resets: a reset is named where it explains a change"
HOUR_NS = 3600 * 10**9


class MarkerRow(BaseModel):
    """A moment at which something happened, or several close to each other."""

    kind: MarkerKind
    at_ns: int
    """When; of several, the first. Unix nanoseconds."""
    engine: str
    """The engine's id; empty for several engines."""
    engine_name: str
    text: str
    """What happened, without the engine's name."""
    count: int
    """How many it stands for."""


def add_routes(api: APIRouter, process: Live, reader: Reader) -> None:
    """Add the routes to the router of `/api`."""

    @api.get("/markers", summary="Deploys, restarts, deaths, resets and drops of a range of time")
    def marked(
        chosen: ChosenEngines,
        kind: Annotated[
            list[MarkerKind] | None,
            Query(description=_KINDS),
        ] = None,
        since_ns: Moment = None,
        until_ns: Moment = None,
    ) -> list[MarkerRow]:
        since, until = moments(since_ns, until_ns, length_ns=HOUR_NS)
        found = markers_of(OutcomeResolver(process, reader), reader, since_ns=since, until_ns=until, chosen=chosen)
        return [each for each in found if (each.kind in kind if kind else each.kind is not MarkerKind.RESET)]


def markers_of(
    resolver: OutcomeResolver,
    reader: Reader,
    *,
    since_ns: int,
    until_ns: int,
    chosen: Collection[str] | None = None,
) -> list[MarkerRow]:
    """The markers of a range, by time; with `chosen`, those of these engines. Those of one kind that are close to each other
    are joined."""
    names = {id_: str(about["name"]) for id_, about in resolver.engines.items()}
    every = every_marker(resolver, reader, since_ns=since_ns, until_ns=until_ns, chosen=chosen)
    together = joined(every, names, step_ns=max(1, (until_ns - since_ns) // STEPS))
    return [_row(each, names) for each in sorted(together, key=lambda each: each.at_ns)]


def every_marker(
    resolver: OutcomeResolver, reader: Reader, *, since_ns: int, until_ns: int, chosen: Collection[str] | None = None
) -> list[Marker]:
    """The markers of a range, one by one; with `chosen`, those of these engines."""
    launches = {(each.engine, each.launch): each for each in (*reader.launches(), *resolver.launches.values())}
    every = [
        *of_launches(launches.values(), resolver.engines, since_ns=since_ns, until_ns=until_ns),
        *reader.markers(since_ns=since_ns, until_ns=until_ns, limit=MOST_OF_A_KIND),
    ]
    return [each for each in every if chosen is None or each.engine in chosen]


def _row(marker: Marker, names: dict[str, str]) -> MarkerRow:
    return MarkerRow(
        kind=marker.kind,
        at_ns=marker.at_ns,
        engine=marker.engine,
        engine_name=names.get(marker.engine, marker.engine),
        text=marker.text,
        count=marker.count,
    )

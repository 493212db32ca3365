"""The API route of markers: notable events and their times."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from kvtrail.tracer.liveness.markers import joined
from kvtrail.tracer.model.markers import MarkerKind
from kvtrail.tracer.serve.api.filters import ChosenEngines, Moment, Resolver, moments

STEPS = 120
"""Markers of one kind are merged if their distance is less than this share of the range: their lines would touch."""
_KINDS = "kinds of markers; by default all except resets, which are named where they explain a change"
HOUR_NS = 3600 * 10**9


def add_routes(api: APIRouter) -> None:
    """Add the route to the router of `/api`."""

    @api.get("/markers", summary="Deploys, restarts, deaths, resets and drops in a time range")
    def marked(
        chosen: ChosenEngines,
        resolver: Resolver,
        kind: Annotated[
            list[MarkerKind] | None,
            Query(description=_KINDS),
        ] = None,
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

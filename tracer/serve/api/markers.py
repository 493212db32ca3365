"""The API routes of markers: what happened at which moment, and notes that people and scripts write."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, Field

from kvtrail.tracer.liveness.markers import joined, of_launches
from kvtrail.tracer.model.markers import MOST_TEXT, Marker, MarkerKind
from kvtrail.tracer.serve.api.engine_filter import ChosenEngines
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver
from kvtrail.tracer.serve.api.process import Live
from kvtrail.tracer.serve.api.time_range import MAX_NS, Moment, moments
from kvtrail.tracer.store import Reader

MOST_OF_A_KIND = 2_000
"""How many stored markers of a kind are read, the latest ones."""
STEPS = 120
"""Markers of one kind are joined where they lie closer than this part of the range: their lines would touch."""
_KINDS = "any of these kinds; by default all but resets: a reset is named where it explains a change"
HOUR_NS = 3600 * 10**9
LATEST_NS = 60 * 10**9
"""How far in the future a note may lie: clocks differ."""


class MarkerRow(BaseModel):
    """A moment at which something happened, or several close to each other."""

    kind: MarkerKind
    at_ns: int
    """When; of several, the first. Unix nanoseconds."""
    engine: str
    """The engine's id; empty for a note about none, and for several engines."""
    engine_name: str
    text: str
    """What happened, without the engine's name; of a note, what was written."""
    count: int
    """How many it stands for."""


class Note(BaseModel):
    """What is to be marked."""

    text: Annotated[str, Field(description="What happened, in a sentence.")]
    at_ns: Annotated[int | None, Field(description="When, Unix nanoseconds; now, if it is left out.")] = None
    engine: Annotated[str, Field(description="The engine that it is about, by id or name; all, if it is left out.")] = (
        ""
    )


def add_routes(api: APIRouter, process: Live, reader: Reader) -> None:
    """Add the routes to the router of `/api`."""

    @api.get("/markers", summary="Deploys, restarts, deaths, resets, drops and notes of a range of time")
    def marked(
        chosen: ChosenEngines,
        engine: str = "",
        kind: Annotated[
            list[MarkerKind] | None,
            Query(description=_KINDS),
        ] = None,
        since_ns: Moment = None,
        until_ns: Moment = None,
    ) -> list[MarkerRow]:
        since, until = moments(since_ns, until_ns, length_ns=HOUR_NS)
        found = markers_of(
            OutcomeResolver(process, reader), reader, since_ns=since, until_ns=until, engine=engine, chosen=chosen
        )
        return [each for each in found if (each.kind in kind if kind else each.kind is not MarkerKind.RESET)]

    @api.post("/markers", summary="Write a note, which is shown on all charts over time", status_code=201)
    def write(note: Note) -> MarkerRow:
        names, now_ns = reader.names(), time.time_ns()
        marker = _marker(note, names, now_ns=now_ns)
        process.add_marker(marker)
        return _row(marker, names)


def markers_of(
    resolver: OutcomeResolver,
    reader: Reader,
    *,
    since_ns: int,
    until_ns: int,
    engine: str = "",
    chosen: Collection[str] | None = None,
) -> list[MarkerRow]:
    """The markers of a range, by time; those of an engine or of chosen ones, with the notes about no engine. Those of one
    kind that are close to each other are joined."""
    names = {id_: str(about["name"]) for id_, about in resolver.engines.items()}
    every = every_marker(resolver, reader, since_ns=since_ns, until_ns=until_ns, chosen=chosen)
    wanted = (each for each in every if engine in ("", each.engine) or not each.engine)
    together = joined(wanted, names, step_ns=max(1, (until_ns - since_ns) // STEPS))
    return [_row(each, names) for each in sorted(together, key=lambda each: each.at_ns)]


def every_marker(
    resolver: OutcomeResolver, reader: Reader, *, since_ns: int, until_ns: int, chosen: Collection[str] | None = None
) -> list[Marker]:
    """The markers of a range, one by one; with `chosen`, those of these engines, and of no engine."""
    launches = {(each.engine, each.launch): each for each in (*reader.launches(), *resolver.launches.values())}
    every = [
        *of_launches(launches.values(), resolver.engines, since_ns=since_ns, until_ns=until_ns),
        *reader.markers(since_ns=since_ns, until_ns=until_ns, limit=MOST_OF_A_KIND),
    ]
    return [each for each in every if not each.engine or chosen is None or each.engine in chosen]


def _marker(note: Note, names: dict[str, str], *, now_ns: int) -> Marker:
    """Raises HTTPException where it is no note."""
    text = " ".join(note.text.split())
    if not text:
        raise HTTPException(400, "the note has no text")
    if len(text) > MOST_TEXT:
        raise HTTPException(400, f"the note has {len(text)} characters; {MOST_TEXT} is the most")
    at_ns = now_ns if note.at_ns is None else note.at_ns
    if not 0 < at_ns <= min(MAX_NS, now_ns + LATEST_NS):
        raise HTTPException(400, f"at_ns {at_ns} is not a moment of the past: it is Unix nanoseconds")
    called = [id_ for id_, name in names.items() if note.engine in (id_, name)]
    if note.engine and not called:
        raise HTTPException(400, f"no engine has the id or the name {note.engine!r}")
    engine = called[0] if called else ""
    return Marker(id=f"note {uuid.uuid4().hex}", kind=MarkerKind.NOTE, at_ns=at_ns, engine=engine, text=text)


def _row(marker: Marker, names: dict[str, str]) -> MarkerRow:
    return MarkerRow(
        kind=marker.kind,
        at_ns=marker.at_ns,
        engine=marker.engine,
        engine_name=names.get(marker.engine, marker.engine),
        text=marker.text,
        count=marker.count,
    )

"""The live view's part of the api: a window of time, as lanes in compact arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from kvtrail.tracer.detect.lanes import Lane, Lanes, Segment, Window, segments
from kvtrail.tracer.detect.phases import WORDS
from kvtrail.tracer.serve.pipeline import Pipeline, RecorderState
from kvtrail.tracer.store import Reader

SILENT_NS = 30 * 10**9
"""A recorder gives a sign of life every 5 s; what an engine left open that was silent for longer, does not go on."""
MOST_MARKS = 2000
LONGEST_NS = 400 * 86_400 * 10**9
Moment = Annotated[int, Query(ge=0, le=2**63 - 1, description="Unix nanoseconds")]


class Shown(BaseModel):
    """Lanes of a window. Columns are arrays of the same length; microseconds count from `from_ns`, and may be negative."""

    from_ns: int
    to_ns: int
    now_ns: int
    """The tracer's clock when it answered."""
    phases: list[str]
    """What the numbers of `segments.phase` mean."""
    requests: dict[str, list[Any]]
    """A column each for `request`, `external`, `engine`, `connector`, `status`, `verdict`, `findings`, `complete`,
    `begin_us`, `end_us`, `is_open` and `is_unsure` (open, as far as is known: but spans are missing after its last)."""
    segments: dict[str, list[int]]
    """`lane` (an index into the requests), `phase`, `begin_us`, `end_us`."""
    marks: dict[str, list[Any]]
    """Findings: `lane` (-1 for one that concerns no request), `at_us`, `rule`, `title`, `severity`, `healed`."""
    gaps: dict[str, list[Any]]
    """Where spans are missing: `engine`, `begin_us`, `end_us`, `missing` (events)."""
    engines: list[str]
    connectors: list[str]
    """All that were heard since this tracer started, and all of the window."""
    heard_ns: int | None
    """When the latest event of any recorder happened."""
    known: int
    """Requests in the window; an estimate if `is_sample`."""
    is_sample: bool
    """More than the limit: those with findings are shown first, then a fair sample of the others."""
    has_all_findings: bool
    """False if those with findings alone were too many: they are a fair sample then as well."""
    is_whole: bool
    """False if looking for them took too long, and was given up."""


def lane_routes(pipeline: Pipeline, reader: Reader) -> APIRouter:
    """`GET /api/lanes`."""
    router = APIRouter(prefix="/api", tags=["Reading"])

    @router.get("/lanes", summary="A window of time: the requests in it, their phases, findings and gaps")
    def lanes(
        from_ns: Moment,
        to_ns: Moment,
        limit: Annotated[int, Query(ge=1, le=5000, description="requests at most")] = 1000,
        points: Annotated[int, Query(ge=100, le=20_000, description="how many moments can be told apart")] = 2000,
        engine: str = "",
        connector: str = "",
        status: str = "",
        q: Annotated[str, Query(description="part of the engine's or the external id")] = "",
    ) -> Shown:
        if not 0 < to_ns - from_ns <= LONGEST_NS:
            raise HTTPException(422, "to_ns must lie after from_ns, and at most 400 days after it")
        window = Window(
            from_ns=from_ns, to_ns=to_ns, limit=limit, engine=engine, connector=connector, status=status, search=q
        )
        recorders = list(pipeline.recorders.values())
        now_ns = time.time_ns()
        live = {r.engine for r in recorders if not r.closed and now_ns - r.last_ns <= SILENT_NS}
        found = reader.lanes(window, live=live)
        return answer(found, window, recorders, reader.marks, now_ns=now_ns, live=live, points=points)

    return router


def answer(
    found: Lanes,
    window: Window,
    recorders: Sequence[RecorderState],
    marks: Callable[..., list[dict[str, Any]]],
    *,
    now_ns: int,
    live: set[str],
    points: int,
) -> Shown:
    """The window as columns."""
    lanes = found.lanes
    finest_us = (window.to_ns - window.from_ns) / 1000 / points
    lost_ns = {r.engine: max((gap.to_ns for gap in r.gaps.within(0, now_ns)), default=0) for r in recorders}
    open_ = [_is_open(lane, now_ns=now_ns, live=live) for lane in lanes]
    # Where spans are missing, one of them may have said that it is over: what is known ends with the last that came.
    unsure = [
        is_open and (not lane.complete or lost_ns.get(lane.engine, 0) >= lane.last_ns)
        for lane, is_open in zip(lanes, open_, strict=True)
    ]
    ends = [
        now_ns if is_open and not is_unsure else lane.last_ns
        for lane, is_open, is_unsure in zip(lanes, open_, unsure, strict=True)
    ]
    drawn = [
        (number, segment)
        for number, (lane, end_ns) in enumerate(zip(lanes, ends, strict=True))
        for segment in segments(lane, window=window, until_ns=end_ns, finest_us=finest_us)
    ]
    gaps = [(r.engine, gap) for r in recorders for gap in r.gaps.within(window.from_ns, window.to_ns)]
    return Shown(
        from_ns=window.from_ns,
        to_ns=window.to_ns,
        now_ns=now_ns,
        phases=list(WORDS.values()),
        requests={
            **{name: [getattr(lane, name) for lane in lanes] for name in _SAID},
            "begin_us": [_us(lane.started_ns, window) for lane in lanes],
            "end_us": [_us(end_ns, window) for end_ns in ends],
            "is_open": open_,
            "is_unsure": unsure,
        },
        segments=_columns(drawn),
        marks=_marks(lanes, marks(window, lanes, limit=MOST_MARKS), window),
        gaps={
            "engine": [engine for engine, _ in gaps],
            "begin_us": [_us(gap.from_ns, window) for _, gap in gaps],
            "end_us": [_us(gap.to_ns, window) for _, gap in gaps],
            "missing": [gap.missing for _, gap in gaps],
        },
        engines=sorted({r.engine for r in recorders} | {lane.engine for lane in lanes}),
        connectors=sorted({lane.connector for lane in lanes if lane.connector}),
        heard_ns=max((r.last_ns for r in recorders), default=None),
        known=found.known,
        is_sample=found.is_sample,
        has_all_findings=found.has_all_findings,
        is_whole=found.is_whole,
    )


_SAID = ("request", "external", "engine", "connector", "status", "verdict", "findings", "complete")


def _is_open(lane: Lane, *, now_ns: int, live: set[str]) -> bool:
    """Whether the request goes on, as far as is known."""
    if lane.ended_ns is not None or lane.status == "failed":
        return False
    return lane.engine in live or now_ns - lane.last_ns <= SILENT_NS


def _us(at_ns: int, window: Window) -> int:
    return (at_ns - window.from_ns) // 1000


def _columns(drawn: Sequence[tuple[int, Segment]]) -> dict[str, list[int]]:
    return {
        "lane": [number for number, _ in drawn],
        "phase": [int(segment.phase) for _, segment in drawn],
        "begin_us": [segment.begin_us for _, segment in drawn],
        "end_us": [segment.end_us for _, segment in drawn],
    }


def _marks(lanes: Sequence[Lane], findings: Sequence[dict[str, Any]], window: Window) -> dict[str, list[Any]]:
    place = {(lane.engine, lane.request): number for number, lane in enumerate(lanes)}
    marks = [
        (place.get((f["engine"], f["request"]), -1), _us(f["first_ns"], window), f)
        for f in findings
        if f["first_ns"] <= window.to_ns
    ]
    return {
        "lane": [number for number, _, _ in marks],
        "at_us": [at for _, at, _ in marks],
        **{name: [f[name] for _, _, f in marks] for name in ("rule", "title", "severity", "healed")},
    }

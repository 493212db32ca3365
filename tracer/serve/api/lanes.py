"""The API route behind the live view: the requests in a window of time as lanes, in compact columns."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from kvtrail.tracer.ledger.lanes import Window, segments
from kvtrail.tracer.ledger.phases import WORDS
from kvtrail.tracer.liveness.engine import CONTACT_NS
from kvtrail.tracer.liveness.request_outcome import is_over
from kvtrail.tracer.serve.api.filters import MAX_NS, Where
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver, deaths
from kvtrail.tracer.serve.api.process_state import Live
from kvtrail.tracer.store.reader import Reader

MAX_MARKS = 2000
LONGEST_NS = 400 * 86_400 * 10**9
Moment = Annotated[int, Query(ge=0, le=MAX_NS, description="Unix nanoseconds")]
_LANE_COLUMNS = ("request", "external", "engine", "connector", "status", "verdict", "findings", "complete")
_MARK_COLUMNS = ("rule", "title", "severity", "healed", "did")


class LaneColumns(BaseModel):
    """The lanes of a window. The columns of a table have the same length; microseconds count from `from_ns`, and may be
    negative."""

    from_ns: int
    to_ns: int
    now_ns: int
    """The tracer's clock at the time of the answer."""
    phases: list[str]
    """The names of the numbers in `segments.phase`."""
    requests: dict[str, list[Any]]
    """Columns `request`, `external`, `engine`, `connector`, `status`, `verdict`, `findings`, `complete`, `begin_us`,
    `end_us`, `is_open` and `is_unsure` (no end is known, but spans are missing after its last one)."""
    segments: dict[str, list[int]]
    """Columns `lane` (an index into the requests), `phase`, `begin_us`, `end_us`."""
    marks: dict[str, list[Any]]
    """Findings: `lane` (-1 for a finding without a request), `at_us`, `rule`, `title`, `severity`, `healed`, the impact
    (`did`), and the reason why it is `known`, or null."""
    deaths: list[dict[str, Any]]
    """Engines that died in the window: `engine`, `at_ns`, `ended_by` (the exception), `lost` (requests)."""
    gaps: dict[str, list[Any]]
    """Ranges in which spans are missing: `engine`, `begin_us`, `end_us`, `missing` (events)."""
    engines: list[str]
    connectors: list[str]
    """The engines that reported since this tracer started, the engines of the window, and the window's connectors."""
    engine_names: dict[str, str]
    """The display names of these engines, by id."""
    heard_ns: int | None
    """Time of the latest event of any recorder."""
    known: int
    """Requests in the window; an estimate if `is_sample`."""
    is_sample: bool
    """There are more requests than the limit: requests with findings come first, then a fair sample of the others."""
    has_all_findings: bool
    """False if requests with findings alone exceeded the limit, so that they are a fair sample as well."""
    is_whole: bool
    """False if the search took too long and was stopped."""


def add_routes(api: APIRouter, process: Live, reader: Reader) -> None:
    """Add the route to the router of `/api`."""

    @api.get("/lanes", summary="Requests in a time window, with their phases, findings and gaps")
    def lanes(
        from_ns: Moment,
        to_ns: Moment,
        which: Where,
        limit: Annotated[int, Query(ge=1, le=5000, description="the maximum number of requests")] = 1000,
        points: Annotated[int, Query(ge=100, le=20_000, description="resolution: moments across the window")] = 2000,
        status: str = "",
        q: Annotated[str, Query(description="part of the engine's or the external id")] = "",
    ) -> LaneColumns:
        if not 0 < to_ns - from_ns <= LONGEST_NS:
            raise HTTPException(422, "to_ns must lie after from_ns, and at most 400 days after it")
        window = Window(
            from_ns=from_ns, to_ns=to_ns, limit=limit, engines=which.engines, where=which.where,
            status=status, search=q,
        )  # fmt: skip
        return _columns(reader, window, process, points=points)


def _columns(reader: Reader, window: Window, process: Live, *, points: int) -> LaneColumns:
    now_ns = time.time_ns()
    recorders, live = process.recorders.values(), process.running()
    found = reader.lanes(window, live=live)
    lanes = found.lanes
    finest_us = (window.to_ns - window.from_ns) / 1000 / points
    lost_ns = {r.engine: max((gap.to_ns for gap in r.gaps.within(0, now_ns)), default=0) for r in recorders}
    is_open = [
        not is_over(lane.status, lane.ended_ns) and (lane.engine in live or now_ns - lane.last_ns <= CONTACT_NS)
        for lane in lanes
    ]
    # A missing span may have ended the request, so only the time before the last known span is certain.
    is_unsure = [
        open_ and (not lane.complete or lost_ns.get(lane.engine, 0) >= lane.last_ns)
        for lane, open_ in zip(lanes, is_open, strict=True)
    ]
    ends_ns = [
        now_ns if open_ and not unsure else lane.last_ns
        for lane, open_, unsure in zip(lanes, is_open, is_unsure, strict=True)
    ]
    drawn = [
        (number, segment)
        for number, (lane, end_ns) in enumerate(zip(lanes, ends_ns, strict=True))
        for segment in segments(lane, window=window, until_ns=end_ns, finest_us=finest_us)
    ]
    gaps = [(r.engine, gap) for r in recorders for gap in r.gaps.within(window.from_ns, window.to_ns)]
    marks = [f for f in reader.marks(window, lanes, limit=MAX_MARKS) if f["first_ns"] <= window.to_ns]
    findings = OutcomeResolver(process, reader).findings(marks) if marks else []
    died = deaths(reader.launches(), since_ns=window.from_ns, until_ns=window.to_ns)
    engines = sorted({r.engine for r in recorders} | {lane.engine for lane in lanes} | {d["engine"] for d in died})
    names = reader.names()
    lane_numbers = {(lane.engine, lane.request): number for number, lane in enumerate(lanes)}

    def us(at_ns: int) -> int:
        return (at_ns - window.from_ns) // 1000

    return LaneColumns(
        from_ns=window.from_ns,
        to_ns=window.to_ns,
        now_ns=now_ns,
        phases=list(WORDS.values()),
        requests={
            **{name: [getattr(lane, name) for lane in lanes] for name in _LANE_COLUMNS},
            "begin_us": [us(lane.started_ns) for lane in lanes],
            "end_us": [us(end_ns) for end_ns in ends_ns],
            "is_open": is_open,
            "is_unsure": is_unsure,
        },
        segments={
            "lane": [number for number, _ in drawn],
            "phase": [int(segment.phase) for _, segment in drawn],
            "begin_us": [segment.begin_us for _, segment in drawn],
            "end_us": [segment.end_us for _, segment in drawn],
        },
        marks={
            "lane": [lane_numbers.get((f["engine"], f["request"]), -1) for f in findings],
            "at_us": [us(f["first_ns"]) for f in findings],
            **{name: [f[name] for f in findings] for name in _MARK_COLUMNS},
            "known": [f["known"] and f["known"]["why"] for f in findings],
        },
        deaths=[death for death in died if window.engines is None or death["engine"] in window.engines],
        gaps={
            "engine": [engine for engine, _ in gaps],
            "begin_us": [us(gap.from_ns) for _, gap in gaps],
            "end_us": [us(gap.to_ns) for _, gap in gaps],
            "missing": [gap.missing for _, gap in gaps],
        },
        engines=engines,
        engine_names={engine: names[engine] for engine in engines if engine in names},
        connectors=sorted({lane.connector for lane in lanes if lane.connector}),
        heard_ns=max((r.last_ns for r in recorders), default=None),
        known=found.known,
        is_sample=found.is_sample,
        has_all_findings=found.has_all_findings,
        is_whole=found.is_whole,
    )

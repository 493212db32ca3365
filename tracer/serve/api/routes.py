"""The HTTP API, which the dashboard, scripts and people read. `/docs` shows it in a browser.

The routes of this file are about the tracer itself and its engines; the other modules of the package have the others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel

from kvtrail import __version__
from kvtrail.tracer.model.grouping import by_key
from kvtrail.tracer.rules import pages
from kvtrail.tracer.serve.access import OnlyWithToken
from kvtrail.tracer.serve.allowed_hosts import OnlyAllowedHosts
from kvtrail.tracer.serve.api import (
    changes,
    lanes,
    latency,
    ranges,
    requests,
    waste,
)
from kvtrail.tracer.serve.api.filters import MAX_NS, ChosenEngines, Resolver
from kvtrail.tracer.serve.api.process_state import Live
from kvtrail.tracer.serve.api.requests import Limit
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.limits import DEFAULTS, Limits
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.http_receiver import http_routes
from kvtrail.tracer.serve.receive.intake import Intake
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.serve.spool_sender import SpoolSender
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.serve.tokens import Access
from kvtrail.tracer.store import StoreError, damage
from kvtrail.tracer.store.reader import Reader

UNAVAILABLE = 503
SPAN = ("trace_id", "span_id", "parent_id", "name", "start_ns", "end_ns", "scope", "error", "attributes")
"""The fields of a span in the API."""
MAX_ROWS = 500
"""Maximum number of recorders, engines, pairs and kept hand-offs in an answer."""


class Health(BaseModel):
    """The tracer's own state. Times are Unix nanoseconds."""

    status: str
    """`ok`, or why nothing can be stored."""
    damage: str | None
    """The number of unreadable rows found in the store, and what to do; None if there are none."""
    version: str
    started_ns: int
    last_received_ns: int | None
    spans_stored: int
    """Since this tracer started."""
    events_missing: int
    """Declared missing: they did not arrive within the grace period."""
    spans_behind: int
    """Spans that are stored and not yet judged: after a start, until the open requests are read back."""
    spool: dict[str, Any] | None
    """The spool of ClickHouse: its `status` (`ok`, or why ClickHouse accepts nothing), the number of waiting `batches` and
    compressed `bytes`, the time of the oldest (`oldest_ns`), and the data dropped because it was full: `dropped_batches`,
    `dropped_spans`. None if nothing is sent to ClickHouse."""
    known_findings: str | None
    """State of the file of known findings: `ok`, or why its current content is not used. None if there is no file."""
    recorders: list[dict[str, Any]]
    """Each recorder's `engine`, its name for people (`engine_name`), model, status (`running`, `lost_contact`, `terminated`
    or `closed`), events received, dropped (as it reports) and missing (by sequence numbers), and the bytes of host memory
    that its connector holds and may hold on each worker (`held_bytes`, `memory_limit`); if there are very many, recorders
    that lost events come first, then the latest."""


class Fleet(BaseModel):
    """The engines, and the completeness of their events."""

    tracer: dict[str, Any]
    """`version`, `started_ns`, `last_received_ns`, `spans_stored` since then, `events_missing`, `open` requests."""
    engines: list[dict[str, Any]]
    """Each engine's id (`engine`), its `name` for people, `model`, vLLM `version`, `service`, `instance`, `pod`, `host`,
    the recorder's version (`kvtrail`), `open` requests, `recorders`, its `state` (one of
    `kvtrail.tracer.liveness.engine.EngineState`), and once it has ended its end (`ended_ns`), the exception (`ended_by`), the
    number of open requests (`lost`), and the last finding before its death (`cause`). An engine without recorders has not
    reported lately, or another process receives its spans. If there are very many, engines with recorders come first, then
    the latest."""
    known: int
    """The number of engines."""
    pairs: list[dict[str, Any]]
    """Hand-offs between engines since this tracer started: the engine that gives (`giver`) and the engine that takes
    (`taker`, null if no request takes), each with its name (`giver_name`, `taker_name`), the number of `handoffs`, their
    `tokens`, their number by `outcome` (`kvtrail.tracer.ledger.handoff_sums.Outcome`), and the mean time from the arrival of
    a request that takes to the end of its load (`mean_wait_ns`, null if none has loaded)."""
    kept: list[dict[str, Any]]
    """Hand-offs that each engine keeps for others now: `engine`, `engine_name`, the engine that takes (`taker`,
    `taker_name`), the `state` (`kvtrail.tracer.detect.retained_blocks.KeptFor`), the number of `handoffs`, their `tokens` and
    `blocks`, the age of the oldest (`oldest_ns`), its `request`, and the blocks of the engine's pool (`pool_blocks`, null if
    unknown)."""


def application(
    process: Live,
    reader: Reader,
    metrics: Metrics,
    *,
    intake: Intake | None = None,
    sender: SpoolSender | None = None,
    allowed_hosts: Sequence[str] = ("*",),
    tokens: Access | None = None,
    tenants: TenantNames | None = None,
    limits: Limits = DEFAULTS,
) -> FastAPI:
    """The ASGI application: API and metrics on one port, and OTLP if there is an `intake`. `allowed_hosts` are the accepted
    host names, by default all; `tokens` grants roles, and `tenants` has the names of tenants."""
    app = FastAPIOffline(  # its pages load nothing from other hosts
        redoc_url=None,
        title="kvtrail tracer",
        version=__version__,
        description="Token accounts of vLLM requests, and what contradicts them. Times are Unix nanoseconds.",
    )
    if tokens is not None:
        app.add_middleware(OnlyWithToken, tokens=tokens)
    app.add_middleware(OnlyAllowedHosts, allowed=allowed_hosts)
    fresh = []
    if isinstance(process, Pipeline):
        intake = intake or Intake(process, most_bytes=limits.request_bytes)
        app.include_router(http_routes(intake, metrics, limits))
        fresh = [Depends(process.storage.catch_up)]
        metrics.watch("store_damaged_rows", damage.rows)
    _add_probes(app, process)

    @app.exception_handler(StoreError)
    def away(request: Request, error: StoreError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=UNAVAILABLE)

    @app.exception_handler(sqlite3.DatabaseError)
    def damaged(request: Request, error: sqlite3.DatabaseError) -> JSONResponse:
        metrics.internal_errors.count(Where.API, error, f"{request.url.path} is not answered")
        return JSONResponse({"detail": f"the store cannot be read: {error}"}, status_code=UNAVAILABLE)

    @app.exception_handler(OverflowError)
    @app.exception_handler(UnicodeError)
    def out_of_range(request: Request, error: Exception) -> JSONResponse:
        """A value in the query is too large for the store, or is not a text: an error of the client, not of kvtrail."""
        return JSONResponse({"detail": f"a value that was asked for is out of range: {error}"}, status_code=422)

    @app.exception_handler(Exception)
    def failed(request: Request, error: Exception) -> JSONResponse:
        metrics.internal_errors.count(Where.API, error, f"{request.url.path} is not answered")
        return JSONResponse({"detail": f"an error in kvtrail itself: {type(error).__name__}"}, status_code=500)

    app.state.reader, app.state.process = reader, process
    api = APIRouter(prefix="/api", tags=["Reading"], dependencies=fresh)
    _add_routes(api, process, sender, reader)
    requests.add_routes(api, process, reader)
    names = tenants or TenantNames()
    ranges.add_routes(api, process, reader, names)
    waste.add_routes(api, reader, names)
    lanes.add_routes(api, process, reader)
    latency.add_routes(api, reader, names)
    changes.add_routes(api, reader, names)
    app.include_router(api)

    @app.get("/metrics", tags=["Prometheus"], summary="Metrics for Prometheus")
    def prometheus(request: Request) -> Response:
        body, content_type = metrics.expose(request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    return app


def _add_probes(app: FastAPI, process: Live) -> None:
    @app.get("/healthz", tags=["Probes"], summary="Liveness probe: the process works")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", tags=["Probes"], summary="Readiness probe: the process can store spans")
    def readyz() -> JSONResponse:
        # A damaged row affects one answer, but taking the sidecar out of service would lose every span: so it is only
        # reported.
        trouble = process.trouble
        met = damage.sentence()
        body = {"status": trouble or "ok", **({} if met is None else {"damage": met})}
        return JSONResponse(body, status_code=200 if trouble is None else UNAVAILABLE)


def _add_routes(api: APIRouter, process: Live, sender: SpoolSender | None, reader: Reader) -> None:
    def state() -> dict[str, Any]:
        return {
            "version": __version__,
            "started_ns": process.started_ns,
            "last_received_ns": process.last_received_ns,
            "spans_stored": process.spans_stored,
            "events_missing": process.events_missing,
            "spans_behind": process.spans_behind,
        }

    def recorders() -> list[dict[str, Any]]:
        most_telling = sorted(process.recorders.values(), key=lambda r: (not (r.dropped or r.missing), -r.heard_at))
        names = reader.names()
        return [
            {**recorder.as_dict(), "engine_name": names.get(recorder.engine, recorder.engine)}
            for recorder in most_telling[:MAX_ROWS]
        ]

    @api.get("/health", summary="State of the tracer: its store, its recorders, and missing events")
    def health() -> Health:
        return Health(
            status=process.trouble or "ok",
            damage=damage.sentence(),
            **state(),
            spool=None if sender is None else sender.state(),
            known_findings=process.known_findings.status,
            recorders=recorders(),
        )

    @api.get("/totals", summary="Number of stored requests and findings, and their tokens")
    def totals() -> dict[str, int]:
        return reader.totals()

    @api.get("/fleet", summary="Engines and their recorders, and the completeness of their events")
    def fleet(chosen: ChosenEngines, resolver: Resolver) -> Fleet:
        known = resolver.engines
        if chosen is not None:
            known = {name: known[name] for name in chosen if name in known}
        by_engine = by_key(recorders(), lambda each: each["engine"])
        latest_first = [*known][::-1]
        named = sorted(latest_first, key=lambda name: name not in by_engine)
        return Fleet(
            tracer={**state(), "open": sum(engine["open"] for engine in known.values())},
            engines=[
                {
                    "engine": name,
                    **known[name],
                    **resolver.engine(name),
                    "recorders": by_engine.get(name, []),
                }
                for name in sorted(named[:MAX_ROWS])
            ],
            known=len(known),
            **handed_over(process, resolver.names, chosen),
        )

    @api.get("/rules", summary="Rules")
    def rules() -> list[dict[str, str]]:
        return [
            {
                "id": rule,
                "title": page.title,
                "severity": page.severity,
                "text": page.invariant,
                "hint": page.hint,
            }
            for rule, page in pages.every().items()
        ]

    @api.get("/spans", summary="Spans in the order of their arrival")
    def spans(after: Annotated[int, Query(ge=0, le=MAX_NS)] = 0, limit: Limit = 500) -> list[dict[str, Any]]:
        spans = reader.tail(after=after, limit=limit)
        return [{"number": number, **{name: getattr(span, name) for name in SPAN}} for number, span in spans]


def handed_over(
    process: Live, names: Mapping[str, str], chosen: Collection[str] | None
) -> dict[str, list[dict[str, Any]]]:
    """The `pairs` and `kept` hand-offs of the chosen engines, the most first; None chooses all."""

    def named(engine: str) -> str | None:
        return names.get(engine, engine) or None

    pairs: list[dict[str, Any]] = [
        {
            "giver": giver or None,
            "giver_name": named(giver),
            "taker": taker or None,
            "taker_name": named(taker),
            **flow.as_dict(),
        }
        for (giver, taker), flow in list(process.handoffs.flows.items())
        if flow.handoffs and (chosen is None or giver in chosen or taker in chosen)
    ]
    pools = {recorder.engine: recorder.pool_blocks for recorder in process.recorders.values() if recorder.pool_blocks}
    of_chosen = (each for each in process.kept if chosen is None or each.engine in chosen)
    by_pair = by_key(of_chosen, lambda each: (each.engine, each.taker, each.state))
    kept: list[dict[str, Any]] = [
        {
            "engine": engine,
            "engine_name": named(engine),
            "taker": taker or None,
            "taker_name": named(taker),
            "state": state,
            "handoffs": len(held),
            "tokens": sum(each.tokens for each in held),
            "blocks": sum(each.blocks for each in held),
            "pool_blocks": pools.get(engine),
            "oldest_ns": (oldest := max(held, key=lambda each: each.age_ns)).age_ns,
            "request": oldest.request,
        }
        for (engine, taker, state), held in by_pair.items()
    ]
    pairs.sort(key=lambda row: -row["handoffs"])
    kept.sort(key=lambda row: -row["blocks"])
    return {"pairs": pairs[:MAX_ROWS], "kept": kept[:MAX_ROWS]}

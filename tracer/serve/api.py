"""The HTTP api: what the dashboard, scripts and people read. `/docs` shows it in a browser."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from kvtrail import __version__
from kvtrail.tracer.detect.rules import all_rules
from kvtrail.tracer.model.spans import Span
from kvtrail.tracer.serve.download import taken
from kvtrail.tracer.serve.live import lane_routes
from kvtrail.tracer.serve.metrics import Metrics
from kvtrail.tracer.serve.pipeline import Pipeline
from kvtrail.tracer.serve.receivers import http_routes
from kvtrail.tracer.serve.timeline import Timeline, timeline
from kvtrail.tracer.serve.windows import windows
from kvtrail.tracer.store import Reader, Which

TAIL_EVERY_S = 0.5
Limit = Annotated[int, Query(ge=1, le=10_000)]
Whole = Annotated[int, Query(ge=0, le=2**63 - 1)]


class Health(BaseModel):
    """How the tracer is. Times are Unix nanoseconds."""

    status: str
    version: str
    started_ns: int
    last_received_ns: int | None
    spans_stored: int
    """Since this tracer started."""
    events_missing: int
    """Declared missing: they did not come within the grace time."""
    recorders: list[dict[str, Any]]
    """Each recorder's engine, model, events received, dropped (as it says) and missing (by their numbers)."""


class Overview(BaseModel):
    """Now and in all. Counts of tokens, bytes, calls or requests, as the names say."""

    window_s: int
    activity: dict[str, dict[str, int]]
    """For each kind of event in the window: its `count`, and sums of `returned`, `count_tokens` and `bytes`."""
    totals: dict[str, int]
    """Over all requests stored."""


def application(pipeline: Pipeline, reader: Reader, metrics: Metrics) -> FastAPI:
    """The ASGI application: OTLP, api and metrics on one port."""
    app = FastAPI(
        title="kvtrail tracer",
        version=__version__,
        description="Token accounts of vLLM requests, and what contradicts them. Times are Unix nanoseconds.",
    )
    app.include_router(http_routes(pipeline))
    app.include_router(_reading(pipeline, reader))
    app.include_router(windows(pipeline, reader))
    app.include_router(taken(reader))
    app.include_router(lane_routes(pipeline, reader))

    @app.get("/metrics", tags=["Prometheus"], summary="Metrics for Prometheus")
    def prometheus(request: Request) -> Response:
        body, content_type = metrics.expose(request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    return app


def _reading(pipeline: Pipeline, reader: Reader) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["Reading"])

    @router.get("/health", summary="Is it alive, what does it hear, what is missing")
    def health() -> Health:
        return Health(
            status="ok",
            version=__version__,
            started_ns=pipeline.started_ns,
            last_received_ns=pipeline.last_received_ns,
            spans_stored=pipeline.spans_stored,
            events_missing=pipeline.detector.missing,
            recorders=[state.as_dict() for state in list(pipeline.recorders.values())],
        )

    @router.get("/overview", summary="What happens now, and what happened in all")
    def overview(window_s: Annotated[int, Query(ge=1, le=86_400)] = 60) -> Overview:
        since_ns = time.time_ns() - window_s * 10**9
        return Overview(window_s=window_s, activity=reader.activity(since_ns=since_ns), totals=reader.totals())

    @router.get("/requests", summary="Requests, latest first")
    def requests(
        search: Annotated[str, Query(description="part of the engine's or the external id, or a whole trace id")] = "",
        status: str = "",
        verdict: str = "",
        before_ns: Annotated[int | None, Query(ge=0, le=2**63 - 1, description="began before: the next page")] = None,
        limit: Limit = 100,
    ) -> list[dict[str, Any]]:
        return reader.requests(search=search, status=status, verdict=verdict, before_ns=before_ns, limit=limit)

    @router.get("/requests/{request_id:path}", summary="One request: its timeline with the account at each step")
    def request(request_id: str, engine: str = "") -> Timeline:
        account = reader.request(request_id, engine=engine)
        if account is None:
            raise HTTPException(404, f"no request {request_id!r} is known here, by its engine's or its external id")
        found = reader.findings(Which(request=account["request"], engine=account["engine"]), limit=1000)
        return timeline(account, reader.spans_of(account), found)

    @router.get("/rules", summary="The rules: what is checked")
    def rules() -> list[dict[str, str]]:
        return [
            {
                "id": r.id,
                "title": r.title,
                "severity": r.severity,
                "text": (type(r).__doc__ or "").strip(),
                "hint": r.hint,
            }
            for r in all_rules()
        ]

    @router.get("/spans", summary="Spans in the order of their arrival")
    def spans(after: Whole = 0, limit: Limit = 500) -> list[dict[str, Any]]:
        return [_numbered(number, span) for number, span in reader.tail(after=after, limit=limit)]

    @router.get("/tail", summary="Spans as they arrive, as server-sent events")
    async def tail(request: Request) -> StreamingResponse:
        begin_after = await run_in_threadpool(reader.last_number)  # now, so that nothing after the answer is missed

        async def stream() -> AsyncIterator[str]:
            number = begin_after
            while not await request.is_disconnected():
                for arrived, span in await run_in_threadpool(reader.tail, after=number):
                    yield f"id: {arrived}\ndata: {json.dumps(_numbered(arrived, span))}\n\n"
                    number = arrived
                await asyncio.sleep(TAIL_EVERY_S)

        return StreamingResponse(stream(), media_type="text/event-stream")

    return router


def _numbered(number: int, span: Span) -> dict[str, Any]:
    names = ("trace_id", "span_id", "parent_id", "name", "start_ns", "end_ns", "scope", "error", "attributes")
    return {"number": number, **{name: getattr(span, name) for name in names}}

"""A stored request as a file to take along: its spans as OTLP, and its story for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, HTTPException, Response

from kvtrail.tracer.ingest import decode, otlp
from kvtrail.tracer.model.findings import Finding, Severity, Witness
from kvtrail.tracer.replay.history import History, Moment, in_order
from kvtrail.tracer.replay.perfetto import trace_events
from kvtrail.tracer.store import Reader, Which

MOST_FINDINGS = 1000


def taken(reader: Reader) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/api", tags=["Reading"])

    def account_of(request: str, engine: str) -> dict[str, Any]:
        account = reader.request(request, engine=engine)
        if account is None:
            raise HTTPException(404, f"no request {request!r} is known here, by its engine's or its external id")
        return account

    @router.get("/otlp", summary="A request's spans as OTLP, for any OpenTelemetry tool and for `kvtrail audit`")
    def spans(request: str, engine: str = "") -> Response:
        account = account_of(request, engine)
        lines = f"{otlp.spans_to_json_line(reader.spans_of(account))}\n"
        return _file(lines, account["request"], ending="jsonl", media_type="application/x-ndjson")

    @router.get("/perfetto", summary="A request's story as Chrome trace events, for ui.perfetto.dev")
    def perfetto(request: str, engine: str = "") -> Response:
        account = account_of(request, engine)
        found = reader.findings(Which(request=account["request"], engine=account["engine"]), limit=MOST_FINDINGS)
        events = list(trace_events(_history(reader, account), [_finding(each) for each in found]))
        body = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)
        return _file(body, account["request"], ending="perfetto.json", media_type="application/json")

    return router


def _history(reader: Reader, account: dict[str, Any]) -> History:
    """What is stored of a request; a span that cannot be read is left out, as on its page."""
    moments: list[Moment] = []
    foreign = []
    for span in reader.spans_of(account):
        try:
            event = decode.from_span(span)
        except decode.MalformedSpan:
            continue
        if event is not None:
            moments.append((event, span))
        elif not decode.is_ours(span):
            foreign.append(span)
    return History(moments=tuple(in_order(moments)), foreign=tuple(foreign))


def _finding(stored: Mapping[str, Any]) -> Finding:
    """The finding that `Finding.as_dict` gave."""
    fields = {name: value for name, value in stored.items() if name != "id"}
    witness = [Witness(**each) for each in stored["witness"]]
    return Finding(**{**fields, "severity": Severity(stored["severity"]), "witness": witness})


def _file(body: str, request: str, *, ending: str, media_type: str) -> Response:
    # The id is the caller's own text, and a header takes little of it.
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in request)
    headers = {"content-disposition": f'attachment; filename="{name}.{ending}"'}
    return Response(body, media_type=media_type, headers=headers)

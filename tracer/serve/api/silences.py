"""API routes about silences: findings that somebody knows about, until when, why and by whom."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from kvtrail.tracer.model.silences import Sighting, Silence, proposed
from kvtrail.tracer.rules import all_rules
from kvtrail.tracer.serve.api.process import Live
from kvtrail.tracer.store import Reader

MAX_BODY = 16_384
"""Bytes of a silence that somebody asks for."""
UNREADABLE, NOT_FOUND, TOO_LARGE, NOT_JSON, WRONG = 400, 404, 413, 415, 422


class SilenceAsked(BaseModel):
    """What a silence is made of: at least one of the first five; a finding must meet all that are given."""

    rule: str = ""
    engine: str = ""
    """vLLM's id of the engine, or its name for people."""
    connector: str = ""
    vllm_version: str = ""
    kvtrail_version: str = ""
    """Those that the engine reports."""
    ends_ns: int | None = Field(..., description="Unix nanoseconds; null for one that lasts until it is ended")
    why: str
    by: str


class ListedSilence(BaseModel):
    """A silence. Times are Unix nanoseconds."""

    id: str
    rule: str
    engine: str
    connector: str
    vllm_version: str
    kvtrail_version: str
    """An empty text means any."""
    began_ns: int
    ends_ns: int | None
    """None if it lasts until it is ended."""
    why: str
    by: str
    written_ns: int
    """Its last change."""
    is_active: bool
    """Whether it has an effect now."""
    last_seen_ns: int | None
    """When a finding that it matches was last seen, whether or not it is active; None if none ever was."""


def add_routes(api: APIRouter, process: Live, reader: Reader) -> None:
    """Add the routes to the router of `/api`."""

    def listed(silences: Iterable[Silence]) -> list[ListedSilence]:
        engines, now_ns = reader.engines(), time.time_ns()
        by_rule: dict[str, list[Sighting]] = {}
        for sighting in reader.sightings():
            by_rule.setdefault(sighting.place.rule, []).append(sighting)
            by_rule.setdefault("", []).append(sighting)
        return [
            ListedSilence(
                **each.as_dict(),
                is_active=each.is_active(now_ns),
                last_seen_ns=_last_seen(each, by_rule.get(each.rule, ()), engines),
            )
            for each in silences
        ]

    @api.get("/silences", summary="Silences, those that end last first; the ended ones stay listed")
    def silences() -> list[ListedSilence]:
        return listed(reader.silences())

    @api.post(
        "/silences",
        summary="Silence findings",
        status_code=201,
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": SilenceAsked.model_json_schema()}}}},
    )
    async def silence(request: Request) -> ListedSilence:
        asked, now_ns = await _asked(request), time.time_ns()
        active = sum(each.is_active(now_ns) for each in reader.silences())
        rules = [rule.id for rule in all_rules()]
        try:
            made = proposed(asked, id=secrets.token_hex(8), now_ns=now_ns, rules=rules, active=active)
        except ValueError as wrong:
            raise HTTPException(WRONG, f"{wrong}") from None
        process.put_silences([made])
        return listed([made])[0]

    @api.delete("/silences/{id}", summary="End a silence now; it stays listed")
    def end(id: str) -> ListedSilence:
        known = next((each for each in reader.silences() if each.id == id), None)
        if known is None:
            raise HTTPException(NOT_FOUND, f"there is no silence {id!r}; GET /api/silences lists them")
        now_ns = time.time_ns()
        if known.is_active(now_ns):
            known = replace(known, ends_ns=now_ns, written_ns=max(now_ns, known.written_ns + 1))
            process.put_silences([known])
        return listed([known])[0]


async def _asked(request: Request) -> dict[str, Any]:
    """The JSON object of a request. A page of another site can send its own text with a reader's browser, but not as JSON
    without being asked whether it may."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HTTPException(NOT_JSON, f"send content-type: application/json, not {content_type or 'nothing'!r}")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise HTTPException(TOO_LARGE, f"a silence has at most {MAX_BODY:,} bytes")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(UNREADABLE, f"this is no JSON: {error}") from None
    if not isinstance(asked, dict):
        raise HTTPException(UNREADABLE, "send a JSON object, as /docs describes it")
    return asked


def _last_seen(silence: Silence, sightings: Sequence[Sighting], engines: Mapping[str, Mapping[str, Any]]) -> int | None:
    covered = (each for each in sightings if silence.covers(each.place, engines.get(each.place.engine, {})))
    return max((each.last_ns for each in covered), default=None)

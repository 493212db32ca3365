"""API route of a search for whatever was pasted: a line of a log, or the text of an alert."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from kvtrail.tracer.events import ids
from kvtrail.tracer.ingest.logs.pasted import Pasted, pasted
from kvtrail.tracer.rules import all_rules
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver
from kvtrail.tracer.serve.api.process import Live
from kvtrail.tracer.store import Reader

MAX_TEXT = 8_000
MOST_REQUESTS = 20
LOOKED_UP = 30
"""Words of a text that are looked up as ids of requests."""
SEARCHED = 3
"""Of those that look like an id and are none, how many are searched as a part of one."""
AROUND_NS = 60 * 10**9
"""The time shown before the first and after the last time in a text."""
MAX_RANGE_NS = 24 * 3600 * 10**9


class Found(BaseModel):
    """What a pasted text is about."""

    requests: list[dict[str, Any]]
    """The requests that it names by an id or a trace, 20 at most, as `/api/requests` has them."""
    engines: dict[str, str]
    """The engines that it names, by id, with their names for people."""
    rules: list[str]
    """The rules that it names."""
    looked_for: list[str]
    """What in it looks like the id of a request or a trace, whether or not there is one."""
    times_ns: list[int]
    """The times in it, Unix nanoseconds; those without a zone taken for UTC."""
    since_ns: int | None
    until_ns: int | None
    """The range from a minute before the first to a minute after the last of them, or around the first if they are more than
    a day apart; null without a time."""


def add_routes(api: APIRouter, process: Live, reader: Reader) -> None:
    """Add the route to the router of `/api`."""

    @api.get("/search", summary="What a pasted line of a log, or the text of an alert, is about")
    def search(
        text: Annotated[str, Query(max_length=MAX_TEXT, description="the line, of whatever format")],
    ) -> Found:
        resolver = OutcomeResolver(process, reader)
        content = pasted(text, now_ns=time.time_ns())
        times = content.times_ns
        last_ns = times[-1] if times and times[-1] - times[0] <= MAX_RANGE_NS else (times or (0,))[0]
        names = {engine: about["name"] for engine, about in resolver.engines.items()}
        words = set(content.words)
        return Found(
            requests=[resolver.request(account) for account in _requests(reader, content)],
            engines={engine: name for engine, name in names.items() if words & {engine, name}},
            rules=[rule.id for rule in all_rules() if rule.id in words],
            looked_for=[*content.words[: min(content.likely, LOOKED_UP)], *content.traces],
            times_ns=list(times),
            since_ns=max(0, times[0] - AROUND_NS) if times else None,
            until_ns=last_ns + AROUND_NS if times else None,
        )


def _requests(reader: Reader, content: Pasted) -> list[dict[str, Any]]:
    """Those that the words name; those of the traces; and where a word looks like an id and names none, those that have it as
    a part of theirs."""
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def add(*accounts: dict[str, Any]) -> None:
        found.update({(each["engine"], each["request"]): each for each in accounts})

    searched = 0
    for number, word in enumerate(content.words[:LOOKED_UP]):
        if (account := reader.request(ids.bounded(word))) is not None:
            add(account)
        elif number < content.likely and searched < SEARCHED:
            searched += 1
            add(*reader.requests(search=ids.bounded(word), limit=MOST_REQUESTS))
    for trace in content.traces[:SEARCHED]:
        parts = reader.requests(search=trace, limit=MOST_REQUESTS)
        add(*(each for each in parts if trace in (each["trace_id"], each["external"]) or trace in each["request"]))
    return list(found.values())[:MOST_REQUESTS]

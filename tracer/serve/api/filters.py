"""Query parameters of the API that select a time range, engines, requests or findings."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, HTTPException, Query, Request

from kvtrail.tracer.model.conditions import NAMES, BadCondition, Condition, parsed
from kvtrail.tracer.model.outcomes import Outcome
from kvtrail.tracer.serve.api.outcomes import OutcomeResolver
from kvtrail.tracer.store import FindingFilter
from kvtrail.tracer.store.reader import Reader

MAX_NS = 2**62
"""The largest time and number that a query may contain: sums with it still fit into 64 bits."""
DAY_NS = 24 * 3600 * 10**9
Moment = Annotated[int | None, Query(ge=0, le=MAX_NS, description="Unix nanoseconds")]
_ABOUT = (
    "conditions on the requests, joined by `and`: `duration > 2s and evicted >= 100`. Times have a unit; a cause means its"
    f" tokens. The names are {', '.join(f'`{name}`' for name in NAMES)}."
)


def moments(since_ns: int | None, until_ns: int | None, *, length_ns: int = DAY_NS) -> tuple[int, int]:
    """The requested range; by default, the range of this length that ends now."""
    until = time.time_ns() if until_ns is None else until_ns
    since = max(0, until - length_ns) if since_ns is None else since_ns
    if since >= until:
        raise HTTPException(422, f"since_ns {since} is not before until_ns {until}")
    return since, until


def _chosen(
    request: Request,
    engine: str = "",
    service: str = "",
    node: Annotated[str, Query(description="a pod, or the host of an engine without one")] = "",
    model: str = "",
) -> list[str] | None:
    reader: Reader = request.app.state.reader
    wanted = {field: text for field, text in {"service": service, "node": node, "model": model}.items() if text}
    if not wanted:
        return [engine] if engine else None
    return [
        name
        for name, about in reader.engines().items()
        if engine in ("", name)
        and all({**about, "node": about["pod"] or about["host"]}[field] == text for field, text in wanted.items())
    ]


ChosenEngines = Annotated[list[str] | None, Depends(_chosen)]
"""The engines that a query selects by `engine`, `service`, `node` and `model`; None if it has none of these parameters."""


def _resolver(request: Request) -> OutcomeResolver:
    return OutcomeResolver(request.app.state.process, request.app.state.reader)


Resolver = Annotated[OutcomeResolver, Depends(_resolver)]
"""The states of engines at the time of the query. A query has one, however many of its parameters need it."""


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Selects requests.

    Attributes:
        engines: of any of these engines; None means any.
        where: conditions that all must hold.
    """

    engines: list[str] | None
    where: tuple[Condition, ...]


def _filter(
    request: Request,
    chosen: ChosenEngines,
    outcome: Annotated[Outcome | None, Query(description="outcome of the requests")] = None,
    where: Annotated[str, Query(max_length=1000, description=_ABOUT)] = "",
) -> RequestFilter:
    try:
        conditions = parsed(where)
    except BadCondition as error:
        raise HTTPException(400, f"where: {error}") from error
    if outcome is not None:
        conditions += (_resolver(request).condition(outcome),)
    return RequestFilter(chosen, conditions)


Where = Annotated[RequestFilter, Depends(_filter)]
"""The filter of an API query. Invalid conditions are answered with 400, a number beyond 64 bits with 422, both with the
reason."""


def _findings(
    request: Request,
    resolver: Resolver,
    chosen: ChosenEngines,
    rule: str = "",
    severity: str = "",
    connector: str = "",
    known: Annotated[bool | None, Query(description="only known findings, or only others")] = None,
    since_ns: Moment = None,
    until_ns: Moment = None,
) -> FindingFilter:
    which = FindingFilter(
        rule=rule,
        severity=severity,
        connector=connector,
        engines=chosen,
        since_ns=since_ns,
        until_ns=until_ns,
    )
    if known is not None:
        every = (each.place for each in request.app.state.reader.sightings())
        places = [place for place in every if resolver.known.of(place) is not None]
        which = replace(which, only=places) if known else replace(which, but=places)
    return which


Findings = Annotated[FindingFilter, Depends(_findings)]
"""The findings that an API query selects."""

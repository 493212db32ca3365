"""API routes about requests: the list, one request's timeline, and a request as a file for other tools."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response
from msgspec import convert
from msgspec.json import encode as _to_json
from pydantic import BaseModel

from kvtrail.tracer.events import ids, semconv
from kvtrail.tracer.events.cache_groups import declared, groups_of
from kvtrail.tracer.events.events import Event, Handoff, Side, Unfamiliar
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.request_part import cut
from kvtrail.tracer.ingest import decode, otlp_json
from kvtrail.tracer.ledger import clock_offset
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.handoffs import HandOffs
from kvtrail.tracer.liveness.engine import FINAL, EngineState
from kvtrail.tracer.model.findings import Finding, Unknown
from kvtrail.tracer.serve.api.filters import MAX_NS, Resolver, Where
from kvtrail.tracer.serve.api.process_state import Live
from kvtrail.tracer.store import FindingFilter, Sort
from kvtrail.tracer.store.reader import Reader
from kvtrail.tracer.store.request_rows import StoredRequest

MAX_FINDINGS = 1000
"""Maximum number of findings shown for one request."""
MAX_IN_TIME = 4
"""Maximum number of hand-offs of one request that are shown on a time axis, with the request on the other side."""
MAX_CANDIDATES = 250
"""Number of requests before and after a request from which similar requests are chosen."""
MAX_SPANS = 20_000
"""Maximum number of spans of other requests; beyond it only spans that findings name are added."""
MAX_NAMED = 100
"""Maximum number of spans named by a request's findings that are looked up in other requests, and of these requests."""
Limit = Annotated[int, Query(ge=1, le=10_000)]


class TimelineStep(BaseModel):
    """One span of a request. Times are Unix nanoseconds."""

    name: str
    span_id: str
    start_ns: int
    end_ns: int
    foreign: bool
    """True for a span that no kvtrail recorder wrote, such as vLLM's `llm_request`."""
    service: str
    epoch: int | None = None
    sequence: int | None = None
    role: str = ""
    rank: int | None = None
    error: str | None = None
    """The exception of a call that raised, or the error of a foreign span."""
    numbers: dict[str, Any]
    """The event's values, or the attributes of a foreign span."""
    account: dict[str, Any] | None = None
    """The request's account after the event; None for a foreign span."""


class HandoffLink(BaseModel):
    """A hand-off of a request: its side, its keys, and the engine and request on the other side, or None if they are unknown.
    Then `unknown` says why the pair is not judged. Times are by the clock of the engine that gives."""

    side: str
    keys: list[str]
    engine: str | None = None
    engine_name: str | None = None
    request: str | None = None
    unknown: str | None = None
    takers: int = 0
    """The number of requests that are known to take it."""
    kept_from_ns: int | None = None
    """Start of the time in which the blocks are kept: the end of the request that gives; None if its events are not here."""
    kept_to_ns: int | None = None
    """When the blocks were freed; None while they are kept."""
    gone_ns: int | None = None
    """When the engine that kept them ended, if it had not freed them."""
    expired: bool = False
    """The blocks were freed because the lease had expired."""
    read_ns: int | None = None
    """When a reader reported that it had read the blocks."""
    ahead_least_ns: int | None = None
    ahead_most_ns: int | None = None
    """The offset of the taking engine's clock from the giving engine's clock, as bounded by messages."""
    ahead_ns: int = 0
    """The offset that a chart of both engines should use."""


class Timeline(BaseModel):
    """A request's current account, its steps in order, its hand-offs to or from other engines, and its findings. `outcome` is
    one of `kvtrail.tracer.model.outcomes.Outcome`, and `reason` is vLLM's finish reason."""

    request: dict[str, Any]
    steps: list[TimelineStep]
    handoffs: list[HandoffLink] = []
    findings: list[dict[str, Any]]
    missing: int
    """Events of this request that have not arrived, by the gaps in their numbers."""
    groups: list[dict[str, Any]] = []
    """The KV cache groups that its engine declared, in order, each with its `kind` and other known properties; empty if there
    is only one group of full attention."""


def add_routes(api: APIRouter, process: Live, reader: Reader) -> None:
    """Add the routes to the router of `/api`."""

    def account_of(request: str, engine: str) -> StoredRequest:
        found = reader.request(request, engine=engine) or reader.request(ids.bounded(request), engine=engine)
        if found is None:
            raise HTTPException(404, f"no request here has {request!r} as its engine's or its external id")
        return found

    def findings_of(account: StoredRequest) -> list[dict[str, Any]]:
        return reader.findings(FindingFilter(request=account["request"], engines=[account.engine]), limit=MAX_FINDINGS)

    @api.get(
        "/requests",
        summary="Requests: the latest first, in another order, or similar to a given request",
        response_model=list[dict[str, Any]],
    )
    def requests(
        which: Where,
        resolver: Resolver,
        search: Annotated[str, Query(description="part of the engine's or the external id, or a whole trace id")] = "",
        status: str = "",
        verdict: str = "",
        since_ns: Annotated[int | None, Query(ge=0, le=MAX_NS, description="started at or after")] = None,
        before_ns: Annotated[
            int | None, Query(ge=0, le=MAX_NS, description="started before: for the next page")
        ] = None,
        sort: Annotated[Sort, Query(description="in descending order")] = Sort.LATEST,
        near: Annotated[
            str, Query(description="id of a request: selects similar requests, the most similar first")
        ] = "",
        near_engine: Annotated[str, Query(description="engine of that request")] = "",
        limit: Limit = 100,
    ) -> Response:
        if near:
            one = account_of(near, near_engine)
            model = resolver.models.get(one.engine, "")
            same = [engine for engine, served in resolver.models.items() if served == model]
            found = similar_requests(reader, one, engines=same, limit=limit)
        else:
            found = reader.requests(
                search=ids.bounded(search),
                status=status,
                verdict=verdict,
                engines=which.engines,
                where=which.where,
                since_ns=since_ns,
                before_ns=before_ns,
                sort=sort,
                limit=limit,
            )
        answers = (b"%s,%s" % (each.body[:-1], _to_json(resolver.about(each))[1:]) for each in found)
        return Response(b"[%s]" % b",".join(answers), media_type="application/json")

    @api.get("/requests/{request_id:path}", summary="One request: its timeline, with the account at each step")
    def request(request_id: str, resolver: Resolver, engine: str = "") -> Timeline:
        account = account_of(request_id, engine)
        spans = reader.spans_of(account)
        shown = timeline(account.account() | resolver.about(account), spans, resolver.findings(findings_of(account)))
        events = list(map(decode.event_of, spans))
        sides = [event for event in events if isinstance(event, Handoff)]
        if sides:
            keys = {key for side in sides for key in side.handoff_keys}
            shown.handoffs = in_time(handoffs_of(sides, process.handoffs_called(keys)), events, reader)
            for link in shown.handoffs:
                giver = account.engine if link.side == Side.GIVES else link.engine
                launch = resolver.launches.get(giver or "")
                if launch is not None and link.kept_from_ns is not None and link.kept_to_ns is None:
                    is_over = launch.state in (*FINAL, EngineState.REPLACED)
                    is_next = launch.began_ns > link.kept_from_ns  # a later launch of it
                    link.gone_ns = launch.began_ns if is_next else launch.ended_ns if is_over else None
        return shown

    @api.get("/otlp", summary="Spans of a request as OTLP, for any OpenTelemetry tool and for `kvtrail audit`")
    def spans(request: str, engine: str = "") -> Response:
        account = account_of(request, engine)
        own, findings = reader.spans_of(account), findings_of(account)
        part = part_about(reader, account, findings, own)
        lines = f"{otlp_json.spans_to_json_line(part)}\n"
        # The id is the caller's text, and only some of its characters are safe in a header.
        name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in account["request"])
        headers = {"content-disposition": f'attachment; filename="{name}.jsonl"'}
        return Response(lines, media_type="application/x-ndjson", headers=headers)


def similar_requests(
    reader: Reader, one: StoredRequest, *, engines: Sequence[str] | None, limit: int
) -> list[StoredRequest]:
    """The requests of `engines` that are worth comparing with a request: near in time and of similar length, the most similar
    first."""
    account = one.account()
    before = reader.requests(engines=engines, before_ns=account["started_ns"] + 1, limit=MAX_CANDIDATES)
    after = reader.requests(engines=engines, since_ns=account["started_ns"] + 1, limit=MAX_CANDIDATES)
    others = [each for each in (*before, *after) if each.body != one.body]
    return sorted(others, key=lambda each: _distance(account, each.account()))[:limit]


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The distance of two requests: a prompt twice as long, ten times the distance in time, and another engine each count as
    1."""
    apart_s: float = abs(one["started_ns"] - other["started_ns"]) / 1e9
    length, others = (account["prompt"] or account["total"] for account in (one, other))
    longer: float = abs(math.log2(length / others)) if length and others else 1.0
    return longer + math.log10(1 + apart_s) + float(one["engine"] != other["engine"])


def timeline(account: dict[str, Any], spans: Sequence[Span], findings: list[dict[str, Any]]) -> Timeline:
    """Rebuild a request's timeline from its stored `spans`: each event with the account after it, and the foreign spans
    between them. Spans that are malformed, or of a kind that only a newer kvtrail knows, are left out."""
    replayed = Account(account["engine"], account["request"])
    # An event happened when its call ended; a foreign span is placed where it began.
    ordered = sorted(
        ((span, decode.event_of(span)) for span in spans),
        key=lambda pair: (pair[0].start_ns, -1) if pair[1] is None else (pair[0].end_ns, pair[1].sequence),
    )
    steps = []
    for span, event in ordered:
        if event is not None:
            replayed.apply(event)
        if isinstance(event, Unfamiliar) or (event is None and span.scope == semconv.SCOPE):
            continue
        steps.append(_step(span, event, replayed))
    missing = missing_of(event for _, event in ordered)
    declared_groups = next((event.groups for _, event in ordered if event is not None and event.groups), None)
    groups = [] if declared_groups is None else declared(groups_of(declared_groups))
    return Timeline(request=account, steps=steps, findings=findings, missing=missing, groups=groups)


def handoffs_of(events: Iterable[Event | None], known: HandOffs) -> list[HandoffLink]:
    """The hand-offs among a request's events, each with all known requests on its other side."""
    links = []
    for event in events:
        if isinstance(event, Handoff):
            pair = known.pair(event)
            takers = 0 if pair is None else len(pair.takers)
            link = HandoffLink(side=event.handoff_side, keys=list(event.handoff_keys), takers=takers)
            others = known.others(event)
            links += [link.model_copy(update={"engine": each.engine, "request": each.request}) for each in others]
            links += [] if others else [link.model_copy(update={"unknown": Unknown.ONE_SIDE.name.lower()})]
    return links


def in_time(links: list[HandoffLink], own: Sequence[Event | None], reader: Reader) -> list[HandoffLink]:
    """The first of a request's hand-offs with the timed events of both engines; `own` are the request's events."""
    names = reader.names()
    events = [event for event in own if event is not None]
    for link in links[:MAX_IN_TIME]:
        account = reader.request(link.request, engine=link.engine or "") if link.request else None
        others = (
            [] if account is None else [event for each in reader.spans_of(account) if (event := decode.event_of(each))]
        )
        given, taken = (events, others) if link.side == Side.GIVES else (others, events)
        link.engine_name = None if link.engine is None else names.get(link.engine, link.engine)
        if (held := clock_offset.kept(given)) is not None:
            link.kept_from_ns, link.kept_to_ns, link.expired, link.read_ns = held
        apart = clock_offset.ahead(given, taken, is_only_taker=link.takers <= 1)
        link.ahead_least_ns, link.ahead_most_ns, link.ahead_ns = *apart, apart.likely_ns
    return links


def missing_of(events: Iterable[Event | None]) -> int:
    """The number of missing events of a request, from the gaps in the event numbers."""
    numbers: dict[str, set[int]] = {}
    for event in events:
        if event is not None:
            numbers.setdefault(event.recorder, set()).add(event.request_sequence)
    return sum(max(seen) + 1 - len(seen) for seen in numbers.values())


def _step(span: Span, event: Event | None, account: Account) -> TimelineStep:
    step = TimelineStep(
        **{name: getattr(span, name) for name in ("name", "span_id", "start_ns", "end_ns")},
        # The status of a root span tells how its request ended, not that a call raised.
        error=span.error if event is None else event.error,
        service=str(span.resource.get("service.name", "")),
        foreign=event is None,
        numbers=span.attributes if event is None else event.numbers(),
    )
    if event is not None:
        step.epoch, step.sequence, step.role, step.rank = event.epoch, event.request_sequence, event.role, event.rank
        step.account = account.as_dict()
    return step


def part_about(
    reader: Reader, account: StoredRequest, findings: Sequence[Mapping[str, Any]], spans: Sequence[Span]
) -> list[Span]:
    """The `spans` of a request and the evidence for its findings."""
    found = convert(findings, list[Finding])
    evidence = {(span.trace_id, span.span_id): span for span in (*spans, *_evidence(reader, account, found, spans))}
    ordered = sorted(evidence.values(), key=lambda span: span.end_ns)
    return cut((account["engine"], account["request"]), ordered, {finding.id for finding in found})


def _evidence(reader: Reader, account: StoredRequest, findings: Iterable[Finding], spans: Sequence[Span]) -> list[Span]:
    """The evidence of findings besides the `spans` of their request: the spans that they name, and all spans of the requests
    of these, since an incomplete account decides nothing."""
    own = {(span.trace_id, span.span_id) for span in spans}
    named = {(witness.trace_id, witness.span_id): None for finding in findings for witness in finding.witness}
    elsewhere = [each for each in named if each not in own][:MAX_NAMED]
    evidence: list[Span] = []
    seen = {(account["engine"], account["request"])}
    for span in reader.spans_named(elsewhere) if elsewhere else ():
        request = span.attributes.get(semconv.REQUEST_ID.key)
        if request is None:
            evidence.append(span)
            continue
        key = (span.resource.get(semconv.ENGINE_ID.key, ""), request)
        if key in seen:
            continue
        seen.add(key)
        room = MAX_SPANS - len(evidence)
        other = reader.request(request, engine=key[0]) if room > 0 else None
        evidence += [span] if other is None else filter(decode.is_ours, reader.spans_of(other, limit=room))
    return evidence

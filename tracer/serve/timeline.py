"""One request's story, told again from its spans: each event with the account after it, and foreign spans between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.model import events
from kvtrail.tracer.model.semconv import SCOPE
from kvtrail.tracer.model.spans import Span


class Step(BaseModel):
    """One span. Times are Unix nanoseconds."""

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
    numbers: dict[str, Any]
    """What the event says, or the attributes of a foreign span."""
    account: dict[str, Any] | None = None
    """The request's account after the event; None for a foreign span."""


class Timeline(BaseModel):
    """A request's account as it stands, its steps in their order, and what was found."""

    request: dict[str, Any]
    steps: list[Step]
    findings: list[dict[str, Any]]
    missing: int
    """Events of this request that have not come, by the gaps in their numbers."""


def timeline(account: dict[str, Any], spans: Sequence[Span], findings: list[dict[str, Any]]) -> Timeline:
    """Rebuild the story of a request from its stored `spans`."""
    replayed = Account(account["engine"], account["request"])
    told = sorted(((span, _event(span)) for span in spans), key=_moment)
    steps = []
    for span, event in told:
        if event is not None:
            replayed.apply(event)
        elif span.scope == SCOPE:
            continue  # malformed, or of a kind that a newer kvtrail invented
        steps.append(_step(span, event, replayed))
    return Timeline(request=account, steps=steps, findings=findings, missing=_missing([e for _, e in told if e]))


def _event(span: Span) -> events.Event | None:
    try:
        return decode.from_span(span)
    except decode.MalformedSpan:
        return None


def _moment(pair: tuple[Span, events.Event | None]) -> tuple[int, int]:
    """An event happened when its call ended; a foreign span is told where it began."""
    span, event = pair
    return (span.start_ns, -1) if event is None else (span.end_ns, event.sequence)


def _missing(told: Sequence[events.Event]) -> int:
    by_recorder: dict[str, list[int]] = {}
    for event in told:
        by_recorder.setdefault(event.recorder, []).append(event.request_sequence)
    return sum(max(numbers) + 1 - len(set(numbers)) for numbers in by_recorder.values())


def _step(span: Span, event: events.Event | None, account: Account) -> Step:
    common: dict[str, Any] = {
        "name": span.name,
        "span_id": span.span_id,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "error": span.error,
        "service": str(span.resource.get("service.name", "")),
    }
    if event is None:
        return Step(**common, foreign=True, numbers=span.attributes)
    return Step(
        **common,
        foreign=False,
        epoch=event.epoch,
        sequence=event.request_sequence,
        role=event.role,
        rank=event.rank,
        numbers=event.numbers(),
        account=account.as_dict(),
    )

"""A history as a file for ui.perfetto.dev and chrome://tracing: Chrome's trace events, which both of them open.

An engine is a process. Its requests lie on as few tracks as hold them without an overlap; on its track, a request is a slice
with its phases in it, and the calls in these, each with its numbers. Workers' copies have tracks of their own, and so have
foreign spans. Counters follow the engine; a finding is a mark, with arrows from witness to witness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvtrail.tracer.detect.account import SCHEDULER, Account
from kvtrail.tracer.model import words
from kvtrail.tracer.model.events import Event, Load, Lookup, Pool, Preempt, RequestStart, Schedule, Store
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.semconv import Kind
from kvtrail.tracer.model.spans import Span
from kvtrail.tracer.replay.chrome import Data, Lanes, Slice, Writer, nested
from kvtrail.tracer.replay.history import History

_ENGINE_TRACK = 0
_FIRST_LANE = 1
_CATEGORIES = ("request", "phase", "call")
"""By the depth of a slice on a request's track."""
_ENDED = "ended"
_RUNNING = ("prefill", "decode", "prefill and decode")


@dataclass(slots=True)
class _Story:
    """A request: its events, and its account as far as they are read."""

    account: Account
    events: list[Event] = field(default_factory=list)


def trace_events(history: History, findings: Sequence[Finding] = ()) -> Iterator[Data]:
    """The trace events of a history, ready for JSON; `findings` are what the rules say of it."""
    events = history.events
    times = [*(event.start_ns for event in events), *(span.start_ns for span in history.foreign)]
    if not times:
        return
    writer = Writer(min(times))
    places = {}
    by_engine: dict[str, list[Event]] = {}
    for event in events:
        by_engine.setdefault(event.engine, []).append(event)
    for engine, told in by_engine.items():
        pid = writer.process()
        yield from writer.header(pid, f"engine {engine}")
        yield from writer.track(pid, _ENGINE_TRACK, "the engine itself")
        lanes = Lanes(_FIRST_LANE)
        stories = _stories(told)
        for story in sorted(stories, key=lambda s: s.events[0].start_ns):
            slices = _request(story)
            tid = lanes.take(slices[0].start_ns, slices[0].end_ns)
            places[engine, story.account.request] = (pid, tid)
            yield from (writer.slice(pid, tid, piece, _CATEGORIES[piece.depth]) for piece in nested(slices))
        yield from (e for tid in lanes.taken for e in writer.track(pid, tid, f"requests {tid}"))
        yield from _copies(writer, pid, told, lanes)
        for event in told:
            if event.request is None and not isinstance(event, Pool):
                args = _args(event)
                yield writer.mark(pid, _ENGINE_TRACK, event.end_ns, words.kind(event.kind), args, "engine")
        yield from _counters(writer, pid, told)
    spans = {(event.engine, event.span_id): event for event in events}
    for finding in findings:
        yield from _finding(writer, finding, places, spans)
    yield from _foreign(writer, history.foreign)


def _stories(events: Iterable[Event]) -> list[_Story]:
    """The requests of an engine; an id that is used again is another request."""
    stories: list[_Story] = []
    open_: dict[str, _Story] = {}
    ended: set[str] = set()
    for event in events:
        request = event.request
        if request is None:
            continue
        if request not in open_ or (request in ended and isinstance(event, RequestStart)):
            open_[request] = _Story(Account(event.engine, request))
            stories.append(open_[request])
            ended.discard(request)
        open_[request].events.append(event)
        if event.kind is Kind.REQUEST:
            ended.add(request)
    return stories


def _request(story: _Story) -> list[Slice]:
    """The request's slice first, then its phases and calls."""
    account, events = story.account, story.events
    steps = Counter(event.epoch for event in events if isinstance(event, Schedule))
    start_ns = min(event.start_ns for event in events)
    end_ns = max(event.end_ns for event in events)
    phases: list[Slice] = []
    calls = []
    for event in events:
        account.apply(event)
        phase = _phase(account, event, phases[-1].name if phases else "queued", every_step=steps[event.epoch] > 1)
        if not phases or (phase != phases[-1].name and event.role == SCHEDULER):
            # The root's span began with the request; all else begins with the call.
            begins_ns = event.end_ns if event.kind is Kind.REQUEST else event.start_ns
            if phases:
                phases[-1].end_ns = begins_ns = max(begins_ns, phases[-1].start_ns)
            phases.append(Slice(begins_ns if phases else start_ns, end_ns, 1, phase, {"epoch": account.epoch}))
        if event.role == SCHEDULER and event.kind is not Kind.REQUEST:  # that one spans all of it
            calls.append(Slice(event.start_ns, event.end_ns, 2, words.kind(event.kind), _args(event)))
    verdict = {
        "outcome": account.outcome,
        "status": account.status,
        "total": account.total,
        "epochs": account.epoch + 1,
    }
    facts = {**verdict, "loaded": account.loaded, "stored": account.stored, "lookups": account.lookups}
    known = {name: value for name, value in facts.items() if value is not None}
    whole = Slice(start_ns, end_ns, 0, account.request, {**known, "external": account.external})
    return [whole, *(p for p in phases if p.start_ns < p.end_ns and p.name != _ENDED), *calls]


def _phase(account: Account, event: Event, before: str, *, every_step: bool) -> str:
    """What the request does after an event: what its account says, in finer words."""
    if account.ended_ns is not None:
        return "blocks kept" if account.evidence.end is not None else _ENDED
    if account.status == "running":
        if not isinstance(event, Schedule):
            return before if before in _RUNNING else "prefill and decode"
        if not every_step:
            return "prefill and decode"
        return "decode" if account.prompt is not None and event.computed >= account.prompt else "prefill"
    if account.status == "loading":
        return "waiting for remote KV"
    if account.status == "admitted":
        return "load"
    if isinstance(event, Lookup) or before == "lookup":
        return "lookup"
    return account.status


def _copies(writer: Writer, pid: int, events: Iterable[Event], lanes: Lanes) -> Iterator[Data]:
    """What workers copied, on tracks of their own by rank."""
    by_rank: dict[int, list[Event]] = {}
    for event in events:
        if event.role != SCHEDULER and event.request is not None:
            by_rank.setdefault(event.rank, []).append(event)
    for rank, told in sorted(by_rank.items()):
        lanes = lanes.after()
        for event in sorted(told, key=lambda e: (e.start_ns, e.end_ns)):
            tid = lanes.take(event.start_ns, event.end_ns)
            name = f"{words.kind(event.kind)} {event.request}"
            yield writer.slice(pid, tid, Slice(event.start_ns, event.end_ns, 0, name, _args(event)), "worker")
        yield from (e for tid in lanes.taken for e in writer.track(pid, tid, f"worker {rank}"))


def _counters(writer: Writer, pid: int, events: Iterable[Event]) -> Iterator[Data]:
    """How an engine's numbers go."""
    open_: set[str] = set()
    loaded = stored = 0
    for event in events:
        at_ns = event.end_ns
        if event.kind in (Kind.REQUEST_START, Kind.REQUEST) and event.request is not None:
            (open_.add if event.kind is Kind.REQUEST_START else open_.discard)(event.request)
            yield writer.counter(pid, at_ns, "open requests", len(open_))
        elif isinstance(event, Load):
            loaded += event.count
            yield writer.counter(pid, at_ns, "tokens loaded", loaded)
        elif isinstance(event, Store):
            stored += event.count
            yield writer.counter(pid, at_ns, "tokens stored", stored)
        elif isinstance(event, Preempt) and event.blocks_free is not None:
            yield writer.counter(pid, at_ns, "free blocks", event.blocks_free)
        elif isinstance(event, Pool) and event.pool_used is not None:
            yield writer.counter(pid, at_ns, f"pool {event.pool_tier} used", event.pool_used)


def _finding(
    writer: Writer,
    finding: Finding,
    places: dict[tuple[str, str], tuple[int, int]],
    spans: dict[tuple[str, str], Event],
) -> Iterator[Data]:
    where = []
    for witness in finding.witness:
        event = spans.get((finding.engine, witness.span_id))
        place = None if event is None else places.get((event.engine, event.request or ""))
        if event is not None and place is not None:
            where.append((event.start_ns, *place))
    if not where:
        return
    at_ns, pid, tid = where[-1]
    args = {
        "severity": finding.severity.value,
        "epoch": finding.epoch,
        "count": finding.count,
        "healed": finding.healed,
    }
    text = {"explanation": finding.explanation, "usually": finding.hint, "title": finding.title}
    yield writer.mark(pid, tid, at_ns, f"finding: {finding.rule}", {**text, **args}, "finding")
    where.sort()
    for (from_ns, *tail), (to_ns, *tip) in pairwise(where):
        yield from writer.arrow(finding.rule, (tail[0], tail[1], from_ns), (tip[0], tip[1], to_ns))


def _foreign(writer: Writer, spans: Iterable[Span]) -> Iterator[Data]:
    """Spans of others, by their service."""
    by_service: dict[str, list[Span]] = {}
    for span in spans:
        by_service.setdefault(str(span.resource.get("service.name", "others")), []).append(span)
    for service, held in by_service.items():
        pid = writer.process()
        yield from writer.header(pid, f"{service}: spans of others")
        lanes = Lanes(_FIRST_LANE)
        for span in held:
            end_ns = max(span.start_ns, span.end_ns)
            tid = lanes.take(span.start_ns, end_ns)
            args = {key: str(value) for key, value in span.attributes.items()}
            yield writer.slice(pid, tid, Slice(span.start_ns, end_ns, 0, span.name, args), "foreign")
        yield from (e for tid in lanes.taken for e in writer.track(pid, tid, f"spans {tid}"))


def _args(event: Event) -> Data:
    """What is shown of an event when it is clicked."""
    numbers = event.numbers()
    args: Data = {"says": words.said(event.kind, numbers), "epoch": event.epoch, "sequence": event.sequence}
    for name, value in numbers.items():
        args[name] = words.blocks(value) if name == "blocks_ids" else list(value) if isinstance(value, tuple) else value
    args["span_id"] = event.span_id
    if event.error is not None:
        args["error"] = event.error
    return args

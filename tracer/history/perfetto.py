"""A history as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

An engine is a process. Its requests share as few tracks as possible without overlapping. On its track, a request is a slice
that contains its phases, which contain its calls, each with its numbers. Workers' copies and foreign spans have their own
tracks, each engine has counters, and a finding is a mark with arrows from witness to witness.

Format: the "Trace Event Format", see https://perfetto.dev/docs/getting-started/other-formats.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvtrail.tracer.events.events import Event, Load, Preempt, Store
from kvtrail.tracer.events.semconv import ROOTS, Kind
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.lives import Life, lives
from kvtrail.tracer.ledger.account import SCHEDULER
from kvtrail.tracer.ledger.phases import WORDS
from kvtrail.tracer.model import words
from kvtrail.tracer.model.findings import Finding

Data = dict[str, Any]
_ENGINE_TRACK, _FIRST_TRACK = 0, 1
_CATEGORIES = ("request", "phase", "call")
"""By the depth of a slice on a request's track."""
_GRAIN_NS, _GRAINS_PER_US = 125, 8


@dataclass(slots=True)
class _Slice:
    """A stretch of time on a track. Of two that begin together, the one with the smaller `depth` contains the other."""

    start_ns: int
    end_ns: int
    depth: int
    name: str
    args: Data


class _Tracks:
    """Tracks of a process, numbered from `first`. A track is free again once what lay on it is over."""

    def __init__(self, first: int) -> None:
        self.used: list[int] = []
        self.next = first
        self._free: list[tuple[int, int]] = []

    def take(self, start_ns: int, end_ns: int) -> int:
        """A track for `start_ns` to `end_ns`. Must be called in the order of `start_ns`."""
        if self._free and self._free[0][0] < start_ns:
            track = heapq.heappop(self._free)[1]
        else:
            track = self.next
            self.next += 1
            self.used.append(track)
        heapq.heappush(self._free, (end_ns, track))
        return track


class _Format:
    """Builds trace events. Their times are microseconds since `begin_ns`, because a double is too small for nanoseconds of
    the Unix clock."""

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self._processes = 0
        self._arrows = 0

    def process(self, name: str) -> tuple[int, list[Data]]:
        """The number of a new process, and the events that name and place it."""
        self._processes += 1
        pid = self._processes
        return pid, [
            {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}},
            {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}},
        ]

    def tracks(self, pid: int, name: str, tids: Iterable[int]) -> Iterator[Data]:
        """Names for tracks, and their places: by their numbers."""
        for tid in tids:
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name.format(tid)}}
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}

    def at(self, time_ns: int) -> float:
        """Microseconds that a double represents exactly. Perfetto drops a slice that ends after the one around it, if only
        by a rounding error."""
        return (time_ns - self._begin_ns) // _GRAIN_NS / _GRAINS_PER_US

    def slice(self, pid: int, tid: int, piece: _Slice, category: str) -> Data:
        start, end = self.at(piece.start_ns), self.at(piece.end_ns)
        where = {"pid": pid, "tid": tid, "ts": start, "dur": end - start}
        return {"ph": "X", "name": piece.name, "cat": category, **where, "args": piece.args}

    def mark(self, pid: int, tid: int, time_ns: int, name: str, args: Data, category: str) -> Data:
        where = {"pid": pid, "tid": tid, "ts": self.at(time_ns)}
        return {"ph": "i", "s": "t", "name": name, "cat": category, **where, "args": args}

    def counter(self, pid: int, time_ns: int, name: str, value: int) -> Data:
        return {"ph": "C", "pid": pid, "tid": 0, "ts": self.at(time_ns), "name": name, "args": {name: value}}

    def arrow(self, name: str, *ends: tuple[int, int, int]) -> Iterator[Data]:
        """An arrow between two slices, each given by a time within it, its process and its track."""
        self._arrows += 1
        common = {"cat": "finding", "name": name, "id": self._arrows}
        for ph, (time_ns, pid, tid) in zip("sf", ends, strict=True):
            yield {"ph": ph, **common, "pid": pid, "tid": tid, "ts": self.at(time_ns), "bp": "e"}


def trace_events(history: History, findings: Sequence[Finding] = ()) -> Iterator[Data]:
    """The trace events of a history and its findings, ready for JSON."""
    events = history.events
    times = [*(event.start_ns for event in events), *(span.start_ns for span in history.foreign)]
    if not times:
        return
    form = _Format(min(times))
    tracks_of: dict[tuple[str, str], tuple[int, int]] = {}
    by_engine: dict[str, list[Event]] = {}
    for event in events:
        by_engine.setdefault(event.engine, []).append(event)
    names = history.engine_names()
    for engine, its_events in by_engine.items():
        pid, header = form.process(f"engine {names.get(engine, engine)}")
        yield from header
        yield from form.tracks(pid, "the engine itself", [_ENGINE_TRACK])
        tracks = _Tracks(_FIRST_TRACK)
        for life in sorted(lives(its_events), key=lambda life: life.events[0].start_ns):
            slices = _slices(life)
            tid = tracks.take(slices[0].start_ns, slices[0].end_ns)
            tracks_of[engine, life.account.request] = (pid, tid)
            yield from (form.slice(pid, tid, piece, _CATEGORIES[piece.depth]) for piece in _nested(slices))
        yield from form.tracks(pid, "requests {}", tracks.used)
        yield from _copies(form, pid, its_events, tracks)
        for event in its_events:
            if event.request is None:
                yield form.mark(pid, _ENGINE_TRACK, event.end_ns, words.kind(event.kind), _args(event), "engine")
        yield from _counters(form, pid, its_events)
    by_span = {(event.engine, event.span_id): event for event in events}
    for finding in findings:
        yield from _finding(form, finding, tracks_of, by_span)
    yield from _foreign(form, history.foreign)


def _slices(life: Life) -> list[_Slice]:
    """The request's own slice, followed by its phases and calls."""
    account = life.account
    facts = {
        "outcome": account.outcome,
        "status": account.status,
        "total": account.total,
        "epochs": account.epoch + 1,
        "loaded": account.loaded,
        "stored": account.stored,
        "lookups": account.lookups,
    }
    known = {name: value for name, value in facts.items() if value is not None}
    whole = _Slice(life.start_ns, life.end_ns, 0, account.request, {**known, "external": account.external})
    phases = [_Slice(begins_ns, until_ns, 1, WORDS[phase], {}) for begins_ns, until_ns, phase in life.phases()]
    calls = [
        _Slice(event.start_ns, event.end_ns, 2, words.kind(event.kind), _args(event))
        for event in life.events
        if event.role == SCHEDULER and event.kind not in ROOTS  # the root span covers the whole request
    ]
    return [whole, *phases, *calls]


def _nested(slices: Iterable[_Slice]) -> Iterator[_Slice]:
    """The slices of one track, each cut so that it ends within the one it begins in."""
    around: list[_Slice] = []
    for piece in sorted(slices, key=lambda s: (s.start_ns, s.depth, -s.end_ns)):
        while around and around[-1].end_ns <= piece.start_ns:
            around.pop()
        if around:
            piece.end_ns = min(piece.end_ns, around[-1].end_ns)
        around.append(piece)
        yield piece


def _copies(form: _Format, pid: int, events: Iterable[Event], tracks: _Tracks) -> Iterator[Data]:
    """What workers copied, on tracks of their own by rank."""
    by_rank: dict[int, list[Event]] = {}
    for event in events:
        if event.role != SCHEDULER and event.request is not None:
            by_rank.setdefault(event.rank, []).append(event)
    for rank, copies in sorted(by_rank.items()):
        tracks = _Tracks(tracks.next)
        for event in sorted(copies, key=lambda e: (e.start_ns, e.end_ns)):
            tid = tracks.take(event.start_ns, event.end_ns)
            name = f"{words.kind(event.kind)} {event.request}"
            yield form.slice(pid, tid, _Slice(event.start_ns, event.end_ns, 0, name, _args(event)), "worker")
        yield from form.tracks(pid, f"worker {rank}", tracks.used)


def _counters(form: _Format, pid: int, events: Iterable[Event]) -> Iterator[Data]:
    """An engine's counters over time."""
    open_: set[str] = set()
    loaded = stored = 0
    for event in events:
        at_ns = event.end_ns
        if event.kind in (Kind.REQUEST_START, *ROOTS) and event.request is not None:
            (open_.add if event.kind is Kind.REQUEST_START else open_.discard)(event.request)
            yield form.counter(pid, at_ns, "open requests", len(open_))
        elif isinstance(event, Load):
            loaded += event.count
            yield form.counter(pid, at_ns, "tokens loaded", loaded)
        elif isinstance(event, Store):
            stored += event.count
            yield form.counter(pid, at_ns, "tokens stored", stored)
        elif isinstance(event, Preempt) and event.blocks_free is not None:
            yield form.counter(pid, at_ns, "free blocks", event.blocks_free)


def _finding(
    form: _Format,
    finding: Finding,
    tracks_of: dict[tuple[str, str], tuple[int, int]],
    by_span: dict[tuple[str, str], Event],
) -> Iterator[Data]:
    places = []
    for witness in finding.witness:
        event = by_span.get((finding.engine, witness.span_id))
        track = None if event is None else tracks_of.get((event.engine, event.request or ""))
        if event is not None and track is not None:
            places.append((event.start_ns, *track))
    if not places:
        return
    at_ns, pid, tid = places[-1]
    args = {
        "explanation": finding.explanation,
        "usually": finding.hint,
        "title": finding.title,
        "severity": finding.severity.value,
        "epoch": finding.epoch,
        "count": finding.count,
        "healed": finding.healed,
    }
    yield form.mark(pid, tid, at_ns, f"finding: {finding.rule}", args, "finding")
    for tail, tip in pairwise(sorted(places)):
        yield from form.arrow(finding.rule, tail, tip)


def _foreign(form: _Format, spans: Iterable[Span]) -> Iterator[Data]:
    """Foreign spans, by their service."""
    by_service: dict[str, list[Span]] = {}
    for span in spans:
        by_service.setdefault(str(span.resource.get("service.name", "others")), []).append(span)
    for service, its_spans in by_service.items():
        pid, header = form.process(f"{service}: spans of others")
        yield from header
        tracks = _Tracks(_FIRST_TRACK)
        for span in its_spans:
            end_ns = max(span.start_ns, span.end_ns)
            tid = tracks.take(span.start_ns, end_ns)
            args = {key: str(value) for key, value in span.attributes.items()}
            yield form.slice(pid, tid, _Slice(span.start_ns, end_ns, 0, span.name, args), "foreign")
        yield from form.tracks(pid, "spans {}", tracks.used)


def _args(event: Event) -> Data:
    """What is shown of an event when it is clicked."""
    numbers = event.numbers()
    args: Data = {"says": words.described(event.kind, numbers), "epoch": event.epoch, "sequence": event.sequence}
    for name, value in numbers.items():
        args[name] = list(value) if isinstance(value, tuple) else value
    if args.get("blocks_ids"):
        args["blocks_ids"] = words.blocks_named(numbers)
    args["span_id"] = event.span_id
    if event.error is not None:
        args["error"] = event.error
    return args

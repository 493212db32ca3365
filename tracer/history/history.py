"""A recorded history, read completely and put in order."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from kvtrail.tracer.events.events import CLASSES, Event, Unfamiliar
from kvtrail.tracer.events.semconv import ENGINE_SPAN
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.ingest.logs.reader import LogReader, readers
from kvtrail.tracer.ingest.trace_file import TraceReader
from kvtrail.tracer.model import engines

Moment = tuple[Event, Span]
"""An event, and the span that carried it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The content of trace files, independent of the order of files and lines.

    Attributes:
        moments: each event once, with its span, in order: one recorder's by sequence number, several recorders' by time.
        foreign: spans that no kvtrail recorder wrote, by time.
        repeated: number of duplicate spans.
        unknown: names of spans in kvtrail's scope that this version does not know, with their counts.
        unreadable: (file, line, reason) of unreadable data; line 0 for a span or a whole file.
    """

    moments: tuple[Moment, ...] = ()
    foreign: tuple[Span, ...] = ()
    repeated: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    unreadable: tuple[tuple[str, int, str], ...] = ()

    @property
    def events(self) -> list[Event]:
        """The events without their spans."""
        return [event for event, _ in self.moments]

    def engine_names(self) -> dict[str, str]:
        """The engines' display names, by id."""
        by_recorder = {event.recorder: span.resource for event, span in self.moments}
        return engines.names(engines.descriptions(by_recorder.values()))

    def resource(self, recorder: str) -> Mapping[str, Any]:
        """The resource of a recorder's spans, which describes its engine; empty if the recorder is not in the history."""
        return next((span.resource for event, span in self.moments if event.recorder == recorder), {})


def load(paths: Iterable[Path]) -> History:
    """Read traces and logs as one history.

    Raises:
        UnusableTrace: a file cannot be read at all; the text names the file and the reason.
    """
    traces, logs = readers(paths)
    opened: list[TraceReader | LogReader] = [*traces, *logs]
    history = of_spans((str(reader.path), span) for reader in opened for span in reader.spans())
    unreadable = [(str(reader.path), number, reason) for reader in opened for number, reason in reader.bad_lines]
    return replace(history, unreadable=tuple(sorted((*history.unreadable, *unreadable))))


def of_spans(spans: Iterable[tuple[str, Span]]) -> History:
    """The history from spans, each given with the name of its file."""
    moments: dict[tuple[str, str], Moment] = {}
    foreign: dict[tuple[str, str], Span] = {}
    unknown: Counter[str] = Counter()
    unreadable: list[tuple[str, int, str]] = []
    repeated = 0
    for file, span in spans:
        key = (span.trace_id, span.span_id)
        if key in moments or key in foreign:
            repeated += 1
            continue
        try:
            event = decode.from_span(span)
        except decode.MalformedSpan as malformed:
            unreadable.append((file, 0, str(malformed)))
            continue
        if event is not None and not isinstance(event, Unfamiliar):
            moments[key] = (event, span)
        elif not decode.is_ours(span):
            foreign[key] = span
        elif span.name != ENGINE_SPAN and span.name not in CLASSES:
            unknown[span.name] += 1
    return History(
        moments=tuple(in_order(moments.values())),
        foreign=tuple(sorted(foreign.values(), key=lambda s: (s.start_ns, s.end_ns, s.span_id))),
        repeated=repeated,
        unknown=dict(sorted(unknown.items())),
        unreadable=tuple(unreadable),
    )


def in_order(moments: Iterable[Moment]) -> Iterator[Moment]:
    """The moments in the order in which they happened. A recorder's clock may jump back; its sequence numbers never do."""
    by_recorder: dict[tuple[str, str], list[Moment]] = {}
    for moment in moments:
        by_recorder.setdefault((moment[0].engine, moment[0].recorder), []).append(moment)
    streams = []
    for name in sorted(by_recorder):
        ordered = sorted(by_recorder[name], key=lambda m: (m[0].sequence, m[0].span_id))
        times = accumulate((event.end_ns for event, _ in ordered), max)
        streams.append(zip(times, ordered, strict=True))
    return (moment for _, moment in heapq.merge(*streams, key=lambda pair: pair[0]))

"""A history as a file: a timeline for ui.perfetto.dev and chrome://tracing, or one trace file."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import IO

from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.judging import findings_of
from kvtrail.tracer.history.perfetto import trace_events
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.trace_file import UnusableTrace
from kvtrail.tracer.model.words import some


class Form(StrEnum):
    """The form of the file."""

    PERFETTO = "perfetto"
    """Chrome trace events."""
    TRACE = "trace"
    """OTLP JSON Lines."""


ENDINGS = {Form.PERFETTO: ".perfetto.json", Form.TRACE: ".trace.jsonl"}


def write(history: History, form: Form, file: IO[str]) -> str:
    """Write the history; returns what was written, in words.

    Raises:
        UnusableTrace: there is nothing to write.
    """
    if form is Form.PERFETTO:
        return f"{some(_write_timeline(history, file), 'trace event')}; open it with https://ui.perfetto.dev"
    spans = [span for _, span in history.moments] + list(history.foreign)
    if not spans:
        raise UnusableTrace("no line of these files is an event")
    file.writelines(otlp_json.spans_to_json_lines(spans))
    return some(len(spans), "span")


def _write_timeline(history: History, file: IO[str]) -> int:
    """Write trace events, one a line; returns how many."""
    findings = list(findings_of(history.events).values())
    count = 0
    file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    for count, event in enumerate(trace_events(history, findings), start=1):
        file.write((",\n" if count > 1 else "") + json.dumps(event, separators=(",", ":"), allow_nan=False))
    file.write("\n]}\n")
    return count
